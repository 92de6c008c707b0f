"""route: requests to the name server and its answers."""

import zlib

import pytest

from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    GroupList,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    read_registration,
    registration_crc,
)
from triomq.protocol.errors import ProtocolError
from triomq.storage.reading.cold_read import finish

ROUTE = TopicRouteData(
    queue_datas=[QueueData("broker-a", 4, 4, 6, 0)],
    broker_datas=[BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.5:10911", 1: "10.0.0.6:10911"})],
)
CLUSTER = ClusterInfo(
    {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.5:10911"})}, {"DefaultCluster": ["broker-a"]}
)
GROUP = (
    b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g",'
    b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)
GOLDEN: list[tuple[bytes, JsonBody]] = [
    (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.5:10911","1":"10.0.0.6:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
        ROUTE,
    ),
    (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.5:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
        CLUSTER,
    ),
    (b'{"counter":1,"timestamp":1795214606377}', DataVersion(1795214606377, 1)),
    (GROUP, SubscriptionGroupConfig("g")),
    (
        b'{"dataVersion":{"counter":14,"timestamp":1795214614713},"subscriptionGroupTable":{"g":' + GROUP + b"}}",
        SubscriptionGroupWrapper({"g": SubscriptionGroupConfig("g")}, DataVersion(1795214614713, 14)),
    ),
    (b'{"table":{}}', KVTable()),
    (b'{"table":{"brokerVersion":"407"}}', KVTable({"brokerVersion": "407"})),
    (b'{"topicList":["TopicA","%RETRY%CG"]}', TopicList(["TopicA", "%RETRY%CG"])),
    (b'{"brokerAddr":"10.0.0.5:10911","topicList":[]}', TopicList([], "10.0.0.5:10911")),
    (b'{"groupList":["CG"]}', GroupList(["CG"])),
]


@pytest.mark.parametrize(("text", "body"), GOLDEN, ids=lambda value: type(value).__name__)
def test_body_equals_what_java_writes(text: bytes, body: JsonBody) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body


def test_route_is_read_with_bare_ids_too() -> None:
    text = ROUTE.encode(quoted_ids=False)
    assert b'{0:"10.0.0.5:10911",1:"10.0.0.6:10911"}' in text
    assert TopicRouteData.decode(text) == ROUTE


def test_route_may_lack_filter_servers_and_have_order() -> None:
    route = TopicRouteData.decode(b'{"orderTopicConf":"broker-a:4;broker-b:4","queueDatas":[],"brokerDatas":[]}')
    assert (route.order_topic_conf, route.filter_server_table) == ("broker-a:4;broker-b:4", {})
    assert route.encode().startswith(b'{"brokerDatas":[],"filterServerTable":{},"orderTopicConf":"broker-a:4;')


def test_topic_of_5_x_has_attributes() -> None:
    assert TopicConfig.decode(b'{"topicName":"T","attributes":{}}').attributes == {}
    assert b'{"attributes":{},' in TopicConfig("T", attributes={}).encode()
    assert b"attributes" not in TopicConfig("T").encode()


PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":2,"timestamp":1795213957162},'
    b'"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}}}}'
)
TOPICS = TopicConfigSerializeWrapper({"TopicA": TopicConfig("TopicA", 4, 4)}, DataVersion(1795213957162, 2))


def read(body: bytes, *, compressed: bool) -> TopicConfigSerializeWrapper:
    return finish(read_registration(body, compressed=compressed))


def part(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def compressed(*lines: bytes, count: int | None = None) -> bytes:
    version = part(b'{"counter":2,"timestamp":1795213957162}')
    number = (len(lines) if count is None else count).to_bytes(4, "big")
    return zlib.compress(b"".join((version, number, *map(part, lines), part(b"[]"))), 9)


def test_the_plain_body_equals_what_java_writes() -> None:
    assert RegisterBrokerBody(TOPICS).encode() == PLAIN
    assert read(PLAIN, compressed=False) == TOPICS


@pytest.mark.parametrize("line", [b"TopicA 4 4 6 SINGLE_TAG", b'TopicA 4 4 6 SINGLE_TAG {"+message.type":"NORMAL"}'])
def test_compressed_registration_of_both_versions_is_read(line: bytes) -> None:
    assert read(compressed(line), compressed=True) == TOPICS


def test_the_body_of_5_x_is_read() -> None:
    """It has members for static topics, whose maps may have numbers as keys."""
    body = PLAIN[:-2] + b',"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{"S":{"currIdMap":{0:1}}}}}'
    assert read(body, compressed=False) == TOPICS


def test_a_long_body_is_read_in_parts() -> None:
    topics = TopicConfigSerializeWrapper({name: TopicConfig(name) for name in map(str, range(1000))}, DataVersion(1, 2))
    body = RegisterBrokerBody(topics).encode()
    assert read(body, compressed=False) == topics
    assert len(list(read_registration(body, compressed=False))) > 3


@pytest.mark.parametrize(
    "body",
    [
        compressed(b"TopicA 4 4"),
        compressed(b"TopicA 4 x 6 SINGLE_TAG"),
        compressed(count=5),
        compressed(count=2**31 - 1),
    ],
)
def test_a_damaged_compressed_body_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="compressed registration"):
        read(body, compressed=True)


def test_the_checksum_is_never_negative() -> None:
    assert registration_crc(b"abc") == 0x352441C2
    assert registration_crc(b"triomq") == zlib.crc32(b"triomq") & 0x7FFFFFFF
