"""Counters, and the rates made of them."""

import pytest

from triomq.broker.statistics.counters import BrokerStatistics, Totals


@pytest.fixture
def statistics() -> BrokerStatistics:
    return BrokerStatistics(start_ms=17)


def test_counters_add_up(statistics: BrokerStatistics) -> None:
    statistics.put("T", 2, 20)
    statistics.put("U", 1, 5)
    statistics.put("T", 1, 1)
    statistics.get("G", "T", 3, 30)
    statistics.get("G", "T", 1, 10)
    assert (statistics.put_messages, statistics.put_bytes) == (4, 26)
    assert (statistics.get_messages, statistics.get_bytes) == (4, 40)
    assert statistics.put_by_topic == {"T": 3, "U": 1}
    assert statistics.get_by_group == {("T", "G"): 4}


def test_deleted_topic_drops_its_counters_but_not_totals(statistics: BrokerStatistics) -> None:
    for topic in ("T", "U"):
        statistics.put(topic, 1, 1)
        statistics.get("G", topic, 1, 1)
    statistics.forget_topic("T")
    assert statistics.put_by_topic == {"U": 1}
    assert statistics.get_by_group == {("U", "G"): 1}
    assert statistics.put_messages == 2


def test_without_two_samples_there_is_no_rate(statistics: BrokerStatistics) -> None:
    assert statistics.rates().put == (0.0, 0.0, 0.0)
    statistics.sample(0)
    statistics.put("T", 100, 1)
    assert statistics.rates().put == (0.0, 0.0, 0.0)
    statistics.sample(0)
    assert statistics.rates().put == (0.0, 0.0, 0.0)


def test_each_window_has_its_own_rate(statistics: BrokerStatistics) -> None:
    for second in range(601):
        statistics.sample(float(second))
        statistics.put("T", 100 if second >= 590 else 1, 1)
        statistics.get("G", "T", 2, 1)
    ten, sixty, whole = statistics.rates().put
    assert ten == pytest.approx(100)
    assert sixty == pytest.approx((50 * 1 + 10 * 100) / 60)
    assert whole == pytest.approx((590 * 1 + 10 * 100) / 600)
    assert statistics.rates().get == pytest.approx((2, 2, 2))


def test_group_rate_covers_one_to_two_minutes(statistics: BrokerStatistics) -> None:
    assert statistics.group_rate("G", "T") == 0
    for second in range(301):
        statistics.sample(float(second))
        statistics.get("G", "T", 1000 if second < 100 else 5, 1)
    assert statistics.group_rate("G", "T") == pytest.approx(5, rel=0.1)
    assert statistics.group_rate("H", "T") == 0


def test_a_topic_made_again_has_no_negative_rate(statistics: BrokerStatistics) -> None:
    statistics.get("G", "T", 50, 1)
    statistics.sample(0)
    statistics.sample(1)
    statistics.forget_topic("T")
    assert statistics.group_rate("G", "T") == 0


def test_totals_are_kept_at_midnight(statistics: BrokerStatistics) -> None:
    statistics.note_day(7)
    statistics.put("T", 3, 1)
    statistics.get("G", "T", 2, 1)
    statistics.note_day(7)
    assert statistics.day_totals == (Totals(), Totals())
    statistics.note_day(8)
    assert statistics.day_totals == (Totals(), Totals(3, 2))
    statistics.put("T", 1, 1)
    statistics.note_day(9)
    assert statistics.day_totals == (Totals(3, 2), Totals(4, 2))


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
