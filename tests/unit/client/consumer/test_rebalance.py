import pytest

from triomq.client.consumer.rebalance import (
    AllocateStrategy,
    Assignment,
    allocate,
    allocate_averagely,
    allocate_by_circle,
    allocate_consistent_hash,
    plan,
)
from triomq.protocol.message_queue import MessageQueue

RING_MEMBERS = ["10.0.0.1@1#1", "10.0.0.2@2#2", "10.0.0.3@3#3"]


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "broker-a", queue_id) for queue_id in range(count)]


def shares(strategy: AllocateStrategy, count: int, members: list[str]) -> list[list[int]]:
    return [
        sorted(queue.queue_id for queue in allocate(strategy, queues(count), members, member)) for member in members
    ]


@pytest.mark.parametrize(
    ("strategy", "count", "members", "expected"),
    [
        (allocate_averagely, 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (allocate_averagely, 10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (allocate_averagely, 3, 5, [[0], [1], [2], [], []]),
        (allocate_averagely, 8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (allocate_by_circle, 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
    ],
)
def test_queues_are_shared_as_javas_strategies_share_them(
    strategy: AllocateStrategy, count: int, members: int, expected: list[list[int]]
) -> None:
    assert shares(strategy, count, [f"m{number}" for number in range(members)]) == expected


def test_the_ring_gives_the_same_owners_as_java() -> None:
    assert shares(allocate_consistent_hash, 8, RING_MEMBERS) == [[2, 5, 7], [3, 4], [0, 1, 6]]


def test_member_ids_sort_as_text_not_as_addresses() -> None:
    members = ["10.0.0.2@1", "10.0.0.10@1"]
    assert [queue.queue_id for queue in allocate(allocate_averagely, queues(2), members, "10.0.0.10@1")] == [0]


def test_member_ids_sort_by_utf16_units_as_in_java() -> None:
    # U+1F600 is written D83D DE00 and comes before U+FF61, although its code point is higher
    members = ["\uff61", "\U0001f600"]
    assert [queue.queue_id for queue in allocate(allocate_averagely, queues(2), members, "\U0001f600")] == [0]


def test_queues_sort_by_topic_broker_and_number() -> None:
    mixed = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 10), MessageQueue("T", "a", 2)]
    assert allocate(allocate_averagely, mixed, ["x", "y", "z"], "x") == {MessageQueue("T", "a", 2)}


def test_a_client_that_is_no_member_gets_nothing() -> None:
    assert allocate(allocate_averagely, queues(4), ["a"], "b") == frozenset()
    assert allocate(allocate_averagely, queues(4), [], "b") == frozenset()


def test_a_member_listed_twice_leaves_no_queue_without_owner() -> None:
    assert len(allocate(allocate_averagely, queues(6), ["a", "a", "b"], "a")) == 3


def test_plan_names_what_to_start_and_what_to_stop() -> None:
    first, second, third = queues(3)
    assert plan(frozenset((first, second)), frozenset((second, third))) == Assignment(
        frozenset((first,)), frozenset((third,))
    )
