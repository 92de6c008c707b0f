"""Held pulls: taken once, by an arrival or their deadline, within the memory budget."""

from typing import cast

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq.broker.limits.peers import MemoryBudget
from triomq.broker.network.connection import Connection
from triomq.broker.processors.pull_hold import Pull, PullHold
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.filters.filter_types import EVERYTHING
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.consume_queue.consume_queue import ConsumeQueue


class Queue:
    """The part of a consume queue that the hold uses."""

    def __init__(self) -> None:
        self.on_arrival = None


class Peer:
    closed = False


def queue() -> ConsumeQueue:
    return cast(ConsumeQueue, Queue())


def pull(of: ConsumeQueue, *, deadline: float = 15.0, queue_offset: int = 0, connection: Peer | None = None) -> Pull:
    header = PullMessageRequestHeader("G", "T", 0, queue_offset, 32, 2, 0, 15_000, 0)  # type: ignore[arg-type]  # NewType
    request = RemotingCommand(11)
    return Pull(
        cast(Connection, connection or Peer()), request, header, EVERYTHING, of, queue_offset, deadline=deadline
    )


def arrive(at: ConsumeQueue) -> None:
    if at.on_arrival is not None:
        at.on_arrival(at)


@pytest.fixture
def hold() -> PullHold:
    return PullHold(MemoryBudget(1024**3, 1024**2, BrokerStatistics(0)), filtered_hold_s=5.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("hold", "hold", "arrive", "take_ready", "take_expired", "close", "forget")),
            st.integers(0, 2),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
@example([("hold", 0, 0), ("arrive", 0, 0), ("take_expired", 0, 0), ("hold", 0, 0), ("take_ready", 0, 0)])
def test_each_pull_is_taken_once(steps: list[tuple[str, int, int]]) -> None:
    """By an arrival, its deadline or the end of its queue, whichever comes first; those of closed peers are dropped."""
    hold = PullHold(MemoryBudget(1024**3, 1024**2, BrokerStatistics(0)), filtered_hold_s=5.0)
    queues, peers = [queue() for _ in range(3)], [Peer() for _ in range(3)]
    held: dict[Pull, ConsumeQueue] = {}
    arrived: set[ConsumeQueue] = set()

    def take(wanted: list[Pull]) -> list[Pull]:
        for each in wanted:
            del held[each]
        return [each for each in wanted if not each.connection.closed]

    for action, which, number in steps:
        of = queues[which]
        if action == "hold":
            each = pull(of, deadline=number, connection=peers[number % 3])
            hold.hold(each)
            held[each] = of
        elif action == "arrive":
            arrived |= {of} if of in held.values() else set()
            arrive(of)
        elif action == "take_ready":
            wanted = take([each for each in held if held[each] in arrived])
            assert sorted(hold.take_ready(), key=id) == sorted(wanted, key=id)
            arrived.clear()
        elif action == "take_expired":
            due = sorted((each for each in held if each.deadline <= number), key=lambda each: each.deadline)
            assert hold.take_expired(number) == take(due)
            arrived &= set(held.values())
        elif action == "close":
            peers[which].closed = True
        else:
            assert hold.forget_queue(of) == take([each for each in held if held[each] is of])
            arrived.discard(of)
        assert hold.held == len(held)
        assert [each.on_arrival is not None for each in queues] == [each in held.values() for each in queues]


async def test_filtered_pull_is_answered_early_within_its_deadline(hold: PullHold, autojump_clock: MockClock) -> None:
    now = trio.current_time()
    patient, hasty = pull(queue(), deadline=now + 60), pull(queue(), deadline=now + 1)
    hold.hold_again(patient, 1)
    hold.hold_again(hasty, 1)
    assert (patient.queue_offset, patient.header.queue_offset) == (1, 0)
    assert [each.header for each in hold.take_expired(now + 1)] == [hasty.header]
    assert [each.header for each in hold.take_expired(now + 5)] == [patient.header]


async def test_held_pulls_take_half_of_the_budget() -> None:
    budget = MemoryBudget(5000, 1024**2, BrokerStatistics(0))
    hold = PullHold(budget, filtered_hold_s=5.0)
    of = queue()
    hold.hold(pull(of))
    assert not hold.is_full()
    again = pull(of)
    hold.hold(again)
    assert hold.is_full()
    arrive(of)
    hold.take_ready()
    assert not hold.is_full()
    hold.hold_again(again, 0)
    assert budget.reserved_bytes
    hold.take_expired(1e9)
    assert budget.reserved_bytes == 0


async def test_held_pull_frees_fields_its_answer_needs_not(hold: PullHold) -> None:
    held = pull(queue())
    held.command = RemotingCommand(11, 7, 0, {"subscription": "x" * 1000}, bytes(1000))
    held.header.subscription = "x" * 1000
    hold.hold(held)
    assert held.command.content_bytes == 0
    assert held.command.reply().opaque == 7
    assert held.held_bytes > 16_000  # its filter


async def test_answered_pulls_do_not_pile_up(hold: PullHold) -> None:
    """A consumer that is served at once every time leaves nothing behind, although its pulls expire much later."""
    of = queue()
    for _ in range(5_000):
        hold.hold(pull(of, deadline=1e9))
        arrive(of)
        hold.take_ready()
    assert len(hold._deadlines) < 1_000


async def test_cleanup_keeps_deadlines_of_undecided_pulls(hold: PullHold, autojump_clock: MockClock) -> None:
    """Both are taken; holding the first again cleans up while the second is still undecided."""
    of, busy = queue(), queue()
    deadline = trio.current_time() + 60
    for each in (pull(of, deadline=deadline), pull(of, deadline=deadline)):
        hold.hold(each)
    for _ in range(300):
        hold.hold(pull(busy, deadline=deadline))
    arrive(busy)
    assert len(hold.take_ready(300)) == 300
    arrive(of)
    first, second = hold.take_ready()
    hold.hold_again(first, 1)
    hold.hold_again(second, second.queue_offset)
    assert hold.take_expired(deadline) == [first, second]


async def test_sweep_sleeps_until_a_pull_is_held(hold: PullHold, autojump_clock: MockClock) -> None:
    swept: list[float] = []

    async def sweep() -> None:
        await hold.wait_sweep()
        swept.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweep)
        with trio.move_on_after(3600):
            await trio.sleep_forever()
        assert swept == []
        began = trio.current_time()
        hold.hold(pull(queue(), deadline=began + 1))
        await wait_all_tasks_blocked()
    assert swept[0] - began < 1


async def test_many_ready_pulls_are_taken_in_parts(hold: PullHold) -> None:
    crowded, other = queue(), queue()
    pulls = [pull(crowded, deadline=number // 4) for number in range(10)]
    for each in pulls:
        hold.hold(each)
    arrive(crowded)
    assert hold.take_ready(4) == pulls[:4]
    hold.hold(later := pull(other))
    arrive(other)
    assert hold.take_ready(4) == [later, *pulls[4:7]]
    assert hold.take_expired(2, most=1) == [pulls[7]]  # although it is ready
    await hold.wait_ready()
    assert hold.take_ready(4) == pulls[8:]
    assert (hold.take_ready(), hold.held) == ([], 0)
    with trio.move_on_after(0) as waiting:
        await hold.wait_ready()
    assert waiting.cancelled_caught
