from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE, G, assigned
from tests.unit.client.consumer.fake_cluster import FakeCluster, make_message, offsets_of
from triomq.client.config import ClientConfig
from triomq.client.consumer.assignment.strategies import allocate_averagely
from triomq.client.consumer.config import LitePullConfig, StartPolicy
from triomq.client.consumer.engine import Plan, open_group
from triomq.client.consumer.lite_pull import LitePullConsumer
from triomq.client.consumer.topics import Subscriptions
from triomq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    MessageModel,
)
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import BrokerSystemError
from triomq.protocol.message_queue import MessageQueue


async def test_running_info_of_an_active_consumer(cluster: FakeCluster) -> None:
    cluster.send(QUEUE, b"x", b"y")
    async with LitePullConsumer(G, instance=cluster.instance, start="earliest") as consumer:
        await consumer.subscribe("T")
        await wait_all_tasks_blocked()
        engine = cluster.instances[0].consumers[G]
        info = ConsumerRunningInfo.decode(engine.running_info())
        answer = ConsumeMessageDirectlyResult.decode(await engine.consume_directly(make_message(0), "b"))
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert "PROP_THREADPOOL_CORE_SIZE" not in info.properties
    assert info.mq_table[QUEUE].cached_msg_count == 2
    assert [subscription.topic for subscription in info.subscription_set] == ["T"]
    assert answer.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert "no handler" in (answer.remark or "")


async def test_offset_reset_moves_position_and_is_stored(autojump_clock: MockClock, cluster: FakeCluster) -> None:
    cluster.send(QUEUE, *(b"%d" % number for number in range(9)))
    async with LitePullConsumer(G, instance=cluster.instance, start="earliest") as consumer:
        await consumer.subscribe("T")
        assert len(await consumer.poll()) == 9
        engine = cluster.instances[0].consumers[G]
        engine.reset_offsets("T", {QUEUE: 4, MessageQueue("T", "broker-a", 9): 1})
        assert engine.consumer_status("T") == {QUEUE: 4}
        await trio.sleep(1)
        assert offsets_of(await consumer.poll(0)) == [4, 5, 6, 7, 8]
        assert cluster.committed["G", QUEUE] == 4


async def test_commit_stores_healthy_queues_and_raises_for_others(cluster: FakeCluster) -> None:
    one, two = cluster.add_topic("T", 2)
    async with assigned(cluster.instance, one, two) as consumer:
        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: (
            command.reply(1) if command.ext_fields["queueId"] == "0" else None
        )
        with pytest.raises(BrokerSystemError):
            await consumer.commit({one: 3, two: 4})
    assert cluster.committed["G", two] == 4


@pytest.mark.parametrize(
    ("model", "given", "name"),
    [
        (MessageModel.BROADCASTING, None, "DEFAULT"),
        (MessageModel.BROADCASTING, "mine", "mine"),
        (MessageModel.CLUSTERING, None, None),
    ],
)
async def test_broadcasting_consumer_instance_is_named_like_in_java(
    tmp_path: Path, model: MessageModel, given: str | None, name: str | None
) -> None:
    subscriptions = Subscriptions("G", {}, lambda: 1, may_be_empty=True)
    config = LitePullConfig(local_offset_dir=tmp_path)
    plan = Plan("G", subscriptions, StartPolicy.parse("earliest"), model, allocate_averagely, config)
    async with open_group(plan, "127.0.0.1:1", ClientConfig(instance_name=given, connect=False), None) as (
        instance,
        _offsets,
    ):
        assert instance.config.instance_name == name
