from triomq.client.consumer.assignment.rebalancer import Membership
from triomq.client.consumer.offsets.remote_offsets import RETURN_S

BOTH = ("a", "b")


def known() -> Membership:
    """Of one that was told of both, by either broker."""
    membership = Membership()
    for broker in ("one", "two"):
        assert not membership.missing("T", broker, BOTH, 0)
    return membership


def test_a_broker_is_believed_as_long_as_its_connection_holds() -> None:
    membership = known()
    assert not membership.missing("T", "one", ["a"], 1)
    membership.broker_lost("one")
    assert not membership.missing("T", "one", ["a"], 1)  # b was gone before


def test_members_before_disconnect_count_until_back_or_timeout() -> None:
    membership = known()
    membership.broker_lost("one")
    assert membership.missing("T", "one", ["a"], 100) == {"b"}  # however long the broker was away
    assert membership.missing("T", "one", ["a"], 100 + RETURN_S - 0.1) == {"b"}
    assert not membership.missing("T", "one", ["a"], 100 + RETURN_S)
    assert not membership.missing("T", "one", ["a"], 101)  # and it is believed from then on


def test_nobody_is_waited_for_once_all_are_back() -> None:
    membership = known()
    membership.broker_lost("one")
    assert membership.missing("T", "one", ["a"], 100) == {"b"}
    assert not membership.missing("T", "one", ["a", "b", "c"], 100.5)
    assert not membership.missing("T", "one", ["a"], 100.6)


def test_the_other_brokers_of_a_topic_are_believed() -> None:
    membership = known()
    membership.broker_lost("one")
    assert not membership.missing("T", "two", ["b"], 50)
    assert membership.missing("T", "one", [], 100) == {"b"}


def test_who_comes_new_waits_for_nobody() -> None:
    membership = Membership()
    membership.broker_lost("one")
    assert not membership.missing("T", "one", ["a"], 0)


def test_topics_are_known_apart_and_forgotten() -> None:
    membership = known()
    membership.broker_lost("one")
    assert not membership.missing("U", "one", [], 100)
    membership.broker_lost("one")
    membership.forget("T")
    assert not membership.missing("T", "one", ["a"], 100)
