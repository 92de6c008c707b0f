"""The file ``checkpoint``: up to which times the store is on the disk.

Three 64 bit numbers, the rest of the 4096 bytes zero.  A time may lag behind what is on the disk, never lead.
Source: StoreCheckpoint.java; store.md 5.2.
"""

import logging
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.errors import StoreFullError
from triomq.storage.files.file_system import FileSystem, translated

LOGGER: Final = logging.getLogger("triomq.storage.files.checkpoint")

CHECKPOINT: Final = "checkpoint"
"""Name of the file in the root of a store."""

_LAYOUT: Final = Struct(">qqq")
_FILE_SIZE_BYTES: Final = 4096
_SAFETY_MS: Final = 3000


class Checkpoint(NamedTuple):
    """Store times (ms) of the last messages that are known to be on the disk.

    Attributes:
        physic: in the commit log.
        logics: in the consume queues.
        indexes: in the index files that are full (indexMsgTimestamp).
    """

    physic: int = 0
    logics: int = 0
    indexes: int = 0

    @property
    def min_time(self) -> int:
        """Messages up to this time are in commit log and consume queues."""
        return max(0, min(self.physic, self.logics) - _SAFETY_MS)

    def save(self, file_system: FileSystem, path: Path) -> bool:
        """Write the file in place, so that an existing one needs no space and, being in one sector, cannot tear.

        Returns:
            ``False`` if the disk is too full to create the file; running without one is safe.

        Raises:
            StoreError: another error of the disk.
        """
        try:
            with translated("write", path):
                file_system.overwrite_file(path, _LAYOUT.pack(*self).ljust(_FILE_SIZE_BYTES, b"\0"))
        except StoreFullError as exc:
            LOGGER.warning("checkpoint not written error=%s", exc)
            return False
        return True


def load_checkpoint(file_system: FileSystem, path: Path) -> Checkpoint:
    """Read the file; a missing or cut one counts as zeros, so that recovery looks at everything.

    Raises:
        StoreError: it is there, but cannot be read.
    """
    with translated("read", path):
        if not file_system.exists(path):
            return Checkpoint()
        content = file_system.read_file(path)
    return Checkpoint() if len(content) < _LAYOUT.size else Checkpoint(*_LAYOUT.unpack_from(content))
