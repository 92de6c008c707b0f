"""The file ``checkpoint``: up to which times the store is on the disk.

Three 64 bit numbers, the rest of the 4096 bytes zero.  A time may lag behind what is on the disk, never lead.
Source: StoreCheckpoint.java; store.md 5.2.
"""

from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from triomq.storage.file_system import FileSystem, translated

_LAYOUT: Final = Struct(">qqq")
_FILE_SIZE_BYTES: Final = 4096
_SAFETY_MS: Final = 3000


class Checkpoint(NamedTuple):
    """Store times (ms) of the last messages that are on the disk for certain.

    Attributes:
        physic: in the commit log.
        logics: in the consume queues.
        indexes: in the index files (indexMsgTimestamp); kept as it was found.
    """

    physic: int = 0
    logics: int = 0
    indexes: int = 0

    @property
    def min_time(self) -> int:
        """Messages up to this time are in commit log and consume queues."""
        return max(0, min(self.physic, self.logics) - _SAFETY_MS)

    def save(self, file_system: FileSystem, path: Path) -> None:
        """Write the file, so that a crash leaves the old or the new one.

        Raises:
            StoreError: the disk refuses.
        """
        scratch = path.with_name(path.name + ".tmp")
        with translated("write", path):
            file_system.write_file(scratch, _LAYOUT.pack(*self).ljust(_FILE_SIZE_BYTES, b"\0"))
            file_system.rename(scratch, path)


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
