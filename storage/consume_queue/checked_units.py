"""Which units of a consume queue were found to name intact records, so that nobody looks a second time.

Records of an earlier process are checked when they are read, as a disk may have changed them.  That costs more than
reading them, and most readers are not the first: other groups, other attempts.
"""

from typing import Final

_MOST_RANGES: Final = 4  # readers at so many places do not push each other out


class CheckedUnits:
    """A few ranges of queue offsets; of those that do not touch, the longest are kept."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def covers(self, begin: int, end: int) -> bool:
        """Whether all units of [begin, end) are known to be good."""
        return any(low <= begin and end <= high for low, high in self._ranges)

    def add(self, begin: int, end: int) -> None:
        """Remember that the units of [begin, end) are good."""
        apart = []
        for low, high in self._ranges:
            if low <= end and begin <= high:
                begin, end = min(low, begin), max(high, end)
            else:
                apart.append((low, high))
        if len(apart) == _MOST_RANGES:
            apart.remove(min(apart, key=lambda range_: range_[1] - range_[0]))
        self._ranges = [*apart, (begin, end)]

    def clear(self) -> None:
        """Forget all: the units are other ones now."""
        self._ranges.clear()
