import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.service_bench import QUEUE, Bench
from triomq.client.consumer.config import ConsumeContext, ConsumeStatus
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


async def test_failed_send_back_redelivers_locally_and_holds_offset(
    autojump_clock: MockClock,
) -> None:
    """C.2 scenario 48."""
    seen: list[tuple[float, int]] = []

    async def on_message(message: MessageExt) -> ConsumeStatus | None:
        seen.append((trio.current_time(), message.reconsume_times))
        bench.sender.refused = {7} if len(seen) < 3 else set()
        return None if len(seen) == 3 else ConsumeStatus.RECONSUME_LATER

    bench = Bench(on_message)
    async with bench.running():
        bench.pull(7)
        await trio.sleep(1)
        assert bench.queue.consumed_offset() == 7
        await bench.consumed(8)
    assert [times for _, times in seen] == [0, 1, 2]
    assert [round(at) for at, _ in seen] == [0, 5, 10]


async def test_dropped_queue_discards_pending_even_if_handlers_hang(autojump_clock: MockClock) -> None:
    handled: list[int] = []

    async def on_message(message: MessageExt) -> None:
        await trio.sleep(60)
        handled.append(message.queue_offset)

    bench = Bench(on_message, max_concurrency=1)
    async with bench.running():
        bench.pull(1, 2)
        await wait_all_tasks_blocked()
        kept = bench.queue
        for _ in range(20):
            bench.queue = ProcessQueue(QUEUE)
            bench.pull(*range(1_000, 2_000))
            bench.queue.dropped = True
        assert len(bench.service.pending) < 6_000
        bench.queue = kept
        await bench.consumed(3)
    assert handled == [1, 2]


async def test_stop_drops_waiting_messages_and_finishes_begun_ones(autojump_clock: MockClock) -> None:
    async def on_message(_message: MessageExt) -> None:
        await trio.sleep(2)

    bench = Bench(on_message, max_concurrency=2)
    bench.pull(0, 1, 2, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.service.run)
        await wait_all_tasks_blocked()
        bench.service.stop()
        bench.pull(4)
    assert trio.current_time() == pytest.approx(2)
    assert bench.queue.consumed_offset() == 2


@pytest.mark.parametrize("is_refused", [False, True])
async def test_overlong_handler_has_its_message_sent_back_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, is_refused: bool
) -> None:
    """Its late result is ignored, as the message is stored again; but counts if that was refused."""

    async def on_message(_message: MessageExt) -> ConsumeStatus:
        await trio.sleep(100)
        return ConsumeStatus.SUCCESS if is_refused else ConsumeStatus.RECONSUME_LATER

    bench = Bench(on_message, consume_timeout_s=30)
    bench.sender.refused = {5} if is_refused else set()
    async with bench.running():
        bench.pull(5)
        await bench.consumed(6)
        assert trio.current_time() == pytest.approx(100 if is_refused else 30, abs=0.1)
        await trio.sleep(200)
    assert bench.sender.sent == ([] if is_refused else [(5, 3)])
    assert bench.queue.counters.succeeded == is_refused
    assert not bench.service.expired
    assert "handler runs for too long, its message is sent back seconds=30" in caplog.text


async def test_sending_back_stops_with_the_queue(autojump_clock: MockClock) -> None:
    async def on_messages(_messages: list[MessageExt], _context: ConsumeContext) -> ConsumeStatus:
        return ConsumeStatus.RECONSUME_LATER

    bench = Bench(on_messages=on_messages)

    def drop() -> None:
        bench.queue.dropped = True

    bench.sender.before = drop
    bench.pull(0, 1, 2)
    bench.service.stopped = True
    await bench.service.run()
    assert bench.sender.sent == [(0, 0)]
    assert bench.queue.consumed_offset() == 0


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_refused_and_failed_messages_are_sent_back(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """C.2 scenario 40, the client's part; a handler that returns nothing has succeeded here."""

    def plain(message: MessageExt) -> ConsumeStatus | None:
        if message.queue_offset == 1:
            return ConsumeStatus.RECONSUME_LATER
        if message.queue_offset == 2:
            raise ValueError("no")
        return ConsumeStatus.SUCCESS if message.queue_offset else None

    async def asynchronous(message: MessageExt) -> ConsumeStatus | None:
        return plain(message)

    bench = Bench(plain if kind == "sync" else asynchronous)
    async with bench.running():
        bench.pull(0, 1, 2, 3)
        await bench.consumed(4)
    assert sorted(bench.sender.sent) == [(1, 0), (2, 0)]
    assert (bench.queue.counters.succeeded, bench.queue.counters.failed) == (2, 2)
    (record,) = caplog.records
    assert record.getMessage() == (
        "handler raised group=G topic=T queue_id=0 offset=2 message_id=7F00000100002A9F00000000000007D0 "
        "reconsume_times=0 messages=1 next=they come again after a delay, too often failed ones become dead letters"
    )
    assert record.levelname == "WARNING"
    assert record.exc_info is not None


async def test_a_batch_holds_neighbours_of_one_queue(autojump_clock: MockClock) -> None:
    batches: list[tuple[MessageQueue, list[int]]] = []

    async def on_messages(messages: list[MessageExt], context: ConsumeContext) -> None:
        batches.append((context.queue, [message.queue_offset for message in messages]))
        messages.clear()  # theirs

    bench = Bench(on_messages=on_messages, batch_max_size=3, max_concurrency=1)
    other = ProcessQueue(QUEUE._replace(queue_id=1))
    async with bench.running():
        bench.pull(0, 1, 2, 3)
        bench.pull(9, queue=other)
        await bench.consumed(4)
        await wait_all_tasks_blocked()
    assert batches == [(QUEUE, [0, 1, 2]), (QUEUE, [3]), (other.queue, [9])]
    assert other.consumed_offset() == 10


async def test_ack_index_splits_a_batch(autojump_clock: MockClock) -> None:
    """C.2 scenario 43."""

    async def on_messages(_messages: list[MessageExt], context: ConsumeContext) -> None:
        context.ack_index = 1
        context.delay_level = 2

    bench = Bench(on_messages=on_messages)
    async with bench.running():
        bench.pull(*range(6))
        await bench.consumed(6)
    assert bench.sender.sent == [(2, 2), (3, 2), (4, 2), (5, 2)]
    assert (bench.queue.counters.succeeded, bench.queue.counters.failed) == (2, 4)


async def test_plain_functions_run_in_threads_and_share_hops() -> None:
    threads: set[int] = set()

    def on_message(_message: MessageExt) -> None:
        threads.add(threading.get_ident())

    bench = Bench(on_message, max_concurrency=2)
    async with bench.running():
        bench.pull(*range(200))
        await bench.consumed(200)
    assert threading.get_ident() not in threads
    assert bench.queue.counters.succeeded == 200


async def test_abandoned_thread_keeps_finished_work_and_starts_none() -> None:
    entered, release = threading.Event(), threading.Event()

    def on_message(message: MessageExt) -> None:
        if message.queue_offset == 3:
            entered.set()
            release.wait(30)

    bench = Bench(on_message, max_concurrency=1)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.service.run)
            await wait_all_tasks_blocked()
            (slot,) = bench.service.slots
            slot.share_limit = 8
            bench.pull(*range(7))
            await trio.to_thread.run_sync(entered.wait)
            assert len(slot.share) == 3
            nursery.cancel_scope.cancel()
        assert bench.queue.consumed_offset() == 3
        assert not slot.share
    finally:
        release.set()


async def test_stop_leaves_no_hole_before_begun_messages() -> None:
    """C.2 scenario 65: messages handled behind a hole would be redelivered."""
    begun: list[int] = []
    entered, release = threading.Semaphore(0), threading.Event()

    def on_message(message: MessageExt) -> None:
        begun.append(message.queue_offset)
        if message.queue_offset in (0, 8):
            entered.release()
            release.wait(30)

    bench = Bench(on_message, max_concurrency=2)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.service.run)
            await wait_all_tasks_blocked()
            for slot in bench.service.slots:
                slot.share_limit = 8
            bench.pull(*range(16))  # the first worker takes 8 messages, the second one half of the others
            for _ in range(2):
                await trio.to_thread.run_sync(entered.acquire)
            assert sorted(begun) == [0, 8]
            bench.service.stop()
            release.set()
    finally:
        release.set()
    assert sorted(begun) == [*range(9)]
    assert bench.queue.consumed_offset() == 9


async def test_thread_returns_unstarted_messages_then_takes_fewer(mock_clock: MockClock) -> None:
    begun: list[tuple[int, int]] = []

    def on_message(message: MessageExt) -> None:
        begun.append((message.queue_offset, len(bench.service.slots[0].share)))
        if message.queue_offset >= 3:
            mock_clock.jump(0.025)  # longer than a thread's share

    bench = Bench(on_message, max_concurrency=1)
    bench.pull(*range(7))
    bench.service.stopped = True  # the worker ends when the queue is empty
    await bench.service.run()
    assert begun == [(0, 0), (1, 1), (2, 0), (3, 3), (4, 0), (5, 0), (6, 0)]
