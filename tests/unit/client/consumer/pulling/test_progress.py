from collections.abc import Callable

import trio
from trio.testing import wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE
from tests.unit.client.consumer.fake_cluster import make_message, offsets_of
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.pull_context import PollBuffer


def put(buffer: PollBuffer, process_queue: ProcessQueue, *offsets: int) -> None:
    messages = [make_message(offset) for offset in offsets]
    process_queue.put(messages)
    buffer.submit(process_queue, messages)


async def test_units_of_lost_queues_are_dropped() -> None:
    buffer, one, two = PollBuffer(), ProcessQueue(QUEUE), ProcessQueue(QUEUE)
    put(buffer, one, 0)
    put(buffer, two, 7)
    one.dropped = True
    assert offsets_of(buffer.take()) == [7]
    assert one.cached_messages == 1


async def test_unpolled_units_are_dropped_with_their_queues() -> None:
    buffer, kept = PollBuffer(), ProcessQueue(QUEUE)
    put(buffer, kept, 7)
    for _ in range(2_000):
        given_up = ProcessQueue(QUEUE)
        put(buffer, given_up, 0)
        given_up.dropped = True
    assert len(buffer._units) < 600
    assert offsets_of(buffer.take()) == [7]
    assert buffer.take() == []


async def test_waiter_wakes_with_the_first_unit() -> None:
    buffer, process_queue = PollBuffer(), ProcessQueue(QUEUE)
    woken: list[int] = []

    async def wait(done: Callable[[], None]) -> None:
        await buffer.wait()
        done()

    async with trio.open_nursery() as nursery:
        for round_ in range(2):
            nursery.start_soon(wait, lambda round_=round_: woken.append(round_))
            await wait_all_tasks_blocked()
            assert len(woken) == round_
            put(buffer, process_queue, round_)
            await wait_all_tasks_blocked()
            assert len(woken) == round_ + 1
            assert buffer.take()
