"""Histograms of durations.

An observation is a search among a dozen numbers, 0.2 us, and allocates nothing.
"""

from bisect import bisect_left
from collections.abc import Hashable
from itertools import accumulate
from typing import Final

_STEP_BOUNDS_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Histogram:
    """Counts durations by size.

    Attributes:
        sum_s: of all together.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(_STEP_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(_STEP_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Return the number of durations up to each bound, and of all (``+Inf``)."""
        return list(zip((*map(repr, _STEP_BOUNDS_S), "+Inf"), accumulate(self._counts), strict=True))


class Flushes(Histogram):
    """Flushes of the store, those that have ended and those that have not."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[Hashable, float] = {}

    def begin(self, flush: Hashable, now: float) -> None:
        """Record the start of a flush, or of its retry; ``now`` is of any steady clock in seconds."""
        self._began.setdefault(flush, now)

    def end(self, flush: Hashable, now: float) -> None:
        """Record that the data of a flush is on the disk."""
        self.observe(now - self._began.pop(flush))

    def waiting_s(self, now: float) -> float:
        """Return the age of the oldest flush that has not ended, 0 without one."""
        return now - min(self._began.values(), default=now)
