"""Orderly consumption by plain functions, in threads; and how the loop is shared."""

import threading
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.orderly_bench import SUSPEND, OrderlyBench
from tests.unit.client.consumer.service_bench import consume_beside
from triomq.client.consumer.config import ConsumeStatus
from triomq.client.consumer.processing.worker_pool import TURN_S
from triomq.protocol.record.message import MessageExt


async def consume_all(bench: OrderlyBench, *offsets: int) -> None:
    """Return when the process queue is empty."""
    done = trio.Event()
    bench.queue.on_removal = lambda: None if bench.queue.cached_messages else done.set()
    async with bench.running():
        bench.pull(*offsets)
        with trio.fail_after(60):
            await done.wait()


async def test_plain_function_handles_messages_in_order_in_a_thread() -> None:
    seen: list[int] = []
    threads: set[int] = set()

    def on_message(message: MessageExt) -> None:
        threads.add(threading.get_ident())
        seen.append(message.queue_offset)

    bench = OrderlyBench(on_message=on_message)
    await consume_all(bench, *range(300))
    assert seen == list(range(300))
    assert threading.get_ident() not in threads
    assert bench.queue.consumed_offset() == 300
    assert bench.queue.counters.succeeded == 300


async def test_failing_plain_function_suspends_its_queue() -> None:
    seen: list[int] = []
    failures: Iterator[ConsumeStatus | Exception] = iter([SUSPEND, ValueError("no")])

    def on_message(message: MessageExt) -> ConsumeStatus | None:
        seen.append(message.queue_offset)
        failure = next(failures, None) if message.queue_offset == 5 else None
        if isinstance(failure, Exception):
            raise failure
        return failure

    bench = OrderlyBench(on_message=on_message, suspend_queue_s=0.01)
    await consume_all(bench, *range(10))
    assert seen == [0, 1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9]
    assert (bench.queue.counters.succeeded, bench.queue.counters.failed) == (10, 2)


async def test_a_plain_batch_function_gets_neighbours() -> None:
    seen: list[list[int]] = []

    def on_messages(messages: list[MessageExt], _context: object) -> None:
        seen.append([message.queue_offset for message in messages])

    bench = OrderlyBench(on_messages=on_messages, batch_max_size=4)
    await consume_all(bench, *range(10))
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_thread_starts_nothing_more_in_a_dropped_queue() -> None:
    begun = threading.Event()
    may_end = threading.Event()
    seen: list[int] = []

    def on_message(message: MessageExt) -> None:
        seen.append(message.queue_offset)
        begun.set()
        assert may_end.wait(60)

    bench = OrderlyBench(on_message=on_message)
    async with bench.running():
        bench.pull(0, 1, 2)
        await trio.to_thread.run_sync(begun.wait, 60)
        bench.queue.closing = True
        may_end.set()
        with trio.fail_after(60):
            while bench.service.in_flight():
                await trio.lowlevel.checkpoint()
    assert seen == [0]
    assert bench.queue.consumed_offset() == 1


async def test_hung_thread_keeps_finished_work_when_abandoned() -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def on_message(message: MessageExt) -> None:
        if message.queue_offset == 3:
            hangs.set()
            assert go_on.wait(10)

    bench = OrderlyBench(on_message=on_message)
    try:
        async with bench.running():
            bench.pull(*range(10))
            await trio.to_thread.run_sync(hangs.wait)
        assert bench.queue.consumed_offset() == 3
        assert bench.queue.counters.succeeded == 3
    finally:
        go_on.set()


async def test_workers_leave_the_loop_to_others_after_one_turn(mock_clock: MockClock) -> None:
    async def on_message(_message: MessageExt) -> None:
        mock_clock.jump(0.001)  # busy, without waiting for anything

    gaps = await consume_beside(OrderlyBench(on_message=on_message), 200)
    assert max(gaps) <= 2 * (TURN_S + 0.0015)
    assert sum(gaps) == pytest.approx(0.2)
