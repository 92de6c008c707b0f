from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import MockClock

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker, answering
from triomq.client.admin.admin import Admin
from triomq.client.admin.topic_config import TopicSettings
from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)
from triomq.protocol.bodies.statistics import (
    Connection,
    ConsumerConnection,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerSystemError,
    ConfigError,
    ConsumerNotOnlineError,
    IllegalNameError,
    NameServerError,
    NoBrokerError,
    NoRouteError,
    TopicNotExistError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests.topics import CreateTopicRequestHeader

QUEUE = MessageQueue("Topic", "broker-a", 0)
OTHER = MessageQueue("Topic", "broker-b", 0)


@pytest.fixture
async def brokers(fake_broker: FakeBroker, make_broker: BrokerFactory) -> tuple[FakeBroker, FakeBroker]:
    """Two brokers of different clusters; the first is the name server."""
    other = await make_broker("broker-b")
    fake_broker.add_topic("Topic", 4, 6, other)
    info = ClusterInfo(
        {
            "broker-a": BrokerData("one", "broker-a", {0: fake_broker.address, 1: "10.0.0.1:1"}),
            "broker-b": BrokerData("two", "broker-b", {0: other.address}),
            "broker-c": BrokerData("two", "broker-c", {1: "10.0.0.1:2"}),
        },
        {"one": ["broker-a"], "two": ["broker-b", "broker-c", "gone"]},
    )
    fake_broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, answering(info.encode()))
    for broker in (fake_broker, other):
        for code in (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
        ):
            broker.on(code, lambda command: command.reply())
        broker.fail(RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST)
    fake_broker.add_topic("New", 3, 6, other)
    return fake_broker, other


@pytest.fixture
async def admin(brokers: tuple[FakeBroker, FakeBroker]) -> AsyncGenerator[Admin, None]:
    async with Admin(namesrv=brokers[0].address) as made:
        yield made


async def test_creating_leaves_existing_topics_alone(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    brokers[0].on(RequestCode.GET_TOPIC_CONFIG, answering(TopicConfig("New", 8, 8, 4).encode()))
    brokers[0].add_topic("New", 8, 4, brokers[1])
    for queues, perm in ((4, None), (None, 6)):
        with pytest.raises(ConfigError, match=f"{brokers[0].address} with other settings .8 read .* perm 4; wanted: "):
            await admin.create_topic("New", queues, perm)
    assert not any(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC) for broker in brokers)
    assert await admin.create_topic("New", 8, 4, order=True) == [brokers[1].address]
    assert [len(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)) for broker in brokers] == [0, 1]
    assert await admin.create_topic("New", dry_run=True) == [brokers[1].address]
    assert [len(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)) for broker in brokers] == [0, 1]


async def test_new_topic_is_awaited_at_each_name_server(
    brokers: tuple[FakeBroker, FakeBroker], admin: Admin, autojump_clock: MockClock
) -> None:
    late = brokers[0].routes.pop("New")
    async with Admin(namesrv=[brokers[0].address, "127.0.0.1:1"]) as both, trio.open_nursery() as nursery:
        nursery.start_soon(both.create_topic, "New", 3)
        await trio.sleep(4)
        assert nursery.child_tasks
        brokers[0].routes["New"] = late
    with pytest.raises(NameServerError, match=r"'New' is set on its brokers, but .* broker-a, broker-b"):
        await admin.create_topic("New", queues=8)


async def test_topic_may_be_created_in_one_cluster(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    assert await admin.create_topic("New", queues=3, cluster="two") == [brokers[1].address]
    with pytest.raises(ConfigError, match="the name server knows: one, two"):
        await admin.create_topic("New", cluster="three")


async def test_what_no_broker_would_take_is_refused_here(admin: Admin) -> None:
    for topic, queues, error in (("white space", 1, IllegalNameError), ("New", 0, ConfigError)):
        with pytest.raises(error):
            await admin.create_topic(topic, queues)
    for group, reason in (("white space", "white space"), ("g" * 121, "at most 120")):
        with pytest.raises(IllegalNameError, match=reason):
            await admin.create_group(SubscriptionGroupConfig(group))


async def test_name_server_unreachable_for_deletion_is_named(brokers: tuple[FakeBroker, FakeBroker]) -> None:
    async with Admin(namesrv=[brokers[0].address, "127.0.0.1:1"]) as admin:
        with pytest.raises(NameServerError, match=r"not on these name servers: 127\.0\.0\.1:1: .*refused"):
            await admin.delete_topic("Topic")
    deletions = [
        brokers[0].of(RequestCode.DELETE_TOPIC_IN_NAMESRV),
        *(broker.of(RequestCode.DELETE_TOPIC_IN_BROKER) for broker in brokers),
    ]
    assert [[request.ext_fields for request in requests] for requests in deletions] == [[{"topic": "Topic"}]] * 3


async def test_a_route_is_asked_for_anew_each_time(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    assert len((await admin.topic_route("Topic")).queue_datas) == 2
    brokers[0].add_topic("Topic", 8)
    assert [data.write_queue_nums for data in (await admin.topic_route("Topic")).queue_datas] == [8]


async def test_broker_topic_view_uses_the_5x_request(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    brokers[1].on(RequestCode.GET_TOPIC_CONFIG, answering(TopicConfig("Topic", 5, 5).encode()))
    assert (await admin.topic_config("Topic", "broker-b")).read_queue_nums == 5
    with pytest.raises(NoRouteError, match="no master 'broker-x'; its brokers: broker-a, broker-b"):
        await admin.topic_config("Topic", "broker-x")


async def test_broker_of_4x_is_asked_for_all_topics(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    brokers[0].fail(RequestCode.GET_TOPIC_CONFIG, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    table = TopicConfigSerializeWrapper({"Topic": TopicConfig("Topic", 7, 7)})
    brokers[0].on(RequestCode.GET_ALL_TOPIC_CONFIG, answering(table.encode()))
    assert (await admin.topic_config("Topic")).write_queue_nums == 7
    brokers[0].on(RequestCode.GET_ALL_TOPIC_CONFIG, answering(TopicConfigSerializeWrapper().encode()))
    with pytest.raises(TopicNotExistError):
        await admin.topic_config("Topic")


async def test_update_changes_named_settings_only(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    configs = [TopicConfig("Topic", 3, 5, 4, TopicFilterType.MULTI_TAG, 1, order=True), TopicConfig("Topic", 7, 7)]
    for broker, config in zip(brokers, configs, strict=True):
        broker.on(RequestCode.GET_TOPIC_CONFIG, answering(config.encode()))
    brokers[0].routes["Topic"].queue_datas = [QueueData("broker-a", 3, 5, 4), QueueData("broker-b", 7, 7)]
    settings = TopicSettings(write_queues=2, message_type="FIFO")
    planned = await admin.update_topic("Topic", settings, dry_run=True)
    assert [(change.before, change.after.write_queue_nums) for change in planned] == [(configs[0], 2), (configs[1], 2)]
    assert not any(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC) for broker in brokers)
    changes = await admin.update_topic("Topic", settings)
    assert [change.after for change in changes] == configs  # what the brokers answer afterwards
    sent = (broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext_fields for broker in brokers)
    first, second = map(CreateTopicRequestHeader.decode, sent)
    fifo = "+message.type=FIFO"
    assert first == CreateTopicRequestHeader("Topic", "TBW102", 3, 2, 4, "MULTI_TAG", 1, order=True, attributes=fifo)
    assert (second.read_queue_nums, second.write_queue_nums, second.order) == (7, 2, False)
    await admin.update_topic("Topic", TopicSettings(perm=6), broker_name="broker-b")  # it has that already
    assert [len(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)) for broker in brokers] == [1, 1]
    with pytest.raises(ConfigError, match="0 must be above 0"):
        TopicSettings(read_queues=0)


async def test_no_update_if_one_broker_is_silent(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    brokers[0].on(RequestCode.GET_TOPIC_CONFIG, answering(TopicConfig("Topic").encode()))
    brokers[1].fail(RequestCode.GET_TOPIC_CONFIG, ResponseCode.SYSTEM_ERROR)
    with pytest.raises(BrokerSystemError):
        await admin.update_topic("Topic", TopicSettings(perm=4))
    assert not any(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC) for broker in brokers)


async def test_offsets_of_a_queue_come_from_its_broker(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    brokers[1].on(RequestCode.GET_MAX_OFFSET, lambda command: command.reply(ext_fields={"offset": "77"}))
    brokers[1].on(RequestCode.GET_MIN_OFFSET, lambda command: command.reply(ext_fields={"offset": "7"}))
    assert (await admin.min_offset(OTHER), await admin.max_offset(OTHER)) == (7, 77)
    with pytest.raises(NoRouteError, match="its broker is in no known route"):
        await admin.max_offset(MessageQueue("Topic", "broker-x", 0))


async def test_without_a_master_there_is_nothing_to_administer(
    brokers: tuple[FakeBroker, FakeBroker], admin: Admin
) -> None:
    brokers[0].on(RequestCode.GET_BROKER_CLUSTER_INFO, answering(ClusterInfo().encode()))
    with pytest.raises(NoBrokerError, match="knows no running master broker"):
        await admin.groups()


async def test_members_are_collected_from_all_brokers(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    for broker, ids in zip(brokers, (["b", "a"], ["b", "c"]), strict=True):
        found = ConsumerConnection(
            [Connection(client_id) for client_id in ids], {broker.name: SubscriptionData("Topic")}
        )
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, answering(found.encode()))
        broker.consumer_ids["group"] = ids
    members = await admin.group_members("group")
    assert [connection.client_id for connection in members.connection_set] == ["b", "a", "c"]
    assert set(members.subscription_table) == {"broker-a", "broker-b"}
    assert await admin.group_member_ids("group") == ["a", "b", "c"]


async def test_offline_group_is_an_error_except_for_ids(brokers: tuple[FakeBroker, FakeBroker], admin: Admin) -> None:
    for broker in brokers:
        broker.fail(RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE)
        broker.fail(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_ERROR, "no consumer for this group")
    with pytest.raises(ConsumerNotOnlineError, match="'group' has no member online"):
        await admin.group_members("group")
    assert await admin.group_member_ids("group") == []
