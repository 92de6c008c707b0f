"""Orderly consumption with a test clock: order, the tables of results, rests, limits."""

import threading

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.consumer.fake_cluster import offsets_of
from tests.unit.client.consumer.service_bench import QUEUE, SUSPEND, OrderlyBench, Script
from triomq.client.consumer.config import OrderlyContext
from triomq.client.consumer.processing.process_queue import ProcessQueue, QueueLock
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


@pytest.mark.parametrize(("suspend_s", "expected_s"), [(None, 1.0), (3.0, 3.0), (0.005, 0.01), (60.0, 30.0)], ids=str)
async def test_failed_message_is_redelivered_in_order(
    suspend_s: float | None, expected_s: float, autojump_clock: MockClock
) -> None:
    """C.2 scenario 51."""
    script = Script([SUSPEND], suspend_s=suspend_s)
    bench = OrderlyBench(on_messages=script)
    async with bench.running():
        bench.pull(0, 1)
        await bench.consumed(2)
    assert script.calls == [[0], [0], [1]]
    assert script.times[1] - script.times[0] == pytest.approx(expected_s, abs=0.002)


@pytest.mark.parametrize(("offsets", "refused"), [((0,), 0), ((0, 1, 2), 1)], ids=["alone", "in a batch"])
async def test_unstorable_dead_letter_alone_is_redelivered(
    autojump_clock: MockClock, offsets: tuple[int, ...], refused: int
) -> None:
    """C.4 (4): Java would make dead letters of the others once more."""
    script = Script([SUSPEND] * 2)
    bench = OrderlyBench(on_messages=script, batch_max_size=3, orderly_max_reconsume_times=0)
    bench.sender.refused = {refused}
    async with bench.running():
        bench.pull(*offsets)
        await bench.until(lambda: len(script.calls) == 1)
        await trio.sleep(0.5)
        assert bench.queue.consumed_offset() == refused
        bench.sender.refused = set()
        await bench.consumed(len(offsets))
    assert script.calls == [[*offsets], [refused]]
    assert bench.sender.dead == [*(offset for offset in offsets if offset != refused), refused]


@pytest.mark.parametrize("ending", ["closing", "dropped", "lock", "stop", "resize"])
async def test_worker_stops_when_queue_or_time_ends(ending: str, autojump_clock: MockClock) -> None:
    begun: list[int] = []

    async def on_message(message: MessageExt) -> None:
        begun.append(message.queue_offset)
        await trio.sleep(10)

    bench = OrderlyBench(on_message=on_message, max_concurrency=2)
    bench.queue.lock = QueueLock(0.0, 1_000.0)
    async with bench.running():
        bench.pull(0, 1, 2)
        await trio.sleep(15)
        match ending:
            case "closing":
                bench.queue.closing = True
            case "dropped":
                bench.queue.dropped = True
            case "lock":
                bench.queue.lock.ends = trio.current_time()
            case "stop":
                bench.service.stop()
            case "resize":
                # the busy worker ends, the other one continues, in order
                bench.service.slots.sort(key=lambda slot: len(slot.messages))
                bench.service.resize(1)
        await trio.sleep(100)
        assert bench.service.in_flight() == 0
    if ending == "resize":
        assert (begun, bench.queue.consumed_offset()) == ([0, 1, 2], 3)
    else:
        assert (begun, bench.queue.consumed_offset()) == ([0, 1], 1 if ending == "dropped" else 2)


async def test_queues_run_in_parallel_each_in_order(autojump_clock: MockClock) -> None:
    running: set[int] = set()
    seen: dict[int, list[int]] = {queue_id: [] for queue_id in range(4)}
    most = 0
    queues = [ProcessQueue(MessageQueue("T", "broker-a", queue_id)) for queue_id in range(4)]

    async def on_messages(messages: list[MessageExt], context: OrderlyContext) -> None:
        nonlocal most
        queue_id = context.queue.queue_id
        assert queue_id not in running
        running.add(queue_id)
        most = max(most, len(running))
        await trio.sleep(0.01 * (1 + (messages[0].queue_offset + queue_id) % 3))
        running.discard(queue_id)
        seen[queue_id] += offsets_of(messages)

    bench = OrderlyBench(on_messages=on_messages, batch_max_size=2)
    async with bench.running():
        for offset in range(10):
            for queue in queues:
                bench.pull(offset, queue=queue)
            await trio.sleep(0.004)
        await bench.until(lambda: all(queue.consumed_offset() == 10 for queue in queues))
    assert list(seen.values()) == [list(range(10))] * 4
    assert most == 4


async def test_handler_is_not_called_without_a_renewed_lock(autojump_clock: MockClock) -> None:
    """C.2 scenario 56."""
    script = Script([])
    bench = OrderlyBench(on_messages=script)
    bench.queue.lock = QueueLock(trio.current_time(), trio.current_time() + 30)
    async with bench.running():
        bench.pull(0)
        await bench.consumed(1)
        await trio.sleep(30)
        bench.pull(1)
        await trio.sleep(100)
        assert script.calls == [[0]]
        bench.queue.lock.ends = trio.current_time() + 30
        bench.service.submit(bench.queue, [])
        await bench.consumed(2)


async def test_reassigned_queue_waits_for_its_previous_handler(autojump_clock: MockClock) -> None:
    running = 0

    async def on_message(_message: MessageExt) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await trio.sleep(5)
        running -= 1

    bench = OrderlyBench(on_message=on_message)
    async with bench.running():
        bench.pull(7)
        await trio.sleep(1)
        bench.queue.dropped = True
        bench.queue = ProcessQueue(QUEUE)
        bench.pull(0)
        await bench.consumed(1)


async def consume_all(bench: OrderlyBench, *offsets: int) -> None:
    """Return when the process queue is empty."""
    done = trio.Event()
    bench.queue.on_removal = lambda: None if bench.queue.cached_messages else done.set()
    async with bench.running():
        bench.pull(*offsets)
        with trio.fail_after(60):
            await done.wait()


async def test_plain_function_keeps_order_in_a_thread() -> None:
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
