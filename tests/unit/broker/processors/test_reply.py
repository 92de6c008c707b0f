import pytest

from tests.unit.broker.processors.test_client import heartbeat
from tests.unit.broker.recording import Peer
from triomq.broker.network.client_requests import NoAnswer
from triomq.broker.server import Broker
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import StoreFullError
from triomq.protocol.record.properties import decode_properties
from triomq.protocol.requests.messages import PushReplyMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01requester\x02TTL\x013000"
V2 = {"a": "P", "b": REPLY_TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 1, "g": 1_795_000_000_000, "h": 7}
LONG = dict(
    zip(
        (
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
        ),
        V2.values(),
        strict=True,
    )
)


@pytest.fixture
def requester(another_peer: Peer) -> Peer:
    heartbeat(another_peer, "requester", producers=("P",), topics=())
    another_peer.sent.clear()
    return another_peer


def reply(peer: Peer, properties: str = PROPERTIES, body: bytes = b"yes") -> RemotingCommand | None:
    return peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, V2 | {"i": properties}, body)


def answer(requester: Peer, code: int = 0) -> None:
    """Let the requester answer the push."""
    response = requester.sent[-1].reply(code, remark="no" if code else None)
    assert requester.broker.context.client_requests.handle_answer(requester.as_connection, response)


@pytest.mark.parametrize("long_names", [False, True])
async def test_reply_is_pushed_stored_and_answered(peer: Peer, requester: Peer, *, long_names: bool) -> None:
    if long_names:
        asked = peer.ask(RequestCode.SEND_REPLY_MESSAGE, LONG | {"properties": PROPERTIES}, b"yes")
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


async def test_rejected_push_is_a_failed_reply(peer: Peer, requester: Peer) -> None:
    reply(peer)
    answer(requester, code=1)
    (response,) = peer.sent
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == "push reply message to requester fail: no (1)"


async def test_lost_requester_is_a_failed_reply(peer: Peer, requester: Peer) -> None:
    reply(peer)
    peer.broker.context.client_requests.forget(requester.as_connection)
    (response,) = peer.sent
    assert response.remark == f"push reply message to requester fail: {NoAnswer.CLOSED.value}"


def test_non_reading_requester_gets_no_more_replies(peer: Peer, requester: Peer, broker: Broker) -> None:
    requester.unread_bytes = broker.config.unread_high_bytes + 1
    response = reply(peer)
    assert response is not None
    assert response.code == ResponseCode.SYSTEM_BUSY
    assert not requester.sent


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


@pytest.mark.parametrize("how", ["leaves", "closes"])
def test_requester_is_unknown_after_it_left(peer: Peer, requester: Peer, broker: Broker, how: str) -> None:
    if how == "leaves":
        broker.groups.producers.leave(requester.as_connection, "P")
    else:
        broker.groups.producers.forget(requester.as_connection)
    response = reply(peer)
    assert response is not None
    assert "not found" in (response.remark or "")


def test_closed_connection_is_not_registered_as_producer(peer: Peer, another_peer: Peer) -> None:
    another_peer.closed = True
    heartbeat(another_peer, "requester", producers=("P",), topics=())
    response = reply(peer)
    assert response is not None
    assert "not found" in (response.remark or "")
