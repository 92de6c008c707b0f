"""Requests that the broker relays to consumers, and replies that it pushes to requesters."""

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Peer
from triomq.broker.network import client_requests
from triomq.broker.network.client_requests import NoAnswer
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import GetConsumerStatusBody, ResetOffsetBody
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode
from triomq.protocol.errors import StoreFullError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.properties import decode_properties
from triomq.protocol.requests.messages import PushReplyMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand

RESET = {"topic": "T", "group": "G", "timestamp": -1, "isForce": "true"}
STATUS = {"topic": "T", "group": "G"}
INFO = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "false"}


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", queue_id)


def member(peer: Peer, client_id: str = "c1") -> Peer:
    """Add the peer to the group, and forget the notice of that."""
    heartbeat(peer, client_id, "G")
    peer.sent.clear()
    return peer


def answer(peer: Peer, *, code: int = 0, body: bytes = b"", remark: str | None = None) -> bool:
    """Answer the last request that a client got."""
    reply = peer.sent[-1].reply(code, {"k": "v"}, body, remark)
    return peer.broker.context.client_requests.handle_answer(peer.as_connection, reply)


@pytest.fixture
def committed(broker: Broker, peer: Peer) -> Broker:
    """The group has consumed 2 of 3 messages in one of two queues."""
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    for _ in range(3):
        peer.put("T")
    for queue_id, queue_offset in enumerate((2, 0)):
        broker.groups.offsets.commit("G", "T", queue_id, queue_offset)
    return broker


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"), [(-1, True, 3), (-1, False, 2), (0, True, 0), (0, False, 0)]
)
def test_members_get_reset_offsets(
    committed: Broker, peer: Peer, another_peer: Peer, timestamp: int, force: bool, expected: int
) -> None:
    """C.2 scenario 61: without force nothing moves forward; the broker's own offsets stay until members commit."""
    member(peer)
    response = another_peer.get(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"timestamp": timestamp, "isForce": str(force).lower()}
    )
    assert response.code == ResponseCode.SUCCESS
    table = {queue(0): expected, queue(1): 0}
    assert ResetOffsetBody.decode(response.body).offset_table == table
    (told,) = peer.sent
    assert (told.code, told.flag) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, CommandFlag.ONEWAY)
    assert told.ext_fields == {"topic": "T", "group": "G", "timestamp": str(timestamp), "isForce": "false"}
    assert ResetOffsetBody.decode(told.body).offset_table == table
    assert committed.groups.offsets.query("G", "T", 0) == 2


def test_cpp_tool_resets_offsets_with_list(committed: Broker, peer: Peer, another_peer: Peer) -> None:
    member(peer)
    another_peer.get(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET, language=LanguageCode.CPP)
    assert bytes(peer.sent[0].body).startswith(b'{"offsetTable":[{')


def test_resetting_needs_topic_offsets_and_members(committed: Broker, peer: Peer) -> None:
    """C.2 scenario 61."""
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    assert peer.get(code, RESET | {"topic": "U"}).code == ResponseCode.SYSTEM_ERROR
    unknown = peer.get(code, RESET | {"group": "H"})
    assert (unknown.code, unknown.remark) == (ResponseCode.SYSTEM_ERROR, "THe consumer group <H> not exist")
    assert peer.get(code, RESET).code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_offsets_of_all_members_are_collected(peer: Peer, another_peer: Peer, broker: Broker) -> None:
    asker = Peer(broker, "192.0.2.11:50003")
    member(peer, "c1")
    member(another_peer, "c2")
    peer.sent.clear()
    assert asker.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS) is None
    assert peer.sent[0].code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert answer(peer, body=GetConsumerStatusBody({queue(0): 7}).encode())
    assert not asker.sent
    assert answer(another_peer, code=1)
    (response,) = asker.sent
    assert response.code == ResponseCode.SUCCESS
    assert GetConsumerStatusBody.decode(response.body).consumer_table == {"c1": {queue(0): 7}}


async def test_unreadable_member_status_is_left_out(peer: Peer, another_peer: Peer) -> None:
    member(peer)
    another_peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS | {"clientAddr": "c1"})
    assert answer(peer, body=b"{")
    assert GetConsumerStatusBody.decode(another_peer.sent[-1].body).consumer_table == {}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS | {"clientAddr": "c9"}),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS | {"group": "H"}),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, INFO | {"clientId": "c9"}),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "clientId": "c1", "msgId": "0" * 32}),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G", "clientId": "c1"}),
    ],
)
def test_offline_member_or_missing_message_is_system_error(
    peer: Peer, another_peer: Peer, code: RequestCode, fields: dict[str, str]
) -> None:
    """C.4 (22)."""
    member(peer)
    assert another_peer.get(code, fields).code == ResponseCode.SYSTEM_ERROR
    assert not peer.sent


async def test_running_info_is_relayed_unchanged(peer: Peer, another_peer: Peer) -> None:
    """C.2 scenario 62."""
    member(peer)
    assert another_peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO) is None
    (asked,) = peer.sent
    assert (asked.code, asked.flag, asked.ext_fields) == (RequestCode.GET_CONSUMER_RUNNING_INFO, 0, INFO)
    assert answer(peer, code=77, body=b"info", remark="why")
    response = another_peer.sent[-1]
    assert (response.code, response.body, response.remark, response.ext_fields) == (77, b"info", "why", {"k": "v"})
    assert not peer.broker.context.client_requests


async def test_message_is_relayed_to_member_for_direct_consumption(peer: Peer, another_peer: Peer) -> None:
    """C.2 scenario 62."""
    member(peer)
    message_id = another_peer.put("T", b"body").ext_fields["msgId"]
    fields = {"consumerGroup": "G", "clientId": "c1", "msgId": message_id}
    assert another_peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields) is None
    asked = peer.sent[-1]
    assert asked.ext_fields == fields | {"brokerName": "broker-a"}
    assert b"body" in bytes(asked.body)


async def test_silent_member_times_out_after_10_s(peer: Peer, another_peer: Peer, mock_clock: MockClock) -> None:
    member(peer)
    another_peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    mock_clock.jump(9.9)
    peer.broker.context.client_requests.expire(trio.current_time())
    assert not another_peer.sent
    mock_clock.jump(0.1)
    peer.broker.context.client_requests.expire(trio.current_time())
    assert another_peer.sent[-1].code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert not answer(peer)


async def test_offline_member_is_refused_at_once(peer: Peer, another_peer: Peer) -> None:
    member(peer)
    another_peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    peer.broker.context.client_requests.forget(peer.as_connection)
    response = another_peer.sent[-1]
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark is not None
    assert "the connection ended" in response.remark


async def test_only_the_asked_member_can_answer(peer: Peer, another_peer: Peer) -> None:
    member(peer)
    another_peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    requests = peer.broker.context.client_requests
    assert not requests.handle_answer(another_peer.as_connection, peer.sent[-1].reply())
    assert not requests.handle_answer(peer.as_connection, RemotingCommand(0, 12345, CommandFlag.RESPONSE))
    assert answer(peer)
    assert not answer(peer)


async def test_too_many_requests_under_way_are_refused(
    peer: Peer, another_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "LIMIT", 1)
    member(peer)
    assert another_peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO) is None
    assert another_peer.get(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO).code == ResponseCode.SYSTEM_BUSY


async def test_non_reading_member_gets_no_requests(peer: Peer, another_peer: Peer) -> None:
    too_much = peer.broker.config.unread_high_bytes + 1
    member(peer)
    assert another_peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO) is None
    another_peer.unread_bytes = too_much
    assert answer(peer, body=bytes(1000))
    (response,) = another_peer.sent
    assert (response.code, response.body) == (ResponseCode.SYSTEM_BUSY, b"")
    asked = len(peer.sent)
    peer.unread_bytes = too_much
    assert another_peer.get(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO).code == ResponseCode.SYSTEM_BUSY
    status = another_peer.get(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert GetConsumerStatusBody.decode(status.body).consumer_table == {}
    heartbeat(another_peer, "c2", "G")
    assert not any(peer.broker.groups.notices.notify_members())
    assert len(peer.sent) == asked
    peer.unread_bytes = 0
    heartbeat(Peer(peer.broker, "192.0.2.11:50003"), "c3", "G")
    assert not any(peer.broker.groups.notices.notify_members())
    assert len(peer.sent) > asked


async def test_answers_of_members_stay_within_budget(peer: Peer, another_peer: Peer) -> None:
    budget = peer.broker.context.budget
    member(peer, "c1")
    member(another_peer, "c2")
    asker = Peer(peer.broker, "192.0.2.11:50003")
    asker.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert answer(peer, body=GetConsumerStatusBody({queue(0): 7}).encode())
    taken = budget.reserved_bytes
    assert 0 < taken < 1000
    budget.reserved_bytes = budget.limit_bytes // 2
    assert answer(another_peer, body=GetConsumerStatusBody({queue(0): 8}).encode())
    assert set(GetConsumerStatusBody.decode(asker.sent[-1].body).consumer_table) == {"c1"}
    assert budget.reserved_bytes == budget.limit_bytes // 2 - taken


REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01requester\x02TTL\x013000"
V2 = {"a": "P", "b": REPLY_TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 1, "g": 1_795_000_000_000, "h": 7}
LONG_NAMES = "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag"


@pytest.fixture
def requester(another_peer: Peer) -> Peer:
    heartbeat(another_peer, "requester", producers=("P",), topics=())
    another_peer.sent.clear()
    return another_peer


def reply(peer: Peer, properties: str = PROPERTIES, body: bytes = b"yes") -> RemotingCommand | None:
    return peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, V2 | {"i": properties}, body)


@pytest.mark.parametrize("long_names", [False, True])
async def test_reply_is_pushed_stored_and_answered(peer: Peer, requester: Peer, *, long_names: bool) -> None:
    if long_names:
        fields = dict(zip(LONG_NAMES.split(), V2.values(), strict=True), properties=PROPERTIES)
        asked = peer.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"yes")
    else:
        asked = reply(peer)
    assert asked is None
    (push,) = requester.sent
    header = PushReplyMessageRequestHeader.decode(push.ext_fields)
    assert (push.code, bytes(push.body)) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"yes")
    assert (header.topic, header.sys_flag, header.flag, header.born_host) == (REPLY_TOPIC, 1, 7, peer.peer)
    properties = decode_properties((header.properties or "").encode())
    assert properties.pop("PUSH_REPLY_TIME") == str(header.store_timestamp)
    assert properties["CORRELATION_ID"] == "c-1"
    assert not peer.sent
    answer(requester)
    (response,) = peer.sent
    assert response.code == ResponseCode.SUCCESS
    assert response.ext_fields["queueOffset"] == "0"
    assert peer.broker.store.reader.max_offset_in_queue(REPLY_TOPIC, 0) == 1


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("MSG_TYPE\x01reply", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01nobody", "push reply message fail, channel of <nobody> not found."),
    ],
)
def test_reply_without_requester_is_stored_and_refused(peer: Peer, properties: str, remark: str) -> None:
    response = reply(peer, properties)
    assert response is not None
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert peer.broker.store.reader.max_offset_in_queue(REPLY_TOPIC, 0) == 1


@pytest.mark.parametrize("is_lost", [False, True])
async def test_rejected_or_lost_push_is_a_failed_reply(peer: Peer, requester: Peer, is_lost: bool) -> None:
    reply(peer)
    if is_lost:
        peer.broker.context.client_requests.forget(requester.as_connection)
    else:
        answer(requester, code=1, remark="no")
    (response,) = peer.sent
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == f"push reply message to requester fail: {NoAnswer.CLOSED.value if is_lost else 'no (1)'}"


async def test_full_disk_does_not_block_replies(
    peer: Peer, requester: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_entries: object) -> None:
        raise StoreFullError("full")

    monkeypatch.setattr(broker.store, "append", refuse)
    reply(peer)
    answer(requester)
    (response,) = peer.sent
    assert (response.code, response.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "0")


@pytest.mark.parametrize("how", ["leaves", "closes", "closed before"])
def test_requester_is_unknown_after_it_left(peer: Peer, requester: Peer, broker: Broker, how: str) -> None:
    if how == "leaves":
        broker.groups.producers.leave(requester.as_connection, "P")
    else:
        broker.groups.producers.forget(requester.as_connection)
    if how == "closed before":
        requester.closed = True
        heartbeat(requester, "requester", producers=("P",), topics=())
    response = reply(peer)
    assert response is not None
    assert "not found" in (response.remark or "")
