"""Histograms count each duration in its bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.statistics.timing import Flushes, Histogram


@given(st.lists(st.floats(0, 10)))
def test_buckets_hold_the_durations_up_to_their_bound(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.observe(seconds)
    for bound, count in histogram.buckets():
        assert count == sum(seconds <= float(bound) for seconds in durations)
    assert histogram.sum_s == pytest.approx(sum(durations))  # Python 3.12 and newer sum more exactly


def test_the_oldest_flush_that_has_not_ended_counts() -> None:
    flushes = Flushes()
    assert flushes.waiting_s(5) == 0
    flushes.begin("log", 10)
    flushes.begin("queues", 12)
    flushes.begin("log", 14)  # tried again
    assert flushes.waiting_s(15) == 5
    flushes.end("log", 16)
    assert (flushes.waiting_s(16), flushes.sum_s) == (4, 6)
