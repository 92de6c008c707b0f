import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import pull_answer
from tests.unit.client.consumer.pull_bench import Bench
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import BrokerResponseError
from triomq.protocol.units import QueueOffset
from triomq.protocol.wire.command import RemotingCommand


async def test_an_offset_above_the_end_is_corrected_by_the_broker(
    autojump_clock: MockClock, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 5)
    async with bench.pulling(first_offset=500) as loop:
        await wait_all_tasks_blocked()
        assert bench.cluster.committed["G", bench.queue] == 5
        bench.cluster.send(bench.queue, b"y")
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [5]
        assert loop.statistics().next_pull_offset == 6
        assert bench.context.corrections == 1
    assert "offset out of range queue=T@broker-a:0 offset=500 min=0 max=5" in caplog.text


async def test_an_offset_below_the_start_is_corrected_by_the_broker(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.min_offsets[bench.queue] = 100
    bench.cluster.send(bench.queue, b"x")
    async with bench.pulling(first_offset=3):
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [100]


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [100, 101, 102]), ("latest", []), ("nearest", [])])
async def test_the_policy_decides_about_an_offset_out_of_range(
    autojump_clock: MockClock, bench: Bench, policy: str, expected: list[int]
) -> None:
    bench.cluster.min_offsets[bench.queue] = 100
    bench.cluster.send(bench.queue, b"x", b"y", b"z")
    async with bench.pulling(first_offset=500, out_of_range=policy):
        await wait_all_tasks_blocked()
        assert bench.service.offsets == expected


async def test_the_policy_raise_ends_the_consumer(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, b"x")
    bench.cluster.committed["G", bench.queue] = 500
    with pytest.RaisesGroup(pytest.RaisesExc(BrokerResponseError, match="offset 500 is not within 0 and 1")):
        async with bench.pulling(first_offset=500, out_of_range="raise"):
            await trio.sleep(1)
    assert bench.cluster.committed["G", bench.queue] == 500  # nothing moved it


async def test_running_handlers_end_before_a_correction_is_stored(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 32)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.busy = 1
        bench.service.consume(10)
        old = loop.process_queue
        loop.move(QueueOffset(3))
        assert old.dropped
        await trio.sleep(5)
        assert ("G", bench.queue) not in bench.cluster.committed
        await trio.sleep(5.1)  # 10 s at most
        assert bench.cluster.committed["G", bench.queue] == 3
        assert loop.process_queue is not old
        assert bench.service.offsets[-1] == 31
        assert loop.statistics().committed_offset == 3


async def test_a_reset_goes_down_and_up(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 10)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume()
        loop.move(QueueOffset(8))
        loop.move(QueueOffset(2))  # the last one counts
        await wait_all_tasks_blocked()
        assert bench.service.offsets == list(range(2, 10))
        bench.service.consume()
        loop.move(QueueOffset(9))
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [9]


@pytest.mark.parametrize("policy", ["nearest", "earliest", "latest", "raise"])
async def test_broker_moving_a_valid_offset_resets_it_for_any_policy(
    autojump_clock: MockClock, bench: Bench, policy: str
) -> None:
    """Brokers of 5.x reset a group like this."""
    bench.cluster.send(bench.queue, *[b"x"] * 10)

    def reset_once(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] != "8":
            return None
        return pull_answer(command, ResponseCode.PULL_OFFSET_MOVED, 2, min_offset=0, max_offset=10)

    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = reset_once
    async with bench.pulling(first_offset=8, out_of_range=policy) as loop:
        await trio.sleep(1)
        assert bench.service.offsets == list(range(2, 10))
        assert bench.cluster.committed["G", bench.queue] == loop.statistics().committed_offset == 2
    assert bench.context.corrections == 0


async def test_a_reset_during_a_reset_is_not_lost(autojump_clock: MockClock, bench: Bench) -> None:
    bench.cluster.send(bench.queue, *[b"x"] * 10)
    async with bench.pulling() as loop:
        await wait_all_tasks_blocked()
        bench.service.consume()
        bench.service.busy = 1
        loop.move(QueueOffset(8))
        await trio.sleep(1)
        loop.move(QueueOffset(4))
        bench.service.busy = 0
        await trio.sleep(1)
        assert bench.service.offsets[-6:] == [4, 5, 6, 7, 8, 9]
        assert bench.cluster.committed["G", bench.queue] == 4


async def test_response_in_flight_during_reset_is_dropped(autojump_clock: MockClock, bench: Bench) -> None:
    def answer(command: RemotingCommand) -> RemotingCommand | None:
        if len(bench.pulls) == 1:
            bench.loop.move(QueueOffset(1))  # before its answer is looked at
        return None

    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = answer
    bench.cluster.send(bench.queue, b"x", b"y")
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [1]


async def test_an_empty_queue_does_not_set_the_group_back_to_zero(autojump_clock: MockClock, bench: Bench) -> None:
    """A broker that lost sight of its messages for a while, or a slave that lags."""
    bench.cluster.committed["G", bench.queue] = 500
    async with bench.pulling(first_offset=500):
        await trio.sleep(20)
        bench.cluster.send(bench.queue, *[b"x"] * 501)
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [500]
        assert bench.cluster.committed["G", bench.queue] == 500


async def test_a_queue_made_anew_is_read_from_its_start(autojump_clock: MockClock, bench: Bench) -> None:
    async with bench.pulling(first_offset=500) as loop:
        await trio.sleep(20)
        bench.cluster.send(bench.queue, b"a", b"b")
        await wait_all_tasks_blocked()
        assert bench.service.offsets == [0, 1]
        bench.service.consume()
        assert loop.statistics().committed_offset == 2


async def test_queue_returning_without_first_messages_is_resumed(autojump_clock: MockClock, bench: Bench) -> None:
    async with bench.pulling(first_offset=500):
        await trio.sleep(1)
        bench.cluster.min_offsets[bench.queue] = 400
        bench.cluster.send(bench.queue, *[b"x"] * 101)
        await trio.sleep(20)
        assert bench.service.offsets == [500]


async def test_a_broker_that_goes_back_is_followed_and_logged(
    autojump_clock: MockClock, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    back = [True]
    bench.cluster.send(bench.queue, *[b"x"] * 4)
    record = bench.cluster.records[bench.queue][1]
    bench.cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
        pull_answer(command, 0, 2, min_offset=0, max_offset=4, body=record)
        if command.ext_fields["queueOffset"] == "4" and back and back.pop()
        else None
    )
    async with bench.pulling():
        await wait_all_tasks_blocked()
        assert bench.pulled_offsets() == [0, 4, 2, 4]
        assert bench.loop.process_queue.cached_messages == 4  # known ones count once
    assert "broker went back queue=T@broker-a:0 asked=4 next=2" in caplog.text
