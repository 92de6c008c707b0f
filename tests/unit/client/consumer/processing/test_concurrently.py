import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.service_bench import QUEUE, Bench
from triomq.client.consumer.config import ConsumeContext, ConsumeStatus
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.record.message import MessageExt


async def test_failed_send_back_redelivers_locally_and_holds_offset(
    autojump_clock: MockClock,
) -> None:
    """C.2 scenario 48."""
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


async def test_overlong_handler_has_its_message_sent_back_once(
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
    assert "handler runs for too long, its message is sent back seconds=30" in caplog.text


async def test_overlong_handler_result_counts_if_send_back_failed(
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
