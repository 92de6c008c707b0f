"""Limit how many files are mapped at once.

Each mapping holds an open file.  A store can have tens of thousands of consume queues, most of them idle; a process may
open a few thousand files, and its connections need some of them.
"""

import resource
from typing import Final, Protocol

MIN_MAPPED_FILES: Final = 64
"""So many files added last are mapped still: one step may use a quarter as many queues, each with two files."""

_MAX_MAPPED_FILES: Final = 32_768  # half of the mappings that Linux allows a process (vm.max_map_count)
_LEFT_FOR_OTHERS: Final = 256  # open files, if the limit allows


class Unmappable(Protocol):
    """A file whose mapping the pool may end."""

    def unmap(self) -> None:
        """End the mapping."""


class MappingPool:
    """The mapped files among those that may be unmapped; when they are too many, the one mapped first goes.

    A file that is used again is mapped again, which takes some 20 us.  No use is noted, as that would cost every use
    something: a busy file is unmapped too, once per ``limit`` mappings of others.
    """

    __slots__ = ("_files", "limit")

    def __init__(self, limit: int) -> None:
        """Allow ``limit`` mapped files, or ``MIN_MAPPED_FILES`` if that is more."""
        self.limit = max(limit, MIN_MAPPED_FILES)
        self._files: dict[Unmappable, None] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Unmappable) -> None:
        """Note that a file was mapped, or must stay mapped while others are mapped in the same step."""
        self._files.pop(file, None)
        self._files[file] = None
        if len(self._files) > self.limit:
            next(iter(self._files)).unmap()

    def discard(self, file: Unmappable) -> None:
        """Note that a file is mapped no more, or has left its sequence."""
        self._files.pop(file, None)


def affordable_mappings() -> int:
    """Return how many files may be mapped: three quarters of the open files that this process may have now.

    Where it may have few, it is fewer, and may be less than nothing.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_MAPPED_FILES
    return min(limit * 3 // 4, limit - _LEFT_FOR_OTHERS, _MAX_MAPPED_FILES)
