"""The name server: routes, the cluster, lists of topics, the key-value table."""

from pathlib import Path

import orjson
import pytest

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.network.connection import Port
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import ClusterInfo, TopicConfig, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode


@pytest.fixture
def near(broker: Broker) -> Peer:
    return Peer(broker, "127.0.0.1:50001")  # others may not change it


def test_route_is_one_line_of_standard_json(peer: Peer) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=5, write_queue_nums=3, perm=6, topic_sys_flag=1))
    response = peer.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert response.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"192.0.2.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        b'"enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":5,"topicSysFlag":1,'
        b'"writeQueueNums":3}]}'
    )


def test_an_unknown_topic_has_no_route(peer: Peer) -> None:
    response = peer.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "unknown"})
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert response.remark is not None
    assert response.remark.startswith("No topic route info in name server for the topic: unknown\n")
    assert not response.body
    assert peer.broker.topics.get("unknown") is None


def test_clients_get_addresses_they_can_reach(peer: Peer, another_peer: Peer) -> None:
    another_peer.advertised = "broker.example:20911"
    for each in (peer, another_peer):
        route = TopicRouteData.decode(each.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).body)
        assert route.broker_datas[0].broker_addrs == {0: each.advertised}
        cluster = ClusterInfo.decode(each.get(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        assert cluster.broker_addr_table["broker-a"].broker_addrs == {0: each.advertised}
        assert cluster.cluster_addr_table == {"DefaultCluster": ["broker-a"]}


def topics(peer: Peer, code: int, **fields: str) -> list[str]:
    response = peer.get(code, fields)
    assert response.code == ResponseCode.SUCCESS
    listed: list[str] = orjson.loads(response.body)["topicList"]
    return listed


def test_all_topics_are_listed(peer: Peer) -> None:
    peer.put("T")
    for listed in (
        topics(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        topics(peer, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster"),
    ):
        assert {"T", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(listed)
    assert topics(peer, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="other") == []


def test_system_topics_include_cluster_and_broker_names(peer: Peer) -> None:
    peer.put("T")
    body = orjson.loads(peer.get(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert body == {"topicList": ["DefaultCluster", "broker-a"], "brokerAddr": peer.advertised}
    body = orjson.loads(peer.get(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)
    assert {"DefaultCluster", "broker-a", "TBW102", "BenchmarkTest"} <= set(body["topicList"])
    assert "T" not in body["topicList"]
    assert body["brokerAddr"] == peer.advertised


def test_route_deletion_succeeds_and_keeps_existing_topic(peer: Peer) -> None:
    peer.put("T")
    for topic in ("T", "unknown"):
        assert peer.get(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}).code == ResponseCode.SUCCESS
    assert peer.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.SUCCESS


def put(peer: Peer, key: str, value: str) -> None:
    fields = {"namespace": "N", "key": key, "value": value}
    assert peer.get(RequestCode.PUT_KV_CONFIG, fields).code == ResponseCode.SUCCESS


def listed(peer: Peer) -> dict[str, str]:
    response = peer.get(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    table: dict[str, str] = orjson.loads(response.body)["table"]
    return table


def test_values_are_put_read_listed_and_deleted(near: Peer) -> None:
    put(near, "one", "1 ünd")
    put(near, "two", "2")
    assert near.get(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "one"}).ext_fields == {"value": "1 ünd"}
    assert listed(near) == {"one": "1 ünd", "two": "2"}
    for _ in range(2):  # the second time the key is missing
        response = near.get(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "one"})
        assert response.code == ResponseCode.SUCCESS
    assert listed(near) == {"two": "2"}


def shown(peer: Peer, namespace: str) -> tuple[int, int]:
    """Return the codes of the answers with a value, and with all of the namespace."""
    fields = {"namespace": namespace, "key": "K"}
    value, values = (
        peer.ask(code, fields) for code in (RequestCode.GET_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE)
    )
    assert value is not None
    assert values is not None
    return value.code, values.code


def test_strangers_see_no_paths_and_foreign_values(near: Peer, caplog: pytest.LogCaptureFixture) -> None:
    for namespace in ("N", "ORDER_TOPIC_CONFIG"):
        fields = {"namespace": namespace, "key": "K", "value": "a:4"}
        assert near.get(RequestCode.PUT_KV_CONFIG, fields).code == ResponseCode.SUCCESS
    for port in Port:
        stranger = Peer(near.broker, port=port)
        config = bytes(stranger.get(RequestCode.GET_NAMESRV_CONFIG).body)
        sees_all = port is Port.ADMIN
        assert (b"orderMessageEnable=false" in config, b"kvConfig.json" in config) == (True, sees_all)
        code = ResponseCode.SUCCESS if sees_all else ResponseCode.NO_PERMISSION
        assert shown(stranger, "N") == (code, code)
        assert shown(stranger, "ORDER_TOPIC_CONFIG") == (0, 0)
    assert b"kvConfig.json" in bytes(near.get(RequestCode.GET_NAMESRV_CONFIG).body)
    assert caplog.text.count("code=101 reason=request 101 reads the key-value table") == 1


def test_administrators_with_account_see_paths(make_broker: MakeBroker, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("globalWhiteRemoteAddresses: [192.0.2.9]\naccounts: []\n")
    broker = make_broker(acl=path)
    for port in (Port.BROKER, Port.NAMESRV):
        config = bytes(Peer(broker, port=port).get(RequestCode.GET_NAMESRV_CONFIG).body)
        assert (b"kvConfig.json" in config) == (port is Port.BROKER)


@pytest.mark.parametrize(
    ("code", "fields", "remark"),
    [
        (RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "K"}, "No config item, Namespace: N Key: K"),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}, "No config item, Namespace: N"),
    ],
)
def test_what_is_not_there_is_not_found(near: Peer, code: int, fields: dict[str, str], remark: str) -> None:
    response = near.get(code, fields)
    assert (response.code, response.remark) == (ResponseCode.QUERY_NOT_FOUND, remark)
