"""Heartbeats and their effects: groups, retry topics, members, notices."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import VERSION, CommandFlag, RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import FORMATS_FIELD


def heartbeat(
    peer: Peer,
    client_id: str = "c1",
    *groups: str,
    topics: tuple[str, ...] = ("T",),
    producers: tuple[str, ...] = (),
    **rest: Any,
) -> RemotingCommand:
    subscriptions = [tag_subscription(topic, "*", 1) for topic in topics]
    consumers = [ConsumerData(group_name=group, subscription_data_set=subscriptions) for group in groups]
    body = HeartbeatData(client_id, [ProducerData(name) for name in producers], consumers)
    return peer.get(RequestCode.HEART_BEAT, body=body.encode(), **rest)


def notices(peer: Peer) -> list[str]:
    """Return the groups of the notices that the peer got, and forget them."""
    assert not any(peer.broker.groups.notices.notify_members())
    for command in peer.sent:
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert command.flag == CommandFlag.ONEWAY
    groups = [command.ext_fields["consumerGroup"] for command in peer.sent]
    peer.sent.clear()
    return groups


def test_wall_clock_step_keeps_members_and_locks(make_broker: MakeBroker) -> None:
    first = make_broker()
    now_ms = [1_795_000_000_000]
    broker = Broker(first.config, first.store, lambda: now_ms[0])
    broker.load()
    member, other = Peer(broker), Peer(broker, "192.0.2.10:50002")
    member.put("T")
    heartbeat(member, "c1", "G")
    queue = MessageQueue("T", "broker-a", 0)
    assert broker.groups.locks.lock("G", "c1", member.as_connection, [queue]) == [queue]
    now_ms[0] += 3_600_000
    assert broker.groups.consumers.expired(broker.config.client_timeout_s) == set()
    assert broker.groups.locks.lock("G", "c2", other.as_connection, [queue]) == []
    assert broker.groups.locks.owner("G", queue) == "c1"


@pytest.mark.parametrize(
    ("kind", "model", "longest"),
    [
        (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, 120),
        (ConsumeType.CONSUME_PASSIVELY, MessageModel.BROADCASTING, 255),
        (ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING, 255),
    ],
)
def test_group_name_too_long_for_retry_topic(peer: Peer, kind: ConsumeType, model: MessageModel, longest: int) -> None:
    def beat(length: int) -> RemotingCommand:
        data = ConsumerData("g" * length, kind, model, subscription_data_set=[tag_subscription("T", "*", 1)])
        return peer.get(RequestCode.HEART_BEAT, body=HeartbeatData("c1", [], [data]).encode())

    refused = beat(longest + 1)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert f"{longest + 8} characters, at most 127" in str(refused.remark) or longest == 255
    assert not list(peer.broker.groups.consumers)
    assert beat(longest).code == ResponseCode.SUCCESS
    assert [group.name for group in peer.broker.groups.consumers] == ["g" * longest]
    retry_topics = [name for name in list(peer.broker.topics.configs) if name.startswith("%RETRY%")]
    assert retry_topics == (["%RETRY%" + "g" * 120] if longest == 120 else [])


@pytest.mark.parametrize("queues", [None, 3])
def test_heartbeat_creates_group_and_retry_topic(peer: Peer, queues: int | None) -> None:
    """C.2 scenario 31."""
    if queues is not None:
        peer.broker.groups.settings.put(SubscriptionGroupConfig(group_name="G", retry_queue_nums=queues))
    response = heartbeat(peer, "c1", "G")
    assert (response.code, response.version, response.body) == (ResponseCode.SUCCESS, VERSION, b"")
    assert peer.broker.groups.settings.get("G") is not None
    retry = peer.broker.topics.get("%RETRY%G")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (queues or 1, queues or 1, 6)


def test_heartbeat_of_uncreatable_group_still_succeeds(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(auto_create_group=False))
    assert heartbeat(peer, "c1", "G").code == ResponseCode.SUCCESS
    assert peer.broker.topics.get("%RETRY%G") is None
    assert peer.broker.groups.consumers.get("G") is not None


@pytest.mark.parametrize(
    ("formats", "body", "confirmed"),
    [
        ("msgpack", None, {"triomqHeaderFormats": "msgpack"}),
        ("cbor,msgpack", None, {"triomqHeaderFormats": "msgpack"}),
        ("", None, {}),
        ("cbor", None, {}),
        ("msgpack2", None, {}),
        ("msgpack", b"{", {}),
    ],
)
def test_msgpack_headers_are_confirmed(peer: Peer, formats: str, body: bytes | None, confirmed: dict[str, str]) -> None:
    response = peer.get(RequestCode.HEART_BEAT, {FORMATS_FIELD: formats}, body=body or HeartbeatData("c1").encode())
    assert (response.code, response.ext_fields) == (ResponseCode.SYSTEM_ERROR if body else 0, confirmed)


@pytest.mark.parametrize("group", ["a@b", "with space", "G" * 256, "", "../G"])
def test_illegal_group_name_rejects_whole_heartbeat(peer: Peer, group: str) -> None:
    assert heartbeat(peer, "c1", "good", group, producers=("P",)).code == ResponseCode.SYSTEM_ERROR
    assert peer.broker.groups.consumers.get("good") is None
    assert peer.broker.groups.producers.groups.get("P") is None
    assert notices(peer) == []


LONG_TOPIC = SubscriptionData("T" * 513)
LIMITS = {"max_client_groups": 3, "max_client_subscriptions": 5, "max_heartbeat_bytes": 2500}


def subscribed(group: str, topics: int, **fields: Any) -> ConsumerData:
    return ConsumerData(
        group, subscription_data_set=[SubscriptionData(topic=f"{group}-{n}", **fields) for n in range(topics)]
    )


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (HeartbeatData("c", [ProducerData("P")], [subscribed("A", 3), subscribed("B", 2)]), None),
        (HeartbeatData("c" * 1024, [ProducerData("P" * 255)]), None),
        (HeartbeatData("c", [ProducerData(name) for name in "PQRS"]), "groups"),
        (HeartbeatData("c", [], [subscribed("A", 6)]), "max_client_subscriptions"),
        (HeartbeatData("c", [], [ConsumerData(f"G{n}") for n in range(9)]), "max_client_subscriptions"),
        (HeartbeatData("c", [], [subscribed("A", 1, sub_string="x" * 2500)]), "max_heartbeat_bytes"),
        (HeartbeatData("c", [], [subscribed("A", 1, tags_set=["x"] * 160)]), None),  # they are not kept
        (HeartbeatData("c", [], [subscribed("A", 1, expression_type="x" * 2500)]), "max_heartbeat_bytes"),
        (HeartbeatData("c" * 1025), "1025 characters in a client id"),
        (HeartbeatData("c", [ProducerData("P" * 256)]), "256 characters in a group name"),
        (HeartbeatData("c", [], [subscribed("T" * 256, 1)]), "256 characters in a group name"),
        (HeartbeatData("c", [], [ConsumerData("A", subscription_data_set=[LONG_TOPIC])]), "topic name"),
    ],
)
def test_heartbeat_beyond_limit_is_refused(make_broker: MakeBroker, body: HeartbeatData, limit: str | None) -> None:
    peer = Peer(make_broker(**LIMITS))
    groups = len(list(peer.broker.groups.settings.configs))
    response = peer.get(RequestCode.HEART_BEAT, body=body.encode())
    if limit is None:
        assert response.code == ResponseCode.SUCCESS
        return
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert limit in str(response.remark)
    assert len(list(peer.broker.groups.settings.configs)) == groups
    assert not peer.broker.groups.producers.groups
    assert not list(peer.broker.groups.consumers)
    assert peer.broker.statistics.limited_requests == 1


def test_limits_apply_to_all_heartbeats_of_client(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(**LIMITS))

    def announce(*consumers: ConsumerData, producer: str = "") -> int:
        body = HeartbeatData("c", [ProducerData(producer)] if producer else [], list(consumers))
        return peer.get(RequestCode.HEART_BEAT, body=body.encode()).code

    assert announce(subscribed("A", 3)) == announce(subscribed("B", 2)) == announce(producer="P")
    for beyond in (announce(subscribed("C", 0)), announce(subscribed("B", 3)), announce(producer="Q")):
        assert beyond == ResponseCode.SYSTEM_ERROR
    long = "x" * 1500
    assert announce(subscribed("A", 1, sub_string=long, sub_version=1)) == ResponseCode.SUCCESS
    assert announce(subscribed("B", 1, sub_string=long, sub_version=1)) == ResponseCode.SYSTEM_ERROR
    peer.get(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "A"})
    assert announce(subscribed("B", 1, sub_string=long, sub_version=1)) == ResponseCode.SUCCESS


def test_refusals_are_logged_once_for_each_limit(make_broker: MakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(make_broker(**LIMITS))
    for _ in range(5):
        heartbeat(peer, "c" * 1025)
        heartbeat(peer, "c", *"ABCD")
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("requests beyond a limit since the start: 1; the last one peer=192.0.2.9")


@pytest.mark.parametrize(
    ("group", "queue", "is_granted"),
    [
        ("G", MessageQueue("T", "broker-a", 3), True),
        ("G", MessageQueue("T", "broker-a", 4), False),
        ("G", MessageQueue("T", "broker-a", -1), False),
        ("G", MessageQueue("T", "broker-b", 0), False),
        ("G", MessageQueue("U", "broker-a", 0), False),
        ("H", MessageQueue("T", "broker-a", 0), False),
    ],
)
def test_only_existing_queues_are_locked(peer: Peer, group: str, queue: MessageQueue, is_granted: bool) -> None:
    peer.put("T")
    heartbeat(peer, "c1", "G")
    body = LockBatchRequestBody("c1", group, [queue]).encode()
    answer = LockBatchResponseBody.decode(peer.get(RequestCode.LOCK_BATCH_MQ, body=body).body)
    assert answer.lock_ok_mq_set == ([queue] if is_granted else [])
    assert bool(peer.broker.groups.locks._locks) == is_granted


def test_joining_and_unregistering_notify_members(peer: Peer, another_peer: Peer) -> None:
    heartbeat(peer, "c1", "G", producers=("P",))
    notices(peer)
    heartbeat(another_peer, "c2", "G")
    assert notices(peer) == notices(another_peer) == ["G"]
    fields = {"clientID": "c1", "consumerGroup": "G", "producerGroup": "P"}
    assert peer.get(RequestCode.UNREGISTER_CLIENT, fields).code == ResponseCode.SUCCESS
    assert (notices(peer), notices(another_peer)) == ([], ["G"])
    assert peer.broker.groups.producers.groups.get("P") is None
    assert peer.get(RequestCode.UNREGISTER_CLIENT, fields).code == ResponseCode.SUCCESS


def test_members_of_group_are_listed(peer: Peer, another_peer: Peer) -> None:
    """C.2 scenario 37."""

    def members(group: str) -> bytes | memoryview | str | None:
        response = peer.get(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        return response.remark if response.code == ResponseCode.SYSTEM_ERROR else response.body

    heartbeat(peer, "c1", "G")
    heartbeat(another_peer, "c2", "G")
    assert members("G") == b'{"consumerIdList":["c1","c2"]}'
    for client, client_id in ((peer, "c1"), (another_peer, "c2")):
        client.get(RequestCode.UNREGISTER_CLIENT, {"clientID": client_id, "consumerGroup": "G"})
    assert members("G") == "no consumer for this group, G"
    assert members("unknown") == "no consumer for this group, unknown"


def check_filter(peer: Peer, expression: str, kind: str = "SQL92") -> RemotingCommand:
    subscription = SubscriptionData(topic="T", sub_string=expression, expression_type=kind)
    body = CheckClientRequestBody("c1", "G", subscription).encode()
    return peer.get(RequestCode.CHECK_CLIENT_CONFIG, body=body)


@pytest.mark.parametrize(
    ("expression", "expression_type", "remark"),
    [
        ("a > 5", "SQL92", None),
        ("a >", "SQL92", "SQL expression, character 4: expected a value, not the end"),
        ("a", "sql92", "filter type 'sql92' is unknown: use TAG or SQL92"),
    ],
)
def test_a_filter_is_checked(peer: Peer, expression: str, expression_type: str, remark: str | None) -> None:
    response = check_filter(peer, expression, expression_type)
    assert response.code == (ResponseCode.SUBSCRIPTION_PARSE_FAILED if remark else ResponseCode.SUCCESS)
    assert response.remark == remark


def test_long_sql_filter_is_refused(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(max_sql_characters=1000))
    refused = check_filter(peer, "a=1 OR " * 143 + "a=1")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "1004 characters are too many, the limit is 1000 (max_sql_characters)" in (refused.remark or "")
    assert check_filter(peer, "a=1 OR " * 142 + "a=1").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("expression", "kind", "seconds"),
    [("a=1", "SQL92", 1), ("a >", "SQL92", 1), ("||", "TAG", 1), ("b" * 9000, "SQL92", 0)],
    ids=["valid", "wrong", "no-tag", "too-long"],
)
def test_time_of_parsing_is_charged_once(peer: Peer, expression: str, kind: str, seconds: int) -> None:
    worker = peer.broker.worker
    worker.clock = itertools.count().__next__  # each look takes a second
    worker.begin_step()
    worker.charge(1)
    unit_s, worker.wait_s = worker.wait_s, 0
    for _ in range(2):
        check_filter(peer, expression, kind)
        assert worker.wait_s == seconds * unit_s


def test_members_leaving_together_cause_one_notice(broker: Broker) -> None:
    peers = [Peer(broker, f"192.0.2.9:{number}") for number in range(1, 101)]
    for peer in peers:
        heartbeat(peer, f"c{peer.peer}", "G")
    assert sum(1 for _ in broker.groups.notices.notify_members()) == 4
    assert [notices(peer) for peer in peers] == [["G"]] * 100
    for peer in peers[:50]:
        broker.groups.consumers.forget(peer.as_connection)
    assert [notices(peer) for peer in peers] == [[]] * 50 + [["G"]] * 50


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG])
def test_body_above_limit_is_refused(make_broker: MakeBroker, code: int) -> None:
    peer = Peer(make_broker(max_body_bytes=1000))
    assert peer.get(code, body=b"{}" + b" " * 998).code == ResponseCode.SUCCESS
    refused = peer.get(code, body=b"{}" + b" " * 999)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "has 1001 bytes, the limit is 1000" in (refused.remark or "")


def test_many_queues_are_locked_in_parts(broker: Broker, peer: Peer) -> None:
    broker.topics.put(TopicConfig("T", read_queue_nums=600, write_queue_nums=600))
    broker.groups.settings.put(SubscriptionGroupConfig("G"))
    queues = [MessageQueue("T", "broker-a", number) for number in range(600)]
    body = LockBatchRequestBody("c1", "G", queues)
    answer = peer.get(RequestCode.LOCK_BATCH_MQ, body=body.encode())
    assert LockBatchResponseBody.decode(answer.body).lock_ok_mq_set == queues
    peer.get(RequestCode.UNLOCK_BATCH_MQ, body=replace(body, mq_set=queues[1:]).encode())
    assert [queue for queue in queues if broker.groups.locks.owner("G", queue)] == queues[:1]
