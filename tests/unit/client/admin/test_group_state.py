"""The state of a group, from the answers of brokers and members, which may be incomplete or missing."""

import time

import pytest

from tests.subscriptions import tag_subscription
from tests.unit.client.fake_broker import FakeBroker
from triomq.client import Admin, GroupState, QueueState
from triomq.protocol.bodies.client import ConsumerRunningInfo, ConsumeStatus, MessageModel, ProcessQueueInfo
from triomq.protocol.bodies.group_health import StallCause
from triomq.protocol.bodies.route import BrokerData, ClusterInfo, SubscriptionGroupConfig, SubscriptionGroupWrapper
from triomq.protocol.bodies.statistics import Connection, ConsumerConnection, ConsumeStats, OffsetWrapper
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.requests.offsets import OffsetResponseHeader
from triomq.protocol.wire.command import RemotingCommand

QUEUE, OTHER = (MessageQueue("Topic", "broker-a", queue_id) for queue_id in range(2))
ALL = [tag_subscription("Topic", "*", 1)]


class Group:
    """What a broker and its members say; by default of an Apache broker, with one member that owns both queues."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.offsets = {QUEUE: OffsetWrapper(10, 7), OTHER: OffsetWrapper(5, 5)}
        self.members = [Connection("c1", "1.1.1.1:1")]
        self.model = MessageModel.CLUSTERING
        self.infos = {"c1": ConsumerRunningInfo(subscription_set=ALL, mq_table=self.held(QUEUE, OTHER))}
        self.offset_half_a_minute_ago = 10
        self.subscribed = {"Topic": ALL[0]}
        broker.add_topic("Topic", 2)
        broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.reply(body=cluster(broker)))
        broker.on(RequestCode.GET_CONSUME_STATS, self._stats)
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, self._connections)
        broker.on(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        configs = SubscriptionGroupWrapper({"G": SubscriptionGroupConfig("G")})
        broker.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda command: command.reply(body=configs.encode()))
        broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self._search)

    @staticmethod
    def held(
        *queues: MessageQueue, consumed_s_ago: float = 60, locked: bool = False
    ) -> dict[MessageQueue, ProcessQueueInfo]:
        consumed_ms = round((time.time() - consumed_s_ago) * 1000)
        info = ProcessQueueInfo(cached_msg_count=3, last_consume_timestamp=consumed_ms, locked=locked)
        return dict.fromkeys(queues, info)

    def _stats(self, command: RemotingCommand) -> RemotingCommand:
        wanted = command.ext_fields.get("topic")
        table = {queue: found for queue, found in self.offsets.items() if wanted in (None, queue.topic)}
        return command.reply(body=ConsumeStats(table).encode())

    def _connections(self, command: RemotingCommand) -> RemotingCommand:
        if not self.members:
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE)
        body = ConsumerConnection(self.members, self.subscribed, message_model=self.model)
        return command.reply(body=body.encode())

    def _running_info(self, command: RemotingCommand) -> RemotingCommand:
        info = self.infos.get(command.ext_fields["clientId"])
        return command.reply(ResponseCode.SYSTEM_ERROR) if info is None else command.reply(body=info.encode())

    def _search(self, command: RemotingCommand) -> RemotingCommand:
        return command.reply(ext_fields=OffsetResponseHeader(QueueOffset(self.offset_half_a_minute_ago)).encode())

    async def state(self) -> GroupState:
        async with Admin(namesrv=self.broker.address) as admin:
            return await admin.group_state("G")

    async def first(self) -> QueueState:
        return (await self.state()).queues[0]

    async def cause(self) -> StallCause | None:
        stall = (await self.first()).stall
        return None if stall is None else stall.cause


def cluster(broker: FakeBroker) -> bytes:
    return ClusterInfo({"broker-a": BrokerData("C", "broker-a", {0: broker.address})}, {"C": ["broker-a"]}).encode()


@pytest.fixture
async def group(fake_broker: FakeBroker) -> Group:
    return Group(fake_broker)


async def test_owners_locks_and_progress_come_from_the_members(group: Group) -> None:
    group.infos["c1"].mq_table = group.held(QUEUE, consumed_s_ago=1, locked=True)
    first, second = (await group.state()).queues
    assert (first.owners, first.lock_owner, first.stall) == (("c1",), None, None)  # it says so, but needs no lock
    group.infos["c1"].properties = {"PROP_CONSUMEORDERLY": "true"}
    assert (await group.first()).lock_owner == "c1"
    assert first.progress_ms is not None
    assert time.time() - first.progress_ms / 1000 < 30
    assert (second.owners, second.lock_owner, second.progress_ms, second.stall) == ((), None, None, None)


async def test_our_broker_knows_locks_and_progress_better(group: Group) -> None:
    group.offsets[QUEUE] = OffsetWrapper(10, 7, 0, "c9", 1234, 0)
    first = await group.first()
    assert (first.lock_owner, first.progress_ms, first.stall) == ("c9", 1234, None)
    group.offsets[QUEUE] = OffsetWrapper(10, 7, 0, None, 1234, 1300)
    assert await group.cause() is StallCause.HANDLER_BLOCKED


async def test_unowned_queue_is_stalled_after_long_message_wait(group: Group) -> None:
    group.infos["c1"].mq_table = group.held(OTHER)
    assert await group.cause() is StallCause.NO_OWNER
    group.offset_half_a_minute_ago = 6
    assert await group.cause() is None


async def test_recently_finished_handler_is_no_stall_unless_orderly(group: Group) -> None:
    info = group.infos["c1"]
    assert await group.cause() is StallCause.HANDLER_BLOCKED
    info.mq_table = group.held(QUEUE, consumed_s_ago=1, locked=True)
    info.status_table = {"Topic": ConsumeStatus(consume_failed_tps=1.0)}
    assert await group.cause() is None  # sent back: the others continue
    info.properties = {"PROP_CONSUMEORDERLY": "true"}
    assert await group.cause() is StallCause.HANDLER_FAILING


async def test_group_without_permission_to_consume(group: Group) -> None:
    configs = SubscriptionGroupWrapper({"G": SubscriptionGroupConfig("G", consume_enable=False)})
    group.broker.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda command: command.reply(body=configs.encode()))
    assert await group.cause() is StallCause.DISABLED


async def test_members_that_broadcast_keep_their_own_offsets(group: Group) -> None:
    group.model = MessageModel.BROADCASTING
    assert await group.cause() is None


async def test_broker_without_wait_times_proves_no_stall(group: Group) -> None:
    group.broker.fail(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ResponseCode.SYSTEM_ERROR)
    assert await group.cause() is None
    group.broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda command: command.reply(ext_fields={"offset": "?"}))
    assert await group.cause() is None


async def test_subscribed_topic_without_offsets_is_included(group: Group) -> None:
    fresh = MessageQueue("New", "broker-a", 0)
    group.offsets[fresh] = OffsetWrapper(1, 0)
    group.subscribed["New"] = tag_subscription("New", "*", 1)
    stats = group.broker.handlers[RequestCode.GET_CONSUME_STATS]

    def without_new(command: RemotingCommand) -> RemotingCommand:
        if "topic" in command.ext_fields:
            return group._stats(command)
        return command.reply(body=ConsumeStats({QUEUE: group.offsets[QUEUE]}).encode())

    assert stats is not None
    group.broker.on(RequestCode.GET_CONSUME_STATS, without_new)
    assert [queue.position.queue for queue in (await group.state()).queues] == [fresh, QUEUE]
