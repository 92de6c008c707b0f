import pytest

from triomq.client.consumer.assignment.strategies import (
    AllocateStrategy,
    Membership,
    allocate,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_config,
    allocate_by_machine_room,
    allocate_consistent_hash,
    allocate_nearby,
)
from triomq.client.consumer.offsets.offset_store import RETURN_S
from triomq.protocol.message_queue import MessageQueue

RING_MEMBERS = ["10.0.0.1@1#1", "10.0.0.2@2#2", "10.0.0.3@3#3"]


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for queue_id in range(count)]


def shares(
    strategy: AllocateStrategy, count: int, members: list[str], broker: str = "room@broker-a"
) -> list[list[int]]:
    return [
        sorted(queue.queue_id for queue in allocate(strategy, queues(count, broker), members, member))
        for member in members
    ]


@pytest.mark.parametrize(
    ("strategy", "count", "members", "expected"),
    [
        (allocate_averagely, 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (allocate_averagely, 10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (allocate_averagely, 3, 5, [[0], [1], [2], [], []]),
        (allocate_averagely, 8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (allocate_by_circle, 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (allocate_by_machine_room(["room"]), 8, 3, [[0, 1, 6], [2, 3, 7], [4, 5]]),
        (allocate_by_machine_room(["room"]), 2, 3, [[0], [1], []]),
        (allocate_by_machine_room(["other"]), 8, 3, [[], [], []]),
    ],
)
def test_queues_are_shared_as_javas_strategies_share_them(
    strategy: AllocateStrategy, count: int, members: int, expected: list[list[int]]
) -> None:
    """C.2 scenarios 32, 34 and 35."""
    assert shares(strategy, count, [f"m{number}" for number in range(members)]) == expected


def test_the_ring_gives_the_same_owners_as_java() -> None:
    """C.2 scenario 35."""
    assert shares(allocate_consistent_hash, 8, RING_MEMBERS, "broker-a") == [[2, 5, 7], [3, 4], [0, 1, 6]]


@pytest.mark.parametrize("broker", ["broker-a", "room@", "room@a@b", "@room", "roomy@a"])
def test_machine_room_is_text_before_the_single_separator(broker: str) -> None:
    assert shares(allocate_by_machine_room(["room"]), 4, ["a"], broker) == [[]]


def test_member_gets_its_configured_queues() -> None:
    first, second, third = queues(3)
    strategy = allocate_by_config([second, third, MessageQueue("Other", "broker-a", 0)])
    assert allocate(strategy, [first, second], ["a", "b"], "a") == {second}


def test_the_retry_topic_needs_no_configuration() -> None:
    retry = [MessageQueue("%RETRY%G", broker, 0) for broker in "xy"]
    shares = [allocate(allocate_by_config([]), retry, ["a", "b"], member) for member in "ab"]
    assert shares == [{retry[0]}, {retry[1]}]


def nearby(within: AllocateStrategy = allocate_averagely) -> AllocateStrategy:
    """A room is the text before the first dot."""
    return allocate_nearby(
        lambda queue: queue.broker_name.partition(".")[0], lambda member: member.partition(".")[0], within
    )


def test_room_members_share_its_queues_and_orphans() -> None:
    """C.2 scenario 35: the last row of the table in B.7."""
    of_x, of_y = queues(4, "X.broker"), queues(2, "Y.broker")
    members = ["X.one", "X.two"]
    assert [allocate(nearby(), of_x + of_y, members, member) for member in members] == [
        {of_x[0], of_x[1], of_y[0]},
        {of_x[2], of_x[3], of_y[1]},
    ]
    assert allocate(nearby(), of_x + of_y, [*members, "Y.three"], "Y.three") == set(of_y)
    assert allocate(nearby(allocate_by_circle), of_x, members, "X.two") == {of_x[1], of_x[3]}


@pytest.mark.parametrize(("broker", "member"), [("", "X.one"), ("X.broker", "")])
def test_unknown_room_shares_nothing(broker: str, member: str) -> None:
    with pytest.raises(ValueError, match=r"machine room of .* is not known"):
        allocate(nearby(), queues(2, broker), ["X.one", member], "X.one")


def test_strategy_cannot_return_unknown_queues() -> None:
    with pytest.raises(ValueError, match="not one of the 2 queues given"):
        allocate(lambda _queues, _members, _client_id: queues(3), queues(2), ["a"], "a")


# U+1F600 is written D83D DE00 and comes before U+FF61, although its code point is higher
@pytest.mark.parametrize("members", [["10.0.0.10@1", "10.0.0.2@1"], ["\U0001f600", "\uff61"]])
def test_member_ids_sort_by_utf16_units(members: list[str]) -> None:
    assert shares(allocate_averagely, 2, members[::-1]) == [[1], [0]]


def test_queues_sort_by_topic_broker_and_number() -> None:
    mixed = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 10), MessageQueue("T", "a", 2)]
    assert allocate(allocate_averagely, mixed, ["x", "y", "z"], "x") == {MessageQueue("T", "a", 2)}


def test_a_client_that_is_no_member_gets_nothing() -> None:
    assert allocate(allocate_averagely, queues(4), ["a"], "b") == frozenset()


BOTH = ("a", "b")


def known() -> Membership:
    """A membership that knows both members from either broker."""
    membership = Membership()
    for broker in ("one", "two"):
        assert not membership.missing("T", broker, BOTH, 0)
    return membership


@pytest.mark.parametrize(
    "steps",
    [
        [("one", "a", 1, ""), ("lost", "", 0, ""), ("one", "a", 1, "")],  # b was gone before
        # however long the broker was away, and it is believed from then on
        [
            ("lost", "", 0, ""),
            ("one", "a", 100, "b"),
            ("one", "a", 100 + RETURN_S - 0.1, "b"),
            ("one", "a", 100 + RETURN_S, ""),
            ("one", "a", 101, ""),
        ],
        # also after a list with a connection that has ended, too
        [("lost", "", 0, ""), ("one", "abc", 100, ""), ("one", "a", 100.1, "bc"), ("one", "a", 100 + RETURN_S, "")],
        [("lost", "", 0, ""), ("two", "b", 50, ""), ("one", "", 100, "b")],
    ],
    ids=["connected", "timeout", "all are listed", "another broker"],
)
def test_members_before_disconnect_count_for_a_time(steps: list[tuple[str, str, float, str]]) -> None:
    membership = known()
    for broker, listed, now, missing in steps:
        if broker == "lost":
            membership.broker_lost("one")
        else:
            assert membership.missing("T", broker, [*listed], now) == {*missing}


def test_new_member_does_not_wait() -> None:
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
