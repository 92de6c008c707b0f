"""The file ``checkpoint``: how much of the store is on the disk.

RocketMQ's three times, 64 bits each, at its start; at 64 three physical offsets, which mean the same also where store
times go back because the clock was set, and the times for which they were written: RocketMQ changes only those at the
start.  The rest of the 4096 bytes is zero.  No value may be ahead of the disk; it may lag.
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

_TIMES: Final = Struct(">qqq")
_PLACES: Final = Struct(">qqqqqq")
_PLACES_AT: Final = 64  # in the first sector, so that they cannot tear; RocketMQ 5 has other numbers before
_FILE_SIZE_BYTES: Final = 4096
_SAFETY_MS: Final = 3000


class Checkpoint(NamedTuple):
    """The last messages that are known to be on the disk.

    Attributes:
        physic: store time (ms) of the last one in the commit log.
        logics: in the consume queues.
        indexes: in the index files that are full (indexMsgTimestamp).
        log_end: physical offset up to which the commit log is on the disk; 0 if RocketMQ wrote the file.
        queues_end: up to which the records have units there.
        index_end: the records that begin before it are in index files that are full; 0 without such files, and -1 if
            RocketMQ wrote the file.
    """

    physic: int = 0
    logics: int = 0
    indexes: int = 0
    log_end: int = 0
    queues_end: int = 0
    index_end: int = 0

    @property
    def min_time(self) -> int:
        """By RocketMQ's rule, messages up to this time are in commit log and consume queues."""
        return max(0, min(self.physic, self.logics) - _SAFETY_MS)

    @property
    def end(self) -> int:
        """Messages up to this physical offset are in commit log and consume queues."""
        return min(self.log_end, self.queues_end)

    def save(self, file_system: FileSystem, path: Path) -> bool:
        """Write the file in place, so that an existing one needs no space and, being in one sector, cannot tear.

        Returns:
            ``False`` if the disk is too full to create the file; running without one is safe.

        Raises:
            StoreError: another error of the disk.
        """
        try:
            with translated("write", path):
                content = _TIMES.pack(*self[:3]).ljust(_PLACES_AT, b"\0") + _PLACES.pack(*self[3:], *self[:3])
                file_system.overwrite_file(path, content.ljust(_FILE_SIZE_BYTES, b"\0"))
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
    if len(content) < _TIMES.size:
        return Checkpoint()
    times = _TIMES.unpack_from(content)
    places = _PLACES.unpack_from(content.ljust(_FILE_SIZE_BYTES, b"\0"), _PLACES_AT)
    return Checkpoint(*times, *places[:3]) if places[3:] == times else Checkpoint(*times)._replace(index_end=-1)
