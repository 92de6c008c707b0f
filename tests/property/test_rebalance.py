"""Laws of all allocation strategies: every queue has exactly one owner, and everybody agrees who that is."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triomq.client.consumer.assignment.strategies import (
    AllocateStrategy,
    allocate,
    allocate_averagely,
    allocate_by_circle,
    allocate_consistent_hash,
)
from triomq.protocol.message_queue import MessageQueue

STRATEGIES = [allocate_averagely, allocate_by_circle, allocate_consistent_hash]
EVEN = [allocate_averagely, allocate_by_circle]
REPEATABLE = settings(max_examples=100, deadline=None, derandomize=True)

QUEUES = st.sets(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b", "c"]), st.integers(0, 15)), max_size=20
)
MEMBERS = st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=8)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(queues=QUEUES, members=MEMBERS)
@REPEATABLE
def test_each_queue_has_exactly_one_owner(
    strategy: AllocateStrategy, queues: set[MessageQueue], members: set[str]
) -> None:
    shares = [allocate(strategy, queues, members, member) for member in members]
    assert sum(map(len, shares)) == len(queues)
    assert frozenset().union(*shares) == queues


@pytest.mark.parametrize("strategy", EVEN)
@given(queues=QUEUES, members=MEMBERS)
@REPEATABLE
def test_shares_differ_by_one_at_most(strategy: AllocateStrategy, queues: set[MessageQueue], members: set[str]) -> None:
    sizes = [len(allocate(strategy, queues, members, member)) for member in members]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(queues=st.lists(st.sampled_from([MessageQueue("T", "a", i) for i in range(9)])), data=st.data())
@REPEATABLE
def test_input_order_and_repetition_do_not_matter(
    strategy: AllocateStrategy, queues: list[MessageQueue], data: st.DataObject
) -> None:
    members = ["a@1", "b@2", "c@3"]
    shuffled = data.draw(st.permutations([*members, "b@2"]))
    assert allocate(strategy, reversed(queues), shuffled, "b@2") == allocate(strategy, queues, members, "b@2")


@given(queues=QUEUES, members=MEMBERS)
@REPEATABLE
def test_leaving_member_moves_only_its_queues(queues: set[MessageQueue], members: set[str]) -> None:
    leaver, *rest = sorted(members)
    for member in rest:
        before = allocate(allocate_consistent_hash, queues, members, member)
        assert before <= allocate(allocate_consistent_hash, queues, rest, member), leaver
