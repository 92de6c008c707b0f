from datetime import datetime

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.fake_cluster import BROKER, FakeCluster, FakeInstance, as_instance, make_message
from tests.unit.client.consumer.push_bench import Inbox, consumer
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.config import ConsumerConfig, ConsumeStatus
from triomq.client.consumer.push import PushConsumer
from triomq.protocol.bodies.client import ConsumerRunningInfo, ConsumeType, MessageModel
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientError,
    ConfigError,
    IllegalNameError,
    NameServerError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt


async def test_messages_reach_the_handler_and_progress_the_broker(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox()
    cluster.send(topic, *[b"x"] * 50)
    async with consumer(inbox, instance) as push:
        await push.wait_assigned()
        await wait_all_tasks_blocked()
        assert inbox.ended == list(range(50))
        assert trio.current_time() == 0
    assert cluster.committed["G", topic] == 50


async def test_brokers_are_told_of_the_consumer(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    async with consumer(Inbox(), instance, subscriptions={"T": "A||B"}) as push:
        await push.wait_assigned()
        (data,) = cluster.heartbeats[0].consumer_data_set
    assert (data.group_name, data.consume_type, data.message_model) == (
        "G",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
    )
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert {(one.topic, one.sub_string) for one in data.subscription_data_set} == {("T", "A||B"), ("%RETRY%G", "*")}
    assert not cluster.members("G")


async def test_heartbeats_come_before_pulls(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    beats_before_the_first_pull = []
    cluster.handlers[RequestCode.PULL_MESSAGE] = lambda _command: beats_before_the_first_pull.append(
        len(cluster.heartbeats)
    )
    async with consumer(Inbox(), instance) as push:
        await push.wait_assigned()
        await wait_all_tasks_blocked()
    assert beats_before_the_first_pull[0] >= 1


async def test_progress_is_stored_soon_and_again_in_each_interval(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, b"x")
    async with consumer(Inbox(), instance):
        await trio.sleep(0.6)
        assert cluster.committed["G", topic] == 1
        before = len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET))
        await trio.sleep(4)
        assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == before
        await trio.sleep(1)
        assert len(cluster.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == before + 2  # the retry topic's too


async def test_a_failed_message_goes_back_to_the_broker(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    async def refuse(_message: MessageExt) -> ConsumeStatus:
        return ConsumeStatus.RECONSUME_LATER

    cluster.send(topic, b"x")
    async with consumer(Inbox(), instance, on_message=refuse) as push:
        await trio.sleep(1)
        figures = push.statistics()
    assert (figures.failed, figures.sent_back, figures.succeeded) == (1, 1, 0)
    assert len(cluster.of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    assert cluster.committed["G", topic] == 1


async def test_statistics_are_a_picture_of_the_queues(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox(busy_s=10)
    cluster.send(topic, *[b"x"] * 5)
    async with consumer(inbox, instance, max_concurrency=2) as push:
        await trio.sleep(1)
        figures = push.statistics()
        assert (figures.in_flight, figures.cached_messages, figures.succeeded) == (2, 5, 0)
        assert figures.queues[topic].in_flight == 2
        assert figures.queues[topic].lag == 5
        await trio.sleep(30)
        assert figures.succeeded == 0  # a picture does not change
        assert push.statistics().succeeded == 5
    assert push.statistics().succeeded == 5


async def test_members_move_queues_between_each_other(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    """C.2 scenario 32."""
    cluster.add_topic("T", 4)
    first, second = (as_instance(FakeInstance(cluster, name)) for name in "ab")
    async with consumer(Inbox(), first) as one, consumer(Inbox(), second) as two:
        await two.wait_assigned()
        await wait_all_tasks_blocked()
        held = [sorted(q.queue_id for q in push.statistics().queues if q.topic == "T") for push in (one, two)]
    assert held == [[0, 1], [2, 3]]


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


async def test_running_info_tells_what_is_cached(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, *[b"x"] * 3)
    async with consumer(Inbox(busy_s=5), instance, max_concurrency=1):
        await trio.sleep(6)
        info = ConsumerRunningInfo.decode(cluster.instances[0].consumers["G"].running_info())
        row = info.mq_table[topic]
        assert (row.cached_msg_min_offset, row.cached_msg_max_offset, row.cached_msg_count) == (1, 2, 2)
        assert row.last_consume_timestamp > 1_600_000_000_000


async def test_rates_forget_what_is_older_than_a_minute(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, *[b"x"] * 3)
    async with consumer(Inbox(), instance):
        await trio.sleep(100)
        info = ConsumerRunningInfo.decode(cluster.instances[0].consumers["G"].running_info())
        assert info.status_table["T"].consume_ok_tps == 0


async def test_uncorrectable_offset_stops_the_consumer(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    cluster.send(topic, b"x")
    cluster.committed["G", topic] = 50
    with pytest.raises(BrokerResponseError, match="not within 0 and 1"):
        async with consumer(Inbox(), instance, settings=ConsumerConfig(out_of_range="raise")):
            await trio.sleep_forever()
    assert not cluster.members("G")


async def test_a_name_server_that_is_down_fails_the_start(cluster: FakeCluster) -> None:
    fake = FakeInstance(cluster)

    async def find_route(_topic: str, refresh: bool = False) -> None:
        raise NameServerError("down")

    fake.find = find_route  # type: ignore[assignment]
    with pytest.raises(NameServerError, match="down"):
        async with consumer(Inbox(), as_instance(fake)):
            raise AssertionError("entered")


async def test_the_start_can_be_cancelled(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    fake = FakeInstance(cluster)

    async def find_route(_topic: str, refresh: bool = False) -> None:
        await trio.sleep_forever()

    fake.find = find_route  # type: ignore[assignment]
    with trio.move_on_after(2):
        async with consumer(Inbox(), as_instance(fake)):
            raise AssertionError("entered")
    assert trio.current_time() == pytest.approx(2)


async def test_a_broker_that_is_down_at_the_start_is_waited_for(
    autojump_clock: MockClock, cluster: FakeCluster, instance: ClientInstance, topic: MessageQueue
) -> None:
    inbox = Inbox()
    cluster.send(topic, b"x")
    cluster.down = True
    async with consumer(inbox, instance) as push:
        with trio.move_on_after(30) as scope:
            await push.wait_assigned()
        assert scope.cancelled_caught
        cluster.down = False
        await push.wait_assigned()
        await wait_all_tasks_blocked()
        assert inbox.ended == [0]
        assert trio.current_time() <= 32


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
        consumer(inbox, None, start=datetime(2026, 1, 1))  # noqa: DTZ001  # that is what is refused
    with pytest.raises(ConfigError, match="either"):
        consumer(inbox, None, on_message=None)


def test_keywords_override_the_settings_object() -> None:
    push = consumer(Inbox(), None, settings=ConsumerConfig(grace_s=1, max_span=7), grace_s=5, batch_max_size=9)
    config = push._settings
    assert (config.grace_s, config.max_span, config.batch_max_size, config.workers) == (5, 7, 9, 20)


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
