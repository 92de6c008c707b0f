import logging
import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import make_message
from tests.unit.client.consumer.service_bench import QUEUE, Bench
from triomq.client.consumer.config import ConsumeContext, ConsumeStatus
from triomq.client.consumer.handlers import OnMessage
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


async def test_consumed_messages_move_the_offset(autojump_clock: MockClock) -> None:
    seen: list[int] = []

    async def on_message(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    bench = Bench(on_message)
    async with bench.running():
        bench.pull(10, 11, 12)
        await bench.consumed(13)
    assert seen == [10, 11, 12]
    assert bench.queue.counters.succeeded == 3
    assert not bench.sender.sent


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


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
async def test_the_result_of_a_dropped_queue_moves_no_offset(kind: str) -> None:
    """C.2 scenario 49."""
    ended = 0

    def drop() -> None:
        nonlocal ended
        bench.queue.dropped = True
        ended += 1

    def plain(_message: MessageExt) -> None:
        drop()

    async def asynchronous(_message: MessageExt) -> ConsumeStatus:
        drop()
        return ConsumeStatus.RECONSUME_LATER

    async def batch(_messages: list[MessageExt], _context: ConsumeContext) -> None:
        drop()

    handler: OnMessage = plain if kind == "sync" else asynchronous
    bench = Bench(on_messages=batch) if kind == "batch" else Bench(handler, max_concurrency=1)
    bench.pull(0, 1, 2)
    bench.service.stopped = True  # the workers end when there is nothing left
    await bench.service.run()
    assert ended == 1
    assert bench.queue.consumed_offset() == 0
    assert (bench.queue.counters.succeeded, bench.queue.counters.failed) == (0, 0)
    assert not bench.sender.sent


async def test_messages_of_a_dropped_queue_are_not_begun(autojump_clock: MockClock) -> None:
    seen: list[int] = []

    async def on_message(message: MessageExt) -> None:
        seen.append(message.queue_offset)
        await trio.sleep(1)

    bench = Bench(on_message, max_concurrency=1)
    async with bench.running():
        bench.pull(0, 1, 2)
        await wait_all_tasks_blocked()
        bench.queue.dropped = True
        await trio.sleep(5)
    assert seen == [0]


async def test_a_cancelled_handler_consumed_nothing(autojump_clock: MockClock) -> None:
    async def on_message(_message: MessageExt) -> None:
        await trio.sleep(10)

    bench = Bench(on_message)
    bench.pull(0)
    with trio.move_on_after(1):
        await bench.service.run()
    assert bench.queue.consumed_offset() == 0


async def test_keyboard_interrupt_of_a_handler_is_not_swallowed() -> None:
    async def on_message(_message: MessageExt) -> None:
        raise KeyboardInterrupt

    bench = Bench(on_message)
    bench.pull(0)
    with pytest.RaisesGroup(KeyboardInterrupt):
        await bench.service.run()
    assert bench.queue.consumed_offset() == 0


async def test_a_batch_holds_neighbours_of_one_queue(autojump_clock: MockClock) -> None:
    batches: list[tuple[MessageQueue, list[int]]] = []

    async def on_messages(messages: list[MessageExt], context: ConsumeContext) -> None:
        batches.append((context.queue, [message.queue_offset for message in messages]))
        messages.clear()  # theirs

    bench = Bench(on_messages=on_messages, batch_max_size=3, max_concurrency=1)
    other = ProcessQueue(QUEUE._replace(queue_id=1))
    async with bench.running():
        bench.pull(0, 1, 2, 3)
        messages = [make_message(9)]
        other.put(messages)
        bench.service.submit(other, messages)
        await bench.consumed(4)
        await wait_all_tasks_blocked()
    assert batches == [(QUEUE, [0, 1, 2]), (QUEUE, [3]), (other.queue, [9])]
    assert other.consumed_offset() == 10


async def test_ack_index_tells_which_messages_of_a_batch_succeeded(autojump_clock: MockClock) -> None:
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


@pytest.mark.parametrize("ack_index", [-1, -5])
async def test_a_negative_ack_index_means_that_none_succeeded(autojump_clock: MockClock, ack_index: int) -> None:
    async def on_messages(_messages: list[MessageExt], context: ConsumeContext) -> None:
        context.ack_index = ack_index

    bench = Bench(on_messages=on_messages)
    async with bench.running():
        bench.pull(0, 1)
        await bench.consumed(2)
    assert bench.sender.sent == [(0, 0), (1, 0)]


async def test_a_batch_that_fails_is_sent_back_whole(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """C.2 scenario 42, the client's part: the level is the handler's choice."""

    async def on_messages(_messages: list[MessageExt], context: ConsumeContext) -> None:
        context.delay_level = -1
        raise ValueError

    bench = Bench(on_messages=on_messages)
    async with bench.running():
        bench.pull(0, 1)
        await bench.consumed(2)
    assert bench.sender.sent == [(0, -1), (1, -1)]
    assert "messages=2" in caplog.text


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


async def test_a_plain_batch_function_runs_in_a_thread() -> None:
    threads: set[int] = set()

    def on_messages(messages: list[MessageExt], context: ConsumeContext) -> None:
        threads.add(threading.get_ident())
        context.ack_index = len(messages) - 2

    bench = Bench(on_messages=on_messages)
    async with bench.running():
        bench.pull(0, 1, 2)
        await bench.consumed(3)
    assert threading.get_ident() not in threads
    assert bench.sender.sent == [(2, 0)]


async def test_blocked_function_does_not_delay_following_messages() -> None:
    release = threading.Event()

    def on_message(message: MessageExt) -> None:
        if message.queue_offset == 0:
            release.wait(30)

    bench = Bench(on_message, max_concurrency=2)
    try:
        async with bench.running():
            bench.pull(*range(40))
            await bench.until(lambda: bench.queue.cached_messages == 1)
            while bench.service.in_flight() != 1:  # noqa: ASYNC110  # the message may be between two workers for a moment
                await trio.sleep(0.001)
            release.set()
            await bench.consumed(40)
    finally:
        release.set()


async def test_abandoned_thread_keeps_finished_work_and_starts_none() -> None:
    entered, release = threading.Event(), threading.Event()

    def on_message(message: MessageExt) -> None:
        if message.queue_offset == 3:
            entered.set()
            release.wait(30)

    bench = Bench(on_message, max_concurrency=1)
    bench.pull(*range(7))  # the thread takes 1, 2, then 4 messages
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.service.run)
            await trio.to_thread.run_sync(entered.wait)
            (slot,) = bench.service.slots
            assert len(slot.share) == 3
            nursery.cancel_scope.cancel()
        assert bench.queue.consumed_offset() == 3
        assert not slot.share
    finally:
        release.set()


async def test_stop_leaves_no_hole_before_what_threads_have_begun() -> None:
    """C.2 scenario 65: what was handled behind a hole would come again."""
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


async def test_no_message_is_logged_when_all_goes_well(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_message(_message: MessageExt) -> None: ...

    caplog.set_level(logging.DEBUG)
    bench = Bench(on_message)
    async with bench.running():
        bench.pull(*range(50))
        await bench.consumed(50)
    assert not caplog.records


async def test_a_batch_of_a_dropped_queue_is_not_begun(autojump_clock: MockClock) -> None:
    batches: list[int] = []

    async def on_messages(messages: list[MessageExt], _context: ConsumeContext) -> None:
        batches.append(len(messages))

    bench = Bench(on_messages=on_messages)
    bench.pull(0, 1)
    bench.queue.dropped = True
    bench.service.stopped = True
    await bench.service.run()
    assert not batches


async def test_thread_returns_unstarted_messages_then_takes_fewer(mock_clock: MockClock) -> None:
    begun: list[tuple[int, int]] = []

    def on_message(message: MessageExt) -> None:
        begun.append((message.queue_offset, len(bench.service.slots[0].share)))
        if message.queue_offset >= 3:
            mock_clock.jump(0.025)  # longer than a thread goes on

    bench = Bench(on_message, max_concurrency=1)
    bench.pull(*range(7))
    bench.service.stopped = True  # the worker ends when there is nothing left
    await bench.service.run()
    assert begun == [(0, 0), (1, 1), (2, 0), (3, 3), (4, 0), (5, 0), (6, 0)]
