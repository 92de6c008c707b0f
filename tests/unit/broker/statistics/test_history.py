"""What was counted in the last minute, hour and day."""

from triomq.broker.statistics.history import StatsHistory
from triomq.protocol.bodies.statistics import BrokerStatsData, BrokerStatsItem


def history(seconds: int, per_second: int = 2) -> tuple[StatsHistory, dict[str, dict[str, int]]]:
    """Let a topic get messages for some time; return also the counters as they are then."""
    kept, counters = StatsHistory(), {"N": {"T": 0}}
    for now in range(seconds + 1):
        kept.sample(float(now), counters)
        if now < seconds:
            counters["N"]["T"] += per_second
    return kept, counters


def test_young_broker_reports_its_history() -> None:
    kept, counters = history(5)
    item = BrokerStatsItem(10, 2.0, 1.0)
    assert kept.data(counters, "N", "T") == BrokerStatsData(item, item, item)


def test_each_span_ends_after_its_time() -> None:
    kept, counters = history(25 * 3600)
    data = kept.data(counters, "N", "T")
    assert data is not None
    assert (data.stats_minute.sum, data.stats_hour.sum, data.stats_day.sum) == (2 * 60, 2 * 3600, 2 * 86_400)
    assert {data.stats_minute.tps, data.stats_hour.tps, data.stats_day.tps} == {2.0}


def test_span_exceeds_request_by_under_one_step() -> None:
    kept, counters = history(1009)
    data = kept.data(counters, "N", "T")
    assert data is not None
    assert data.stats_minute == BrokerStatsItem(2 * 69, 2.0, 1.0)


def test_what_comes_later_counts_from_zero_on() -> None:
    kept, counters = history(70)
    counters["N"]["new"] = 7
    data = kept.data(counters, "N", "new")
    assert data is not None
    assert data.stats_minute.sum == 7
    assert kept.data(counters, "N", "none") is None
    assert kept.data(counters, "M", "T") is None


def test_without_any_sample_nothing_is_known() -> None:
    assert StatsHistory().data({"N": {"T": 5}}, "N", "T") == BrokerStatsData()


def test_at_one_moment_there_is_no_rate() -> None:
    kept = StatsHistory()
    kept.sample(3.0, {"N": {"T": 0}})
    data = kept.data({"N": {"T": 5}}, "N", "T")
    assert data is not None
    assert data.stats_minute == BrokerStatsItem(5, 0.0, 1.0)


def test_a_counter_that_began_again_is_not_negative() -> None:
    kept, _ = history(70)
    data = kept.data({"N": {"T": 3}}, "N", "T")
    assert data is not None
    assert data.stats_minute == BrokerStatsItem(0, 0.0, 0.0)
