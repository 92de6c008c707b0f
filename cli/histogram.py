"""Counts any number of durations in little memory."""

import math
from typing import Final

_PER_DOUBLING: Final = 32
"""Buckets per doubling: the error of a percentile is at most 2.2 %."""
_SMALLEST_S: Final = 1e-6


class Histogram:
    """Durations in exponential buckets."""

    __slots__ = ("_buckets", "count", "longest_s")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.longest_s = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count a duration."""
        bucket = math.ceil(math.log2(max(duration_s, _SMALLEST_S)) * _PER_DOUBLING)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.longest_s = max(self.longest_s, duration_s)

    def percentile_s(self, percent: float) -> float | None:
        """Return a percentile, ``None`` without durations."""
        wanted = self.count * percent / 100
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= wanted:
                return min(math.exp2(bucket / _PER_DOUBLING), self.longest_s)
        return None

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile in milliseconds, with three decimals."""
        found = self.percentile_s(percent)
        return None if found is None else round(found * 1000, 3)
