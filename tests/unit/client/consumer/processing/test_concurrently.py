import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import make_message
from tests.unit.client.consumer.service_bench import QUEUE, Bench, Sender, consume_beside
from triomq.client.consumer.config import ConsumeContext, ConsumeStatus
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.processing.worker_pool import TURN_S
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.record.message import MessageExt


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


async def test_all_workers_yield_the_loop_after_one_turn(mock_clock: MockClock) -> None:
    async def on_message(_message: MessageExt) -> None:
        mock_clock.jump(0.001)  # busy

    gaps = await consume_beside(Bench(on_message), 200)
    # a turn ends with the message that exceeds it; trio may run this task first in one pass and last in the next
    assert max(gaps) <= 2 * (TURN_S + 0.0015)
    assert sum(gaps) == pytest.approx(0.2)


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


async def test_message_is_handled_again_after_failed_send_back(
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


async def test_batch_sent_back_while_busy_is_not_settled_twice(autojump_clock: MockClock) -> None:
    async def on_messages(_messages: list[MessageExt], context: ConsumeContext) -> None:
        context.ack_index = 0
        await trio.sleep(100)

    bench = Bench(on_messages=on_messages, consume_timeout_s=30)
    async with bench.running():
        bench.pull(5, 6)
        await bench.consumed(7)
        await trio.sleep(200)
    assert bench.sender.sent == [(5, 3), (6, 3)]
    assert not bench.service.expired
    assert (bench.queue.counters.succeeded, bench.queue.counters.failed) == (0, 0)


async def test_batches_leave_the_loop_to_others_as_well(mock_clock: MockClock) -> None:
    async def on_messages(_messages: list[MessageExt], _context: ConsumeContext) -> None:
        mock_clock.jump(0.004)  # busy

    gaps = await consume_beside(Bench(on_messages=on_messages, batch_max_size=1), 50)
    assert max(gaps) <= 2 * (TURN_S + 0.0045)


async def test_sending_back_stops_when_the_queue_is_given_up(autojump_clock: MockClock) -> None:
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


async def test_stop_discards_messages_waiting_for_redelivery(autojump_clock: MockClock) -> None:
    calls = 0

    async def on_message(_message: MessageExt) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        return ConsumeStatus.RECONSUME_LATER

    bench = Bench(on_message)
    bench.sender.refuses = True
    async with bench.running():
        bench.pull(0)
        await trio.sleep(1)
        bench.service.stop()
        await trio.sleep(60)
    assert calls == 1
    assert bench.queue.consumed_offset() == 0
