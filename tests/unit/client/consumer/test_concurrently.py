import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import make_message
from triomq.client.consumer.concurrently import TURN_S, ConcurrentService
from triomq.client.consumer.config import ConsumeContext, ConsumerConfig, ConsumeStatus
from triomq.client.consumer.handlers import Handler, OnMessage, OnMessages
from triomq.client.consumer.process_queue import ProcessQueue
from triomq.protocol.bodies import ConsumeResult
from triomq.protocol.message import MessageExt
from triomq.protocol.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


class Sender:
    """Notes what is sent back, and refuses while told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.refuses = False
        self.before: Callable[[], None] = lambda: None

    async def send(self, message: MessageExt, delay_level: int) -> bool:
        await trio.lowlevel.checkpoint()
        self.before()
        if not self.refuses:
            self.sent.append((message.queue_offset, delay_level))
        return not self.refuses


class Bench:
    """A service with one process queue."""

    def __init__(
        self, on_message: OnMessage | None = None, on_messages: OnMessages | None = None, **settings: float
    ) -> None:
        self.sender = Sender()
        config = ConsumerConfig(**settings)  # type: ignore[arg-type]  # names are checked by the class
        self.service = ConcurrentService(Handler.of(on_message, on_messages), self.sender, config)
        self.queue = ProcessQueue(QUEUE)

    def pull(self, *offsets: int) -> None:
        messages = [make_message(queue_offset) for queue_offset in offsets]
        self.queue.put(messages)
        self.service.submit(self.queue, messages)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[trio.Nursery, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.service.run)
            nursery.start_soon(self.service.maintain)
            yield nursery
            nursery.cancel_scope.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that becomes true by the removal of a message."""
        while not condition():
            changed = trio.Event()
            self.queue.on_removal = changed.set
            await changed.wait()

    async def consumed(self, queue_offset: int) -> None:
        await self.until(lambda: self.queue.consumed_offset() == queue_offset)


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


async def test_handlers_that_wait_run_side_by_side_up_to_the_limit(autojump_clock: MockClock) -> None:
    running = most = 0

    async def on_message(_message: MessageExt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1

    bench = Bench(on_message, max_concurrency=4)
    async with bench.running():
        bench.pull(*range(12))
        await wait_all_tasks_blocked()
        assert bench.service.in_flight() == bench.service.in_flight(bench.queue) == 4
        await bench.consumed(12)
        assert trio.current_time() == pytest.approx(3, abs=0.1)
    assert most == 4


async def test_a_slow_message_holds_the_offset_but_not_the_others(autojump_clock: MockClock) -> None:
    async def on_message(message: MessageExt) -> None:
        if message.queue_offset == 0:
            await trio.sleep(5)

    bench = Bench(on_message)
    async with bench.running():
        bench.pull(*range(10))
        await trio.sleep(1)
        assert bench.queue.consumed_offset() == 0
        assert bench.queue.cached_messages == 1
        await bench.consumed(10)


async def test_all_workers_together_leave_the_loop_to_others_after_one_turn(mock_clock: MockClock) -> None:
    gaps: list[float] = []

    async def on_message(_message: MessageExt) -> None:
        mock_clock.jump(0.001)  # busy

    bench = Bench(on_message)
    async with bench.running():
        bench.pull(*range(200))
        while bench.queue.cached_messages:
            before = trio.current_time()
            await trio.lowlevel.checkpoint()
            gaps.append(trio.current_time() - before)
    # a turn ends with the message that exceeds it; trio may run this task first in one pass and last in the next
    assert max(gaps) <= 2 * (TURN_S + 0.0015)
    assert sum(gaps) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_refused_and_failed_messages_are_sent_back(kind: str, caplog: pytest.LogCaptureFixture) -> None:
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
    assert record.getMessage() == "handler failed queue=T@broker-a:0 offset=2 messages=1 failures_before=0"
    assert record.exc_info is not None


async def test_a_message_that_cannot_be_sent_back_comes_again_and_holds_the_offset(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[float, int]] = []

    async def on_message(message: MessageExt) -> ConsumeStatus | None:
        seen.append((trio.current_time(), message.reconsume_times))
        bench.sender.refuses = len(seen) < 3
        return None if len(seen) == 3 else ConsumeStatus.RECONSUME_LATER

    bench = Bench(on_message)
    async with bench.running():
        bench.pull(7)
        await trio.sleep(1)
        assert bench.queue.consumed_offset() == 7
        await bench.consumed(8)
    assert [times for _, times in seen] == [0, 1, 2]
    assert [round(at) for at, _ in seen] == [0, 5, 10]


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
async def test_the_result_of_a_dropped_queue_moves_no_offset(kind: str) -> None:
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


async def test_stop_forgets_what_is_not_begun_and_lets_the_rest_end(autojump_clock: MockClock) -> None:
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


async def test_a_blocked_plain_function_does_not_hold_up_the_messages_behind_it() -> None:
    release = threading.Event()

    def on_message(message: MessageExt) -> None:
        if message.queue_offset == 0:
            release.wait(30)

    bench = Bench(on_message, max_concurrency=2)
    try:
        async with bench.running():
            bench.pull(*range(40))
            await bench.until(lambda: bench.queue.cached_messages == 1)
            assert bench.service.in_flight() == 1
            release.set()
            await bench.consumed(40)
    finally:
        release.set()


async def test_what_a_thread_finished_counts_when_it_is_abandoned() -> None:
    entered, release = threading.Event(), threading.Event()

    def on_message(message: MessageExt) -> None:
        if message.queue_offset == 2:
            entered.set()
            release.wait(30)

    bench = Bench(on_message, max_concurrency=1)
    bench.pull(0, 1, 2, 3)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.service.run)
            await trio.to_thread.run_sync(entered.wait)
            bench.service.stop()
            nursery.cancel_scope.cancel()
        assert bench.queue.consumed_offset() == 2
    finally:
        release.set()


async def test_a_handler_busy_too_long_has_its_message_sent_back_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_message(_message: MessageExt) -> ConsumeStatus:
        await trio.sleep(100)
        return ConsumeStatus.RECONSUME_LATER  # too late: it is stored again already

    bench = Bench(on_message, consume_timeout_s=30)
    async with bench.running():
        bench.pull(5)
        await bench.consumed(6)
        assert trio.current_time() == pytest.approx(30, abs=0.1)
        await trio.sleep(200)
    assert bench.sender.sent == [(5, 3)]
    assert not bench.service.expired
    assert "handler is busy for 30 s" in caplog.text


async def test_a_busy_handlers_result_counts_if_its_message_could_not_be_sent_back(
    autojump_clock: MockClock,
) -> None:
    async def on_message(_message: MessageExt) -> None:
        await trio.sleep(100)

    bench = Bench(on_message, consume_timeout_s=30)
    bench.sender.refuses = True
    async with bench.running():
        bench.pull(5)
        await bench.consumed(6)
        assert trio.current_time() == pytest.approx(100, abs=0.1)
    assert bench.queue.counters.succeeded == 1


async def test_a_message_whose_handler_ends_while_it_is_sent_back_in_vain_is_handled_again(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    async def on_message(_message: MessageExt) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await trio.sleep(31)

    bench = Bench(on_message, consume_timeout_s=30)
    bench.sender.refuses = True

    class SlowSender(Sender):
        async def send(self, message: MessageExt, delay_level: int) -> bool:
            await trio.sleep(5)
            return False

    bench.service._sender = SlowSender()
    async with bench.running():
        bench.pull(5)
        await bench.consumed(6)
    assert calls == 2


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (None, ConsumeResult.CR_SUCCESS),
        (ConsumeStatus.RECONSUME_LATER, ConsumeResult.CR_LATER),
        (ValueError("no"), ConsumeResult.CR_THROW_EXCEPTION),
    ],
)
async def test_direct_consumption_tells_the_result_and_moves_nothing(
    kind: str, outcome: ConsumeStatus | Exception | None, result: ConsumeResult
) -> None:
    def plain(_message: MessageExt) -> ConsumeStatus | None:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def asynchronous(message: MessageExt) -> ConsumeStatus | None:
        return plain(message)

    async def batch(messages: list[MessageExt], context: ConsumeContext) -> ConsumeStatus | None:
        assert context.queue == QUEUE
        return plain(messages[0])

    bench = Bench(on_messages=batch) if kind == "batch" else Bench(plain if kind == "sync" else asynchronous)
    told, remark = await bench.service.consume_directly(make_message(3), QUEUE)
    assert told is result
    assert remark == ("ValueError: no" if isinstance(outcome, Exception) else "")
    assert not bench.sender.sent


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
