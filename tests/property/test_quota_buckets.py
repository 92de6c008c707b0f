"""Buckets: a user gets at most the rate, one bucket and one request, and never waits forever."""

from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.limits.quotas import Bucket

BURST_MS = 1000
UNITS = st.integers(1, 5000)
PAUSES_MS = st.integers(0, 20_000)


@given(rate=st.floats(0.01, 10_000), requests=st.lists(st.tuples(PAUSES_MS, UNITS), min_size=1, max_size=50))
def test_rate_is_never_exceeded(rate: float, requests: list[tuple[int, int]]) -> None:
    bucket, now_ms, taken = Bucket(BURST_MS), 5_000_000, 0
    bucket.set_rate(rate)
    begin_ms = now_ms
    for pause_ms, units in requests:
        now_ms += pause_ms
        if bucket.wait_ms(now_ms) < 0:
            most = rate * (now_ms - begin_ms + BURST_MS) / 1000
            assert taken < most * (1 + 1e-9) + 1e-6  # so there was room
            bucket.take(units, now_ms)
            taken += units
        else:
            assert taken > 0
            assert bucket.wait_ms(now_ms + bucket.wait_ms(now_ms) + 0.01) < 0  # as long as it said, and no longer


@given(rate=st.floats(0.1, 1000), units=UNITS)
def test_bucket_gives_its_full_rate_and_refills(rate: float, units: int) -> None:
    bucket, now_ms = Bucket(BURST_MS), 0.0
    bucket.set_rate(rate)
    for _ in range(10):
        now_ms += max(bucket.wait_ms(now_ms), 0.0) + 0.001
        bucket.take(units, now_ms)
    assert 10 * units >= rate * (now_ms - 0.01) / 1000  # no request within the rate was rejected
    assert not bucket.is_full(now_ms)
    assert bucket.is_full(now_ms + 10 * units * 1000 / rate)


def test_bucket_holds_exactly_one_second() -> None:
    bucket = Bucket(BURST_MS)
    bucket.set_rate(100)
    passed = 0
    while bucket.wait_ms(50) < 0:
        bucket.take(1, 50)
        passed += 1
    assert passed == 100
    assert bucket.wait_ms(50) == 0
    bucket.set_rate(None)
    bucket.take(10**9, 50)
    assert bucket.wait_ms(50) < 0
