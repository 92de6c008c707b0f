"""What tools ask of consumers through the broker, and requests to clients that get no answer."""

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Peer
from triomq.broker.network import client_requests
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import GetConsumerStatusBody, ResetOffsetBody
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
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
