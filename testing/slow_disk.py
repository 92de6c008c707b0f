"""A disk that takes its time."""

import time
from collections.abc import Callable
from typing import Any, Final

from triomq.storage.files.file_system import FileSystem

_SYNCS: Final = ("sync_file", "sync_directory", "sync_all", "write_file", "overwrite_file")


class SlowDisk(FileSystem):
    """A disk on which each sync takes longer, in the thread that waits for it.

    Attributes:
        delay_s: how much longer; may be set at any time, in any thread.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s


def _slowed(name: str) -> Callable[..., None]:
    def sync(disk: SlowDisk, *args: Any) -> None:
        time.sleep(disk.delay_s)
        getattr(super(SlowDisk, disk), name)(*args)

    return sync


for _name in _SYNCS:
    setattr(SlowDisk, _name, _slowed(_name))
