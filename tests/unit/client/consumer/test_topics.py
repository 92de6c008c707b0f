import pytest

from tests.unit.client.consumer.fake_cluster import make_message
from triomq.client.consumer.topics import Subscriptions, TopicCounters, select
from triomq.protocol.bodies.client import ConsumeStatus
from triomq.protocol.errors import ConfigError, IllegalNameError, SubscriptionParseError
from triomq.protocol.filters.filter_types import EVERYTHING, filter_of


def subscriptions(clock_ms: list[int] | None = None, **expressions: str) -> Subscriptions:
    times = clock_ms or [100]
    return Subscriptions("G", expressions, lambda: times[0])


def test_heartbeats_name_tags_codes_and_version() -> None:
    (data, _) = subscriptions(T="TagA || TagB").data()
    assert (data.topic, data.sub_string, data.tags_set) == ("T", "TagA || TagB", ["TagA", "TagB"])
    assert data.code_set == [2598919, 2598920]
    assert data.sub_version == 100
    assert data.expression_type == "TAG"


def test_a_renewed_subscription_is_always_newer() -> None:
    times = [100]
    table = subscriptions(times, T="*")
    table.renew("T")
    assert table["T"].version == 101  # within one millisecond
    times[0] = 500
    table.renew("T")
    assert (table["T"].version, table["T"].pull_version) == (500, 100)


def test_selection_compares_tags_not_hashes() -> None:
    """C.2 scenario 27."""
    table = subscriptions(T="Aa")
    wanted, same_hash, none = make_message(0, TAGS="Aa"), make_message(1, TAGS="BB"), make_message(2)
    assert select(table["T"].message_filter, [wanted, same_hash, none]) == [wanted]


def test_impossible_subscriptions_are_refused() -> None:
    with pytest.raises(ConfigError, match="no topic"):
        subscriptions()
    with pytest.raises(IllegalNameError):
        Subscriptions("G", {"a b": "*"}, lambda: 0)
    with pytest.raises(SubscriptionParseError):
        subscriptions(T="||")


def test_changed_expression_reaches_existing_holders() -> None:
    times = [100]
    table = subscriptions(times, T="A")
    held = table["T"]
    assert table.put("T", "B") == (held, True)
    assert (held.message_filter, held.version, held.pull_version) == (filter_of("B"), 101, 100)
    held.announced()
    assert held.pull_version == 101
    assert table.put("T", "B") == (held, False)
    assert not table.put("U", "B")[1]


def test_removed_topic_is_not_renewed() -> None:
    table = subscriptions(T="A", U="*")
    table.remove("T")
    table.renew("T")
    assert (table.topics, "T" in table) == (("U", "%RETRY%G"), False)


@pytest.mark.parametrize("expression", ["a && b", "a OR b", "a | b"])
def test_expression_that_never_matches_is_refused(expression: str) -> None:
    table = subscriptions(T="*")
    with pytest.raises(SubscriptionParseError, match=r"write TAG \|\| TAG"):
        table.put("T", expression)
    with pytest.raises(SubscriptionParseError):
        subscriptions(T=expression)
    assert table["T"].message_filter == EVERYTHING


def test_rates_compare_with_a_minute_ago() -> None:
    counters = TopicCounters()
    for second in range(0, 130, 10):
        counters.sample(float(second))
        counters.succeeded += 100
        counters.failed += 50
        counters.busy_s += 3.0
        counters.pulls += 10
        counters.pulled += 150
        counters.pulling_s += 1.0
    rates = counters.rates(120.0)
    assert rates == ConsumeStatus(100.0, 1050 / 60, 20.0, 700 / 60, 350 / 60, 650)
