import signal
from contextlib import nullcontext
from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, Inbox, consumer
from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster, FakeInstance, as_instance, make_message
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.bodies.client import ConsumerRunningInfo
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    ClientError,
    ConfigError,
    IllegalNameError,
)
from triomq.protocol.record.message import MessageExt


async def test_brokers_questions_are_answered(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.send(QUEUE, *[b"x"] * 3)
    await trio.sleep(1)  # the mock clock's 0.0 would look like "never"
    async with consumer(Inbox(), cluster.instance) as push:
        await push.wait_assigned()
        await trio.sleep(1)
        (fake,) = cluster.instances
        engine = fake.consumers["G"]
        assert engine.consumer_status("T") == {QUEUE: 3}
        info = ConsumerRunningInfo.decode(engine.running_info())
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_7"
        assert {one.topic for one in info.subscription_set} == {"T", "%RETRY%G"}
        assert info.mq_table[QUEUE].commit_offset == 3
        assert info.mq_table[QUEUE].last_pull_timestamp > 1_600_000_000_000
        assert info.status_table["T"].consume_ok_tps == pytest.approx(3, rel=0.1)
        answer = await engine.consume_directly(make_message(9), BROKER)
        assert b'"consumeResult":"CR_SUCCESS"' in answer
        engine.connection_lost("x")
        engine.reset_offsets("T", {QUEUE: 1})
        await trio.sleep(1)
        assert push.statistics().succeeded == 5


async def test_uncorrectable_offset_stops_the_consumer(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.send(QUEUE, b"x")
    cluster.committed["G", QUEUE] = 50
    with pytest.raises(BrokerResponseError, match="not within 0 and 1"):
        async with consumer(Inbox(), cluster.instance, settings=ConsumerConfig(out_of_range="raise")):
            await trio.sleep_forever()
    assert not cluster.members("G")


def test_impossible_settings_fail_before_anything_happens() -> None:
    inbox = Inbox()
    with pytest.raises(IllegalNameError):
        PushConsumer("a b", subscriptions={"T": "*"}, on_message=inbox.take)
    with pytest.raises(ConfigError, match="topic"):
        consumer(inbox, None, subscriptions={})
    with pytest.raises(ConfigError, match="max_concurrency"):
        consumer(inbox, None, max_concurrency=0)
    with pytest.raises(ConfigError, match="either"):
        consumer(inbox, None, on_message=None)


class Gate:
    """A handler that ends at once, but for chosen messages: these end when the gate is opened."""

    def __init__(self, *closed_for: int) -> None:
        self.begun: list[int] = []
        self.opened = trio.Event()
        self._closed_for = closed_for

    async def take(self, message: MessageExt) -> None:
        self.begun.append(message.queue_offset)
        if not self._closed_for or message.queue_offset in self._closed_for:
            await self.opened.wait()


async def test_equal_hash_is_filtered_and_offset_advances(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    """C.2 scenario 27."""
    inbox = Inbox()
    for tag in ("Aa", "BB", "Aa", "BB"):
        cluster.send(QUEUE, b"x", properties={"TAGS": tag})
    async with consumer(inbox, cluster.instance, subscriptions={"T": "Aa"}) as push:
        await trio.sleep(16)  # the pull after the last one is held for 15 s
        assert push.statistics().filtered == 2
    assert inbox.ended == [0, 2]
    assert cluster.committed["G", QUEUE] == 4


@pytest.mark.parametrize(
    ("blocked", "body_bytes", "low", "high", "reason"),
    [
        ((), 1, 1_001, 1_032, "too many messages are cached"),
        ((0,), 1, 2_001, 2_033, "one message holds back too many after it"),
        ((), 10_240, 102, 135, "too many bytes are cached"),
    ],
)
async def test_blocked_handlers_pause_pulling_at_a_limit(
    autojump_clock: MockClock,
    cluster: FakeCluster,
    blocked: tuple[int, ...],
    body_bytes: int,
    low: int,
    high: int,
    reason: str,
) -> None:
    """C.2 scenarios 45 to 47, the last at a hundredth."""
    gate = Gate(*blocked)
    cluster.send(QUEUE, *[bytes(body_bytes)] * 3_000)
    settings = ConsumerConfig(max_cached_bytes=1024**2)
    async with consumer(Inbox(), cluster.instance, on_message=gate.take, settings=settings) as push:
        await trio.sleep(60)
        figures = push.statistics().queues[QUEUE]
        assert (low <= figures.next_pull_offset <= high, figures.waiting_for) == (True, reason)
        assert cluster.committed["G", QUEUE] == 0
        gate.opened.set()
        await trio.sleep(1)
        assert len(gate.begun) == cluster.committed["G", QUEUE] == 3_000


@pytest.mark.parametrize("stored", [50, 2])
async def test_stored_offset_out_of_range_is_corrected(
    autojump_clock: MockClock, cluster: FakeCluster, stored: int
) -> None:
    """C.2 scenario 60, and the same below the minimum."""
    cluster.min_offsets[QUEUE] = 4
    cluster.send(QUEUE, *[b"x"] * 6)
    cluster.committed["G", QUEUE] = stored
    inbox = Inbox()
    async with consumer(inbox, cluster.instance) as push:
        await trio.sleep(15)
        cluster.send(QUEUE, b"new")
        await trio.sleep(15)
        assert push.statistics().offset_corrections == 1
    assert inbox.ended == ([10] if stored == 50 else [4, 5, 6, 7, 8, 9, 10])
    assert cluster.committed["G", QUEUE] == 11


async def test_leave_finishes_running_handlers_and_drops_the_rest(
    autojump_clock: MockClock, cluster: FakeCluster
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(QUEUE, *[b"x"] * 30)
    async with consumer(inbox, cluster.instance, max_concurrency=4):
        await trio.sleep(1)
    assert sorted(inbox.begun) == sorted(inbox.ended) == [0, 1, 2, 3]
    assert trio.current_time() == pytest.approx(3, abs=0.2)
    assert cluster.committed["G", QUEUE] == 4
    told = [command.code for command in cluster.requests if command.code != RequestCode.QUERY_CONSUMER_OFFSET]
    assert told[-1] == RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.mark.parametrize(
    ("busy_s", "block_s", "cancelled_s", "error", "ends_s"),
    [
        pytest.param(100, 1, inf, None, 11, id="above the grace time"),
        pytest.param(3, 60, 1, None, 3, id="cancelled"),
        pytest.param(3, 0.5, 1, KeyError("mine"), 3, id="failed"),
        pytest.param(100, 1, 3, None, 3, id="cancelled while it leaves"),
    ],
)
async def test_handlers_end_within_grace_or_are_cancelled(
    autojump_clock: MockClock, cluster: FakeCluster, caplog: pytest.LogCaptureFixture,
    busy_s: float, block_s: float, cancelled_s: float, error: Exception | None, ends_s: float,
) -> None:  # fmt: skip
    inbox = Inbox(busy_s=busy_s)
    cluster.send(QUEUE, b"x", b"y")
    fails = nullcontext() if error is None else pytest.raises(KeyError, match="mine")
    with fails, trio.move_on_after(cancelled_s) as scope:
        async with consumer(inbox, cluster.instance):
            await trio.sleep(block_s)
            if error is not None:
                raise error
    assert trio.current_time() == pytest.approx(ends_s, abs=0.2)
    assert scope.cancelled_caught == (error is None and cancelled_s < inf)
    handled, cancelled = ([0, 1], []) if busy_s < ends_s + 1 else ([], [0, 1])
    assert (sorted(inbox.ended), sorted(inbox.cancelled)) == (handled, cancelled)
    assert cluster.committed["G", QUEUE] == len(handled)
    assert ("handlers cancelled" in caplog.text) == bool(cancelled)
    assert not cluster.members("G")


def test_ctrl_c_twice_cancels_the_handlers() -> None:
    cluster = FakeCluster()
    cluster.add_topic("T")
    cluster.send(QUEUE, b"x")
    inbox = Inbox(busy_s=100)

    async def main() -> None:
        async with consumer(inbox, as_instance(FakeInstance(cluster))):
            await wait_all_tasks_blocked()
            trio.lowlevel.spawn_system_task(press_again)
            raise KeyboardInterrupt  # the first one, as it reaches the block

    async def press_again() -> None:
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert inbox.cancelled == [0]
    assert cluster.committed["G", QUEUE] == 0


async def test_a_dead_broker_does_not_hold_up_leaving(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.send(QUEUE, b"x")
    async with consumer(Inbox(), cluster.instance):
        await trio.sleep(1)

        async def never(_command: object) -> None:
            await trio.sleep_forever()

        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = never  # type: ignore[assignment]
    assert trio.current_time() <= 5


async def test_a_consumer_is_used_inside_its_block_only(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    push = consumer(Inbox(), cluster.instance)
    with pytest.raises(ClientClosedError):
        await push.wait_assigned()
    with pytest.raises(ClientClosedError):
        push.statistics()
    with pytest.raises(ClientClosedError):
        push.suspend()
    async with push:
        pass
    with pytest.raises(ClientClosedError):
        push.resize(3)
    with pytest.raises(ClientClosedError):
        await push.unsubscribe("T")
    with pytest.raises(ClientClosedError):
        await push.wait_assigned()
    with pytest.raises(ClientError, match="once"):
        async with push:
            pass


async def test_start_cancelled_anywhere_leaves_nothing_behind(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    entered = 0
    for pauses in range(60):
        scope = trio.CancelScope()

        async def cancel_after(pauses: int = pauses, scope: trio.CancelScope = scope) -> None:
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after)
            with scope:
                async with consumer(Inbox(), cluster.instance):
                    entered += 1
                    await trio.sleep_forever()
        assert scope.cancelled_caught
        assert not cluster.members("G")
    assert 0 < entered < 60
    assert trio.current_time() == 0


async def test_leave_raises_for_callers_waiting_for_assignment(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(1, remark="busy")

    async def wait(waiting: PushConsumer) -> None:
        with pytest.raises(ClientClosedError):
            await waiting.wait_assigned()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, consumer(Inbox(), cluster.instance) as waiting:
            nursery.start_soon(wait, waiting)
            await trio.sleep(5)
