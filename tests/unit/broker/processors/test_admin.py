"""Administration of topics, groups and tables by request."""

from typing import Any

import orjson
import pytest
import trio

from tests.unit.broker.recording import Peer
from triomq.protocol.bodies.route import (
    GroupConfigList,
    GroupNameList,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigList,
    TopicConfigSerializeWrapper,
    TopicFilterType,
    TopicList,
)
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import finish

TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


def create(peer: Peer, **fields: Any) -> RemotingCommand:
    return peer.get(RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, **fields})


def delete(peer: Peer, topic: str = "T") -> RemotingCommand:
    return peer.get(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


def test_a_topic_is_made_and_changed(peer: Peer) -> None:
    assert create(peer, topicFilterType="MULTI_TAG", topicSysFlag=2).code == ResponseCode.SUCCESS
    assert peer.broker.topics.get("T") == TopicConfig(
        topic_name="T",
        read_queue_nums=3,
        write_queue_nums=2,
        perm=6,
        topic_filter_type=TopicFilterType.MULTI_TAG,
        topic_sys_flag=2,
    )
    create(peer, perm=4, readQueueNums=0)
    config = peer.broker.topics.get("T")
    assert config is not None
    assert (config.perm, config.read_queue_nums) == (4, 0)


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"])
def test_system_topic_cannot_be_changed_or_deleted(peer: Peer, topic: str) -> None:
    before = peer.broker.topics.get(topic)
    for response in (create(peer, topic=topic), delete(peer, topic)):
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark is not None
        assert "is conflict with system topic" in response.remark
    assert peer.broker.topics.get(topic) == before


@pytest.mark.parametrize(
    "fields",
    [
        *({"topic": topic} for topic in ("with space", "t" * 128, "", "../../etc/passwd")),
        *({"readQueueNums": queues} for queues in (-1, "many")),
        *({"writeQueueNums": queues} for queues in (65_537, 2**31)),
        *({"perm": perm} for perm in (16, -1)),
        {"topicFilterType": "NO_TAG"},
    ],
)
def test_an_impossible_topic_is_refused(peer: Peer, fields: dict[str, Any]) -> None:
    before = list(peer.broker.topics.configs)
    response = create(peer, **fields)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark
    assert list(peer.broker.topics.configs) == before


def test_deleted_topic_loses_messages_offsets_and_statistics(peer: Peer) -> None:
    peer.put("T")
    peer.put("T2")
    for topic in ("T", "T2"):
        peer.broker.groups.offsets.commit("G", topic, 0, 1)
    assert delete(peer).code == ResponseCode.SUCCESS
    assert peer.broker.topics.get("T") is None
    assert peer.broker.store.reader.max_offset_in_queue("T", 0) == 0
    assert finish(peer.broker.groups.offsets.of_group("G")) == {"T2": {0: 1}}
    assert peer.broker.statistics.put_by_topic == {"T2": 1}
    assert peer.get(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_topic_with_leftover_files_is_reported_and_redeletable(peer: Peer) -> None:
    """No offset hides later messages; others continue to send."""
    peer.put("T")
    peer.broker.groups.offsets.commit("G", "T", 0, 1)
    foreign = peer.broker.store.config.root / "consumequeue/T/0/notes"
    foreign.mkdir()
    refusal = delete(peer)
    assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "cannot delete" in str(refusal.remark)
    assert str(foreign.parent) in str(refusal.remark)
    assert finish(peer.broker.groups.offsets.of_group("G")) == {}
    refused = peer.put("T")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "delete it again" in str(refused.remark)
    assert peer.put("U").code == ResponseCode.SUCCESS
    foreign.rmdir()
    assert delete(peer).code == ResponseCode.SUCCESS
    assert peer.broker.topics.get("T") is None
    assert peer.put("T").ext_fields["queueOffset"] == "0"


def test_topic_with_unrecorded_deletion_keeps_its_data(peer: Peer) -> None:
    peer.put("T")
    peer.broker.groups.offsets.commit("G", "T", 0, 1)
    blocked = peer.broker.store.config.root / "config/deletedTopics.json.tmp"
    blocked.mkdir(parents=True)
    assert delete(peer).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert finish(peer.broker.groups.offsets.of_group("G")) == {"T": {0: 1}}
    assert peer.put("T").ext_fields["queueOffset"] == "1"
    blocked.rmdir()
    assert delete(peer).code == ResponseCode.SUCCESS


def test_deleting_unknown_topic_succeeds(peer: Peer) -> None:
    assert delete(peer, "unknown").code == ResponseCode.SUCCESS


async def test_deleting_topic_answers_only_its_held_pulls(peer: Peer, another_peer: Peer) -> None:
    for topic in ("T", "T2"):
        create(peer, topic=topic)
        assert another_peer.pull(topic, 0, sysFlag=6) is None
    async with trio.open_nursery() as peer.broker.worker.nursery:
        peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    (response,) = another_peer.sent
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert response.remark == "topic[T] not exist, apply first please!"
    assert response.flag == CommandFlag.RESPONSE
    assert peer.broker.pulls.hold.held == 1


def test_topic_table_has_rocketmqs_json(peer: Peer) -> None:
    create(peer)
    body = bytes(peer.get(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    assert (
        b'"T":{"order":false,"perm":6,"readQueueNums":3,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        b'"topicSysFlag":0,"writeQueueNums":2}'
    ) in body
    wrapper = TopicConfigSerializeWrapper.decode(body)
    assert wrapper.data_version == peer.broker.topics.data_version
    assert set(wrapper.topic_config_table) == set(peer.broker.topics.configs)


def test_single_topic_config_for_5x_tools(peer: Peer) -> None:
    create(peer)
    body = orjson.loads(peer.get(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": "true"}).body)
    assert body["attributes"] == {}
    assert TopicConfig.from_json({**body, "attributes": None}) == peer.broker.topics.get("T")
    response = peer.get(RequestCode.GET_TOPIC_CONFIG, {"topic": "unknown"})
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.get(RequestCode.GET_TOPIC_CONFIG).code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def put_group(peer: Peer, **members: Any) -> RemotingCommand:
    body = SubscriptionGroupConfig(**{"group_name": "G", **members}).encode()
    return peer.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def test_group_is_created_changed_and_read(peer: Peer) -> None:
    assert put_group(peer, retry_max_times=5, consume_enable=False).code == ResponseCode.SUCCESS
    config = peer.broker.groups.settings.get("G")
    assert config is not None
    assert (config.retry_max_times, config.consume_enable) == (5, False)
    put_group(peer, retry_max_times=6)
    wrapper = SubscriptionGroupWrapper.decode(peer.get(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert wrapper.subscription_group_table["G"].retry_max_times == 6
    assert wrapper.data_version == peer.broker.groups.settings.data_version
    one = peer.get(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert SubscriptionGroupConfig.decode(one.body) == peer.broker.groups.settings.get("G")


def test_unknown_group_is_not_found_or_created(peer: Peer) -> None:
    response = peer.get(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "unknown"})
    assert response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert peer.broker.groups.settings.get("unknown") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"groupName":"a@b"}',
        b'{"groupName":"G","retryQueueNums":-1}',
        b'{"groupName":"G","retryQueueNums":100000000}',
        b'{"groupName":"G","retryMaxTimes":"often"}',
    ],
)
def test_an_impossible_group_is_refused(peer: Peer, body: bytes) -> None:
    before = list(peer.broker.groups.settings.configs)
    assert peer.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == ResponseCode.SYSTEM_ERROR
    assert list(peer.broker.groups.settings.configs) == before


def test_new_group_name_must_fit_retry_topic(peer: Peer) -> None:
    def put(name: str) -> int:
        body = SubscriptionGroupConfig(group_name=name).encode()
        return peer.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code

    assert (put("g" * 120), put("g" * 121)) == (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    assert peer.broker.groups.settings.get("g" * 121) is None
    peer.broker.groups.settings.put(SubscriptionGroupConfig(group_name="g" * 121))  # of Apache's broker
    assert put("g" * 121) == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("fields", "is_kept"), [({}, True), ({"removeOffset": "true"}, False), ({"cleanOffset": "true"}, False)]
)
def test_deleted_group_keeps_offsets_unless_requested(peer: Peer, fields: dict[str, str], is_kept: bool) -> None:
    put_group(peer)
    peer.broker.groups.offsets.commit("G", "T", 0, 1)
    statistics = peer.broker.statistics
    for group in ("G", "H"):
        statistics.get(group, "T", 1, 1)
        statistics.send_back(group, "T")
    response = peer.get(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", **fields})
    assert response.code == ResponseCode.SUCCESS
    assert statistics.get_by_group == statistics.sent_back_by_group == {("T", "H"): 1}
    assert peer.broker.groups.settings.get("G") is None
    assert (peer.broker.groups.offsets.query("G", "T", 0) is not None) is is_kept


def test_copied_offsets_have_bare_number_keys(peer: Peer) -> None:
    assert peer.get(RequestCode.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{}}'
    for number in (1, 3):
        peer.broker.groups.offsets.commit("G", "T", number, 4)
        peer.broker.delayed.schedule.offsets.set(number, 4)
    assert peer.get(RequestCode.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"T@G":{1:4,3:4}}}'
    assert peer.get(RequestCode.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{1:4,3:4}}'


def put_topics(peer: Peer, *configs: TopicConfig) -> RemotingCommand:
    return peer.get(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=TopicConfigList(list(configs)).encode())


def put_groups(peer: Peer, *configs: SubscriptionGroupConfig) -> RemotingCommand:
    return peer.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=GroupConfigList(list(configs)).encode())


def test_topics_are_set_and_deleted_together(peer: Peer) -> None:
    wanted = [TopicConfig(topic_name=name, read_queue_nums=3, perm=4) for name in ("T", "U")]
    assert put_topics(peer, *wanted).code == ResponseCode.SUCCESS
    assert [peer.broker.topics.get(name) for name in ("T", "U")] == wanted
    peer.put("T")
    body = TopicList(["T", "U", "unknown"]).encode()
    assert peer.get(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, body=body).code == ResponseCode.SUCCESS
    assert {"T", "U"}.isdisjoint(peer.broker.topics.configs)


def test_groups_are_set_and_deleted_together(peer: Peer) -> None:
    settings, offsets = peer.broker.groups.settings, peer.broker.groups.offsets
    for with_offsets in (False, True):
        wanted = [SubscriptionGroupConfig(name, retry_max_times=3) for name in ("G", "H")]
        assert put_groups(peer, *wanted).code == ResponseCode.SUCCESS
        assert [settings.get(name) for name in ("G", "H")] == wanted
        offsets.commit("G", "T", 0, 1)
        body = GroupNameList(["G", "H"], clean_offset=with_offsets).encode()
        assert peer.get(RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, body=body).code == ResponseCode.SUCCESS
        assert {"G", "H"}.isdisjoint(settings.configs)
        assert offsets.query("G", "T", 0) == (None if with_offsets else 1)


def test_one_impossible_name_refuses_the_list(peer: Peer) -> None:
    put_topics(peer, TopicConfig("T"))
    put_groups(peer, SubscriptionGroupConfig("G"))
    refused = (
        put_topics(peer, TopicConfig("U"), TopicConfig("with space")),
        put_groups(peer, SubscriptionGroupConfig("H"), SubscriptionGroupConfig("a@b")),
        peer.get(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, body=TopicList(["T", "TBW102"]).encode()),
        peer.get(RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, body=GroupNameList(["G", "CID_RMQ_SYS_TRANS"]).encode()),
    )
    assert ResponseCode.SUCCESS not in {each.code for each in refused}
    assert peer.broker.topics.get("T") is not None
    assert peer.broker.topics.get("U") is None
    assert "G" in peer.broker.groups.settings.configs
    assert "H" not in peer.broker.groups.settings.configs


#: RPC fields of 5.x, and paging fields of 21 and 201: no broker of 4.9.7 has them.
FIELDS_OF_5: dict[str, Any] = {
    "ns": "space",
    "nsd": "true",
    "bname": "broker-a",
    "oway": "false",
    "lo": "true",
    "liteTopic": "l",
}
PAGING = {"topicSeq": "0", "groupSeq": "0", "maxTopicNum": "1", "maxGroupNum": "1", "dataVersion": "{}"}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, PAGING),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, PAGING),
        (RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}),
        (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": "0"}),
    ],
)
def test_fields_of_5x_change_no_answer(peer: Peer, code: RequestCode, fields: dict[str, str]) -> None:
    create(peer)
    put_group(peer)
    peer.broker.groups.offsets.commit("G", "T", 0, 1)
    known = {name: value for name, value in fields.items() if name not in PAGING}
    plain, answer = peer.get(code, known), peer.get(code, {**FIELDS_OF_5, **fields})
    assert plain.code == ResponseCode.SUCCESS
    assert (answer.code, answer.ext_fields, bytes(answer.body)) == (plain.code, plain.ext_fields, bytes(plain.body))


def test_send_of_5x_is_stored_as_any_other(peer: Peer) -> None:
    assert peer.put("T", **FIELDS_OF_5).code == ResponseCode.SUCCESS
    assert peer.broker.store.reader.max_offset_in_queue("T", 0) == 1


def test_refused_request_names_the_reason(peer: Peer) -> None:
    response = peer.get(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert response.remark == " request type 1005 not supported: masters and slaves need no controller"
