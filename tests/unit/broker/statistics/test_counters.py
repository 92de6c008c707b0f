"""Counters, the rates made of them, histograms, and the counts of the last minute, hour and day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.statistics.counters import BrokerStatistics, Flushes, Histogram, StatsHistory
from triomq.protocol.bodies.statistics import BrokerStatsData, BrokerStatsItem


@pytest.fixture
def statistics() -> BrokerStatistics:
    return BrokerStatistics(start_ms=17)


def test_deleted_topic_drops_its_counters_but_not_totals(statistics: BrokerStatistics) -> None:
    for topic in ("T", "U"):
        statistics.put(topic, 2, 10)
        statistics.get("G", topic, 1, 1)
    statistics.forget_topic("T")
    assert statistics.put_by_topic == {"U": 2}
    assert statistics.get_by_group == {("U", "G"): 1}
    assert (statistics.put_messages, statistics.put_bytes) == (4, 20)


def test_without_two_samples_there_is_no_rate(statistics: BrokerStatistics) -> None:
    for _ in range(3):
        assert statistics.rates() == [(0.0, 0.0)] * 3
        statistics.sample(0)
        statistics.put("T", 100, 1)


def test_each_window_has_its_own_rate(statistics: BrokerStatistics) -> None:
    for second in range(601):
        statistics.sample(float(second))
        statistics.put("T", 100 if second >= 590 else 1, 1)
        statistics.get("G", "T", 2, 1)
    puts, gets = zip(*statistics.rates(), strict=True)
    assert puts == pytest.approx((100, (50 * 1 + 10 * 100) / 60, (590 * 1 + 10 * 100) / 600))
    assert gets == pytest.approx((2, 2, 2))
    assert statistics.group_rate("G", "T") == pytest.approx(2, rel=0.1)
    assert statistics.group_rate("H", "T") == 0


def test_totals_are_kept_at_midnight(statistics: BrokerStatistics) -> None:
    kept = []
    for day in (7, 7, 8, 9):
        statistics.note_day(day)
        kept.append(statistics.day_totals)
        statistics.put("T", 3, 1)
        statistics.get("G", "T", 2, 1)
    assert kept == [((0, 0), (0, 0)), ((0, 0), (0, 0)), ((0, 0), (6, 4)), ((6, 4), (9, 6))]


def test_counted_topic_group_pairs_are_limited(statistics: BrokerStatistics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.broker.statistics.counters.MAX_PAIRS", 2)
    for number in (0, 1, 2, 3, 0):
        statistics.get(f"G{number}", "T", 1, 5)
        statistics.send_back(f"G{number}", "T")
    assert statistics.get_messages == 5
    for table in statistics._by_group().values():
        assert list(table) == [("T", "G0"), ("T", "G1")]
    assert statistics.get_by_group["T", "G0"] == 2
    statistics.forget_group("G0")
    statistics.get("G2", "T", 1, 5)
    assert ("T", "G2") in statistics.get_by_group


def history(seconds: int) -> tuple[StatsHistory, dict[str, dict[str, int]]]:
    """Count two messages of a topic a second; return also the counters as they are then."""
    kept, counters = StatsHistory(), {"N": {"T": 0}}
    for now in range(seconds + 1):
        counters["N"]["T"] = 2 * now
        kept.sample(float(now), counters)
    return kept, counters


@pytest.mark.parametrize(
    ("seconds", "spans_s"),
    [(0, (0, 0, 0)), (5, (5, 5, 5)), (1009, (69, 1009, 1009)), (25 * 3600, (60, 3600, 86_400))],
)
def test_span_exceeds_request_by_under_one_step(seconds: int, spans_s: tuple[int, ...]) -> None:
    kept, counters = history(seconds)
    rate = 2.0 if seconds else 0.0
    items = [BrokerStatsItem(2 * span_s, rate, 1.0 if span_s else 0.0) for span_s in spans_s]
    assert kept.data(counters, "N", "T") == BrokerStatsData(*items)
    assert kept.data(counters, "N", "none") is kept.data(counters, "M", "T") is None


@pytest.mark.parametrize(
    ("key", "count", "item"),
    [("new", 7, BrokerStatsItem(7, 7 / 60, 1.0)), ("T", 3, BrokerStatsItem(0, 0.0, 0.0))],
    ids=["counted later", "began again"],
)
def test_counts_missing_before_begin_at_zero(key: str, count: int, item: BrokerStatsItem) -> None:
    data = history(70)[0].data({"N": {key: count}}, "N", key)
    assert data is not None
    assert data.stats_minute == item


def test_without_any_sample_nothing_is_known() -> None:
    assert StatsHistory().data({"N": {"T": 5}}, "N", "T") == BrokerStatsData()


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
