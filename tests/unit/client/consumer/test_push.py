import signal
import threading
from datetime import datetime

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, Inbox, consumer
from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster, FakeInstance, as_instance, make_message
from tests.unit.client.fake_broker import FakeBroker
from triomq.client.cluster.instance import ClientInstance
from triomq.client.config import ClientConfig
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.bodies.client import ConsumerRunningInfo
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    ClientError,
    ConfigError,
    IllegalNameError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


async def test_brokers_questions_are_answered(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, *[b"x"] * 3)
    await trio.sleep(1)  # the mock clock's 0.0 would look like "never"
    async with consumer(Inbox(), instance) as push:
        await push.wait_assigned()
        await trio.sleep(1)
        (fake,) = cluster.instances
        engine = fake.consumers["G"]
        assert engine.consumer_status("T") == {topic: 3}
        info = ConsumerRunningInfo.decode(engine.running_info())
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_7"
        assert {one.topic for one in info.subscription_set} == {"T", "%RETRY%G"}
        assert info.mq_table[topic].commit_offset == 3
        assert info.mq_table[topic].last_pull_timestamp > 1_600_000_000_000
        assert info.status_table["T"].consume_ok_tps == pytest.approx(3, rel=0.1)
        answer = await engine.consume_directly(make_message(9), BROKER)
        assert b'"consumeResult":"CR_SUCCESS"' in answer
        engine.connection_lost("x")
        engine.reset_offsets("T", {topic: 1})
        await trio.sleep(1)
        assert push.statistics().succeeded == 5


async def test_uncorrectable_offset_stops_the_consumer(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, b"x")
    cluster.committed["G", topic] = 50
    with pytest.raises(BrokerResponseError, match="not within 0 and 1"):
        async with consumer(Inbox(), instance, settings=ConsumerConfig(out_of_range="raise")):
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
    with pytest.raises(ConfigError, match="start"):
        consumer(inbox, None, start="middle")
    with pytest.raises(ConfigError, match="time zone"):
        consumer(inbox, None, start=datetime(2026, 1, 1))  # noqa: DTZ001  # the refused value
    with pytest.raises(ConfigError, match="either"):
        consumer(inbox, None, on_message=None)


async def test_two_consumers_of_a_group_need_two_instances() -> None:
    """The real instance refuses; see its own tests.  Here: the error leaves bare."""
    cluster = FakeCluster()
    fake = FakeInstance(cluster)

    def register_consumer(group: str, consumer: object) -> None:
        raise ClientError(f"consumer group {group!r} is on this instance already")

    fake.add_consumer = register_consumer  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="already"):
        async with consumer(Inbox(), as_instance(fake)):
            raise AssertionError("entered")


async def test_subscription_lost_by_broker_is_sent_again(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox()
    cluster.send(topic, b"x")
    answers = [ResponseCode.SUBSCRIPTION_NOT_LATEST]
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda command: (
        command.reply(answers.pop()) if answers and command.ext_fields["topic"] == "T" else None
    )
    async with consumer(inbox, instance):
        await wait_all_tasks_blocked()
        beats = len(cluster.heartbeats)
        assert beats >= 2
        await trio.sleep(1.1)
        assert inbox.ended == [0]


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


async def test_equal_hash_is_filtered_and_offset_advances(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 27."""
    inbox = Inbox()
    for tag in ("Aa", "BB", "Aa", "BB"):
        cluster.send(topic, b"x", properties={"TAGS": tag})
    async with consumer(inbox, instance, subscriptions={"T": "Aa"}) as push:
        await trio.sleep(16)  # the pull after the last one is held for 15 s
        assert push.statistics().filtered == 2
    assert inbox.ended == [0, 2]
    assert cluster.committed["G", topic] == 4


async def test_crash_redelivers_messages_after_an_unfinished_one(
    autojump_clock: MockClock, cluster: FakeCluster, topic: MessageQueue
) -> None:
    """C.2 scenario 44."""
    first, second = (as_instance(FakeInstance(cluster, name)) for name in "ab")
    cluster.committed["G", topic] = cluster.min_offsets[topic] = 10
    cluster.send(topic, *[b"x"] * 3)
    gate, inbox = Gate(10), Inbox()
    async with trio.open_nursery() as nursery:

        async def live_until_killed() -> None:
            async with consumer(Inbox(), first, on_message=gate.take):
                await trio.sleep_forever()

        nursery.start_soon(live_until_killed)
        await trio.sleep(30)
        assert (gate.begun, cluster.committed["G", topic]) == ([10, 11, 12], 10)
        cluster.instances[0].consumers.clear()  # a killed process says nothing
        async with consumer(inbox, second):
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert inbox.ended == [10, 11, 12]


async def test_blocked_handler_pauses_pulling_at_a_thousand_messages(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 45."""
    gate = Gate()
    cluster.send(topic, *[b"x"] * 3_000)
    async with consumer(Inbox(), instance, on_message=gate.take) as push:
        await trio.sleep(60)
        figures = push.statistics().queues[topic]
        assert 1_001 <= figures.cached_messages <= 1_032
        assert figures.waiting_for == "too many messages are cached"
        gate.opened.set()
        await trio.sleep(1)
        assert len(gate.begun) == 3_000


async def test_blocked_message_holds_after_two_thousand_others(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 46."""
    gate = Gate(0)
    cluster.send(topic, *[b"x"] * 3_000)
    async with consumer(Inbox(), instance, on_message=gate.take) as push:
        await trio.sleep(60)
        assert 2_000 <= max(gate.begun) <= 2_032
        assert push.statistics().queues[topic].waiting_for == "one message holds back too many after it"
        assert cluster.committed["G", topic] == 0
        gate.opened.set()
        await trio.sleep(1)
        assert cluster.committed["G", topic] == 3_000


async def test_large_messages_stop_pulling_by_their_size(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    """C.2 scenario 47, at a hundredth."""
    limit = ConsumerConfig().max_cached_bytes // 100
    cluster.send(topic, *[bytes(10 * 1024)] * 300)
    gate = Gate()
    settings = ConsumerConfig(max_cached_bytes=limit)
    async with consumer(Inbox(), instance, on_message=gate.take, settings=settings) as push:
        await trio.sleep(60)
        figures = push.statistics().queues[topic]
        assert limit < figures.cached_bytes <= limit + 33 * 11 * 1024
        assert figures.waiting_for == "too many bytes are cached"
        gate.opened.set()
        await trio.sleep(1)
        assert len(gate.begun) == 300


@pytest.mark.parametrize("stored", [50, 2])
async def test_stored_offset_out_of_range_is_corrected(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue, stored: int
) -> None:
    """C.2 scenario 60, and the same below the minimum."""
    cluster.min_offsets[topic] = 4
    cluster.send(topic, *[b"x"] * 6)
    cluster.committed["G", topic] = stored
    inbox = Inbox()
    async with consumer(inbox, instance) as push:
        await trio.sleep(15)
        cluster.send(topic, b"new")
        await trio.sleep(15)
        assert push.statistics().offset_corrections == 1
    assert inbox.ended == ([10] if stored == 50 else [4, 5, 6, 7, 8, 9, 10])
    assert cluster.committed["G", topic] == 11


async def test_leave_finishes_running_handlers_and_drops_the_rest(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(topic, *[b"x"] * 30)
    async with consumer(inbox, instance, max_concurrency=4):
        await trio.sleep(1)
    assert sorted(inbox.begun) == sorted(inbox.ended) == [0, 1, 2, 3]
    assert trio.current_time() == pytest.approx(3, abs=0.2)
    assert cluster.committed["G", topic] == 4
    told = [command.code for command in cluster.requests if command.code != RequestCode.QUERY_CONSUMER_OFFSET]
    assert told[-1] == RequestCode.UPDATE_CONSUMER_OFFSET


async def test_handlers_that_exceed_the_grace_time_are_cancelled(
    autojump_clock: MockClock,
    cluster: FakeCluster,
    instance: ClientInstance,
    topic: MessageQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(busy_s=100)
    cluster.send(topic, b"x", b"y")
    async with consumer(inbox, instance):
        await trio.sleep(1)
    assert sorted(inbox.cancelled) == [0, 1]
    assert trio.current_time() == pytest.approx(11)
    assert cluster.committed["G", topic] == 0
    assert "handlers cancelled" in caplog.text


async def test_leaving_by_cancellation_is_as_orderly(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(topic, b"x", b"y")
    with trio.move_on_after(1) as scope:
        async with consumer(inbox, instance):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert sorted(inbox.ended) == [0, 1]
    assert cluster.committed["G", topic] == 2
    assert not cluster.members("G")


async def test_a_cancellation_while_leaving_cancels_the_handlers(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=100)
    cluster.send(topic, b"x", b"y")
    with trio.move_on_after(3):
        async with consumer(inbox, instance):
            await trio.sleep(1)
    assert trio.current_time() == pytest.approx(3)
    assert sorted(inbox.cancelled) == [0, 1]
    assert cluster.committed["G", topic] == 0


async def test_leaving_on_error_reraises_the_bare_error(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=3)
    cluster.send(topic, b"x")
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012  # the test is about the block
        async with consumer(inbox, instance):
            await trio.sleep(1)
            raise KeyError("mine")
    assert inbox.ended == [0]
    assert cluster.committed["G", topic] == 1


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


async def test_a_dead_broker_does_not_hold_up_leaving(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, b"x")
    async with consumer(Inbox(), instance):
        await trio.sleep(1)

        async def never(_command: object) -> None:
            await trio.sleep_forever()

        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = never  # type: ignore[assignment]
    assert trio.current_time() <= 5


async def test_a_consumer_is_used_inside_its_block_only(
    autojump_clock: MockClock, instance: ClientInstance, topic: MessageQueue
) -> None:
    push = consumer(Inbox(), instance)
    with pytest.raises(ClientClosedError):
        await push.wait_assigned()
    with pytest.raises(ClientClosedError):
        push.statistics()
    async with push:
        pass
    with pytest.raises(ClientClosedError):
        await push.wait_assigned()
    with pytest.raises(ClientError, match="once"):
        async with push:
            pass


async def test_start_cancelled_anywhere_leaves_nothing_behind(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
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
                async with consumer(Inbox(), instance):
                    entered += 1
                    await trio.sleep_forever()
        assert scope.cancelled_caught
        assert not cluster.members("G")
    assert 0 < entered < 60
    assert trio.current_time() == 0


async def test_leave_raises_for_callers_waiting_for_assignment(
    cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue, autojump_clock: MockClock
) -> None:
    cluster.handlers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(1, remark="busy")

    async def wait(waiting: PushConsumer) -> None:
        with pytest.raises(ClientClosedError):
            await waiting.wait_assigned()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, consumer(Inbox(), instance) as waiting:
            nursery.start_soon(wait, waiting)
            await trio.sleep(5)


LIMIT_S = 50.0  # for all of a test on the real clock, and the only time that decides: a machine may be busy
CLIENT = ClientConfig(
    client_ip="127.0.0.1",
    instance_name="1",
    heartbeat_interval_s=0.05,
    persist_offset_interval_s=0.05,
    poll_namesrv_interval_s=0.05,
    api_timeout_s=LIMIT_S,
)
ANSWERED_BY_THE_CLUSTER = (
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
)


def answer_by_cluster(fake_broker: FakeBroker, cluster: FakeCluster) -> None:
    for code in ANSWERED_BY_THE_CLUSTER:
        fake_broker.on(code, cluster.answer)


@pytest.mark.parametrize("kind", ["asleep", "at work"])
async def test_blocking_handlers_do_not_stall_the_event_loop(
    fake_broker: FakeBroker, cluster: FakeCluster, kind: str
) -> None:
    """On the real clock and sockets: the handlers end only when the broker has heard enough."""
    begun, heard_enough = threading.Semaphore(0), threading.Event()

    def handle(message: MessageExt) -> None:
        if message.queue_id == 3:  # one queue moves on
            return
        begun.release()
        if kind == "asleep" or message.queue_id:
            heard_enough.wait(LIMIT_S)
        while not heard_enough.is_set():
            sum(range(1_000))

    queues = [MessageQueue("T", BROKER, queue_id) for queue_id in range(4)]
    fake_broker.add_topic("T", 4)
    fake_broker.consumer_ids["G"] = ["127.0.0.1@1"]
    answer_by_cluster(fake_broker, cluster)
    for queue in queues[:3]:
        cluster.send(queue, b"x")
    settings = ConsumerConfig(lock_interval_s=0.05, lock_timeout_s=LIMIT_S)
    with trio.fail_after(LIMIT_S):
        async with consumer(
            Inbox(),
            None,
            namesrv=fake_broker.address,
            config=CLIENT,
            on_message=handle,
            orderly=True,
            settings=settings,
        ) as push:
            try:
                for _ in queues[:3]:
                    await trio.to_thread.run_sync(begun.acquire, abandon_on_cancel=True)
                told = (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ)
                before = {code: len(fake_broker.of(code)) for code in told}
                for number in range(3):
                    cluster.send(queues[3], b"y")
                    while cluster.committed.get(("G", queues[3])) != number + 1:
                        count = len(fake_broker.of(RequestCode.UPDATE_CONSUMER_OFFSET))
                        await fake_broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, count + 1)
                for code, count in before.items():
                    await fake_broker.wait_for(code, count + 3)
                assert push.statistics().in_flight == 3
            finally:
                heard_enough.set()
    assert [cluster.committed["G", queue] for queue in queues] == [1, 1, 1, 3]
