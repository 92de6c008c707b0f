from typing import Any

import pytest

from tests.unit.broker.recording import Peer
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.names import HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record
from triomq.protocol.wire.command import RemotingCommand

COMMIT, ROLLBACK = 8, 12
PROPERTIES = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01id\x02WAIT\x01true\x02TAGS\x01A"


@pytest.fixture
def half(peer: Peer) -> MessageExt:
    response = peer.put("T", i=PROPERTIES, queue_id=2, f=2)
    assert response.ext_fields["queueId"] == "2"
    message = last(peer, HALF_TOPIC)
    assert parse_offset_message_id(response.ext_fields["msgId"])[2] == message.physical_offset
    return message


def last(peer: Peer, topic: str, queue_id: int = 0) -> MessageExt:
    store = peer.broker.store
    (unit,) = store.reader.queue_units(topic, queue_id, store.reader.max_offset_in_queue(topic, queue_id) - 1, 1)
    record = store.commit_log.view(unit.physical_offset, unit.size)
    assert record is not None
    return decode_record(record)


def end(peer: Peer, half: MessageExt, decision: int = COMMIT, **fields: Any) -> RemotingCommand:
    header = {
        "producerGroup": "P",
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": half.physical_offset,
        "commitOrRollback": decision,
        "msgId": "id",
    }
    return peer.get(RequestCode.END_TRANSACTION, header | fields)


def count(peer: Peer, topic: str, queue_id: int = 0) -> int:
    return peer.broker.store.reader.max_offset_in_queue(topic, queue_id)


def test_half_message_keeps_its_place_in_properties(half: MessageExt) -> None:
    assert (half.topic, half.queue_id, half.sys_flag) == (HALF_TOPIC, 0, 2)
    properties = half.properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "2")
    assert (properties["WAIT"], properties["TRAN_MSG"]) == ("true", "true")


def test_commit_stores_message_and_operation_as_apache(peer: Peer, half: MessageExt) -> None:
    """Store.md 5.8."""
    assert end(peer, half).code == ResponseCode.SUCCESS
    message, operation = last(peer, "T", 2), last(peer, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert message.sys_flag == 2 | COMMIT
    assert message.prepared_transaction_offset == half.physical_offset
    assert message.encoded_properties == half.encoded_properties
    assert (message.body, message.born_timestamp) == (half.body, half.born_timestamp)
    assert (operation.body, operation.sys_flag) == (b"0", 0)
    assert operation.encoded_properties == b"WAIT\x01true\x02TAGS\x01d\x02COPIED\x01true"  # the last one is ours


def test_rollback_stores_an_operation_only(peer: Peer, half: MessageExt) -> None:
    assert end(peer, half, ROLLBACK).code == ResponseCode.SUCCESS
    assert (count(peer, "T", 2), count(peer, "RMQ_SYS_TRANS_OP_HALF_TOPIC")) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"producerGroup": "Q"}, "The producer group wrong"),
        ({"tranStateTableOffset": 1}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 10**9}, "Find prepared transaction message failed"),
        ({"commitOrRollback": 4}, "commitOrRollback 4 is neither commit (8) nor rollback (12) nor unknown (0)"),
    ],
)
def test_wrong_decision_is_refused_and_changes_nothing(
    peer: Peer, half: MessageExt, fields: dict[str, Any], remark: str
) -> None:
    response = end(peer, half, **fields)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert len(peer.broker.transactions.undecided) == 1


def test_unknown_decision_leaves_transaction_undecided(peer: Peer, half: MessageExt) -> None:
    assert end(peer, half, 0).code == ResponseCode.SUCCESS
    assert len(peer.broker.transactions.undecided) == 1


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_first_decision_counts(peer: Peer, half: MessageExt, first: int) -> None:
    end(peer, half, first)
    assert end(peer, half, first).code == ResponseCode.SUCCESS
    response = end(peer, half, COMMIT + ROLLBACK - first)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "settled" in (response.remark or "")
    assert count(peer, "T", 2) == (first == COMMIT)


def test_commit_for_deleted_topic_is_refused(peer: Peer, half: MessageExt) -> None:
    peer.get(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert end(peer, half).code == ResponseCode.TOPIC_NOT_EXIST
    assert len(peer.broker.transactions.undecided) == 1


def resume(peer: Peer, message: MessageExt) -> RemotingCommand:
    return peer.get(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message.offset_message_id})


def test_resumed_transaction_is_due_at_once(peer: Peer, half: MessageExt) -> None:
    assert resume(peer, half).code == ResponseCode.SUCCESS
    undecided = peer.broker.transactions.undecided
    copy = last(peer, HALF_TOPIC)
    assert undecided.take_due(peer.broker.store.now_ms(), 9) == [copy.queue_offset]
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert end(peer, half).code == ResponseCode.SUCCESS
    assert resume(peer, half).code == ResponseCode.SYSTEM_ERROR


def test_transaction_that_was_given_up_can_be_resumed(peer: Peer, half: MessageExt) -> None:
    peer.broker.transactions.undecided.give_up(half)
    assert end(peer, half).code == ResponseCode.SYSTEM_ERROR
    assert resume(peer, last(peer, "TRANS_CHECK_MAX_TIME_TOPIC")).code == ResponseCode.SUCCESS
    assert end(peer, last(peer, HALF_TOPIC)).code == ResponseCode.SUCCESS
    assert count(peer, "T", 2) == 1


def test_resume_of_other_messages_is_refused(peer: Peer) -> None:
    peer.put("T")
    assert resume(peer, last(peer, "T")).code == ResponseCode.SYSTEM_ERROR
