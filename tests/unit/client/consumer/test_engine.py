from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.client.consumer.benches import QUEUE
from tests.unit.client.consumer.fake_cluster import FakeCluster, FakeInstance, as_instance, make_message, offsets_of
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.config import ClientConfig
from triomq.client.consumer.assignment.strategies import allocate_averagely
from triomq.client.consumer.config import LitePullConfig, StartPolicy
from triomq.client.consumer.engine import Engine, Plan, open_group
from triomq.client.consumer.offsets.offset_store import RemoteOffsetStore
from triomq.client.consumer.pulling.pull_context import PollBuffer
from triomq.client.consumer.statistics import TopicCounters
from triomq.client.consumer.subscription import Subscriptions
from triomq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    MessageModel,
)
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import BrokerSystemError
from triomq.protocol.message_queue import MessageQueue, QueueOffset


class LiteEngine(Engine):
    """An engine as a lite pull consumer composes it."""

    def __init__(self, fake: FakeInstance) -> None:
        instance = as_instance(fake)
        subscriptions = Subscriptions("G", {}, lambda: 1, with_retry_topic=False, may_be_empty=True)
        start = StartPolicy.parse("earliest")
        plan = Plan("G", subscriptions, start, MessageModel.CLUSTERING, allocate_averagely, LitePullConfig())
        self.offsets = RemoteOffsetStore(QueueRequests(instance, "G"))
        self.buffer = PollBuffer()
        super().__init__(instance, plan, self.offsets, self.buffer)

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        return tuple(sorted(self.rebalancer.loops))


@asynccontextmanager
async def running(fake: FakeInstance, topic: MessageQueue) -> AsyncGenerator[LiteEngine, None]:
    engine = LiteEngine(fake)
    engine.join()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.maintain)
        nursery.start_soon(engine.rebalancer.run)
        await engine.subscribe(topic.topic, "*")
        await engine.rebalancer.assigned.wait()
        yield engine
        await engine.leave()
        nursery.cancel_scope.cancel()


@pytest.fixture
def fake(cluster: FakeCluster) -> FakeInstance:
    return FakeInstance(cluster)


async def test_running_info_of_an_active_consumer(fake: FakeInstance, cluster: FakeCluster) -> None:
    cluster.send(QUEUE, b"x", b"y")
    async with running(fake, QUEUE) as engine:
        await wait_all_tasks_blocked()
        info = ConsumerRunningInfo.decode(engine.running_info())
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert "PROP_THREADPOOL_CORE_SIZE" not in info.properties
    assert info.mq_table[QUEUE].cached_msg_count == 2
    assert [subscription.topic for subscription in info.subscription_set] == ["T"]


async def test_offset_reset_moves_position_and_is_stored(
    autojump_clock: MockClock, fake: FakeInstance, cluster: FakeCluster
) -> None:
    cluster.send(QUEUE, *(b"%d" % number for number in range(9)))
    async with running(fake, QUEUE) as engine:
        await wait_all_tasks_blocked()
        assert len(engine.buffer.take()) == 9
        engine.reset_offsets("T", {QUEUE: 4, MessageQueue("T", "broker-a", 9): 1})
        assert engine.consumer_status("T") == {QUEUE: 4}
        await trio.sleep(1)
        assert offsets_of(engine.buffer.take()) == [4, 5, 6, 7, 8]
        assert cluster.committed["G", QUEUE] == 4


async def test_direct_consumption_without_handler_is_answered_so(fake: FakeInstance, cluster: FakeCluster) -> None:
    async with running(fake, QUEUE) as engine:
        answer = ConsumeMessageDirectlyResult.decode(await engine.consume_directly(make_message(0), "b"))
    assert answer.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert "no handler" in (answer.remark or "")


async def test_commit_stores_healthy_queues_and_raises_for_others(fake: FakeInstance, cluster: FakeCluster) -> None:
    one, two = cluster.add_topic("T", 2)

    async with running(fake, one) as engine:
        cluster.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda command: (
            command.reply(1) if command.ext_fields["queueId"] == "0" else None
        )
        with pytest.raises(BrokerSystemError):
            await engine.offsets.commit({one: QueueOffset(3), two: QueueOffset(4)})
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


def test_rates_compare_with_a_minute_ago() -> None:
    counters = TopicCounters()
    for second in range(0, 130, 10):
        counters.sample(float(second))
        counters.succeeded += 100
        counters.failed += 50
        counters.busy_s += 3.0
        counters.pulls += 10
        counters.pulled += 150
        counters.pulling_s += 1.0
    rates = counters.rates(120.0)
    assert rates == ConsumeStatus(100.0, 1050 / 60, 20.0, 700 / 60, 350 / 60, 650)
