"""Transactions that end, and messages that are sent back: where they go, and what stays of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import make_command
from tests.unit.broker.recording import MakeBroker, Peer
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.names import HALF_TOPIC
from triomq.protocol.record.layout import HEAD
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials
from triomq.storage.config import Durability

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
        "producerGroup": "P", "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.physical_offset,
        "commitOrRollback": decision, "msgId": "id",
    }  # fmt: skip
    return peer.get(RequestCode.END_TRANSACTION, header | fields)


def count(peer: Peer, topic: str) -> int:
    return sum(queue.max_offset for queue in peer.broker.store.queues.of_topic(topic))


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
    assert (count(peer, "T"), count(peer, "RMQ_SYS_TRANS_OP_HALF_TOPIC")) == (0, 1)


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
    assert count(peer, "T") == (first == COMMIT)


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
    assert count(peer, "T") == 1


def test_resume_of_other_messages_is_refused(peer: Peer) -> None:
    peer.put("T")
    assert resume(peer, last(peer, "T")).code == ResponseCode.SYSTEM_ERROR


RETRY, DLQ, SCHEDULE = "%RETRY%G", "%DLQ%G", "SCHEDULE_TOPIC_XXXX"


def offset_of(response: RemotingCommand) -> int:
    return parse_offset_message_id(response.ext_fields["msgId"])[2]


def send_back(peer: Peer, offset: int, *, level: int = 0, version: int = 407, **fields: Any) -> RemotingCommand:
    header = {"offset": offset, "group": "G", "delayLevel": level, **fields}
    return peer.get(RequestCode.CONSUMER_SEND_MSG_BACK, header, version=version)


@pytest.fixture
def failed(peer: Peer) -> int:
    """Where the message lies that a consumer could not handle."""
    properties = "UNIQ_KEY\x01ID\x02TAGS\x01A\x02own\x01w\x02WAIT\x01true"
    return offset_of(peer.put("T", b"body", queue_id=2, i=properties, f=1, h=-5, g=17))


def test_sent_back_message_keeps_its_identity_while_delayed(peer: Peer, failed: int) -> None:
    """C.2 scenario 40: the broker's part."""
    original = decode_record(peer.broker.store.commit_log.look_message(failed) or b"")
    assert send_back(Peer(peer.broker, "192.0.2.77:7"), failed).code == ResponseCode.SUCCESS
    message = last(peer, SCHEDULE, 2)
    assert message.stored_body == b"body"
    assert (message.flag, message.sys_flag, message.born_timestamp) == (-5, 1, 17)
    assert (message.born_host, message.store_host) == (original.born_host, original.store_host)
    assert message.reconsume_times == 1
    assert message.properties == {
        "UNIQ_KEY": "ID", "TAGS": "A", "own": "w", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T", "DELAY": "3",
        "ORIGIN_MESSAGE_ID": original.offset_message_id, "WAIT": "false", "REAL_TOPIC": RETRY, "REAL_QID": "0",
    }  # fmt: skip
    config = peer.broker.topics.get(RETRY)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag) == (1, 1, 6, 0)


@pytest.mark.parametrize(
    ("reconsume_times", "asked", "level"), [(0, 0, 3), (1, 0, 4), (14, 0, 17), (15, 0, 18), (3, 2, 2), (0, 99, 18)]
)
def test_retry_delay_grows_unless_set(peer: Peer, reconsume_times: int, asked: int, level: int) -> None:
    """C.2 scenarios 40 and 42."""
    offset = offset_of(peer.put("T", j=reconsume_times))
    send_back(peer, offset, level=asked)
    message = last(peer, SCHEDULE, level - 1)
    assert message.properties["DELAY"] == str(level)
    assert message.reconsume_times == reconsume_times + 1


@pytest.mark.parametrize(
    ("reconsume_times", "fields", "is_dead"),
    [
        (15, {}, False),
        (16, {}, True),
        (0, {"maxReconsumeTimes": 1}, False),
        (1, {"maxReconsumeTimes": 1}, True),
        (0, {"maxReconsumeTimes": 0}, True),
        (1, {"maxReconsumeTimes": 1, "version": 120}, False),
        (1, {"maxReconsumeTimes": 1, "level": 5}, True),
        (0, {"level": -1}, True),
    ],
)
def test_message_after_last_retry_is_dead_letter(
    peer: Peer, reconsume_times: int, fields: dict[str, Any], is_dead: bool
) -> None:
    """C.2 scenario 41."""
    offset = offset_of(peer.put("T", j=reconsume_times))
    assert send_back(peer, offset, **fields).code == ResponseCode.SUCCESS
    assert count(peer, DLQ) == int(is_dead)
    assert count(peer, SCHEDULE) == int(not is_dead)
    if is_dead:
        message = last(peer, DLQ)
        assert message.reconsume_times == reconsume_times + 1
        assert (message.properties["DELAY"], message.properties["RETRY_TOPIC"]) == ("0", "T")
        assert "REAL_TOPIC" not in message.properties


def test_dead_letter_names_original_topic_and_record(peer: Peer, failed: int) -> None:
    """C.2 scenario 41: through the retry topic and back again."""
    first = decode_record(peer.broker.store.commit_log.look_message(failed) or b"")
    send_back(peer, failed, level=1)
    waiting = last(peer, SCHEDULE, 0)
    peer.broker.delayed.schedule.deliver(waiting.store_timestamp + 1000)
    retried = last(peer, RETRY)
    assert retried.properties["RETRY_TOPIC"] == "T"
    send_back(peer, retried.physical_offset, maxReconsumeTimes=1)
    dead = last(peer, DLQ)
    assert dead.reconsume_times == 2
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
    assert dead.unique_id == "ID"
    assert dead.tags == "A"
    names = [part.partition(b"\x01")[0] for part in dead.encoded_properties.split(b"\x02")]
    assert len(names) == len(set(names)), "a message that goes round must not grow"


def test_invented_origins_are_not_counted(peer: Peer) -> None:
    for number in range(3):
        put = peer.put("T", i=f"RETRY_TOPIC\x01made-up-{number}")
        assert send_back(peer, offset_of(put)).code == ResponseCode.SUCCESS
    assert peer.broker.statistics.sent_back_by_group == {}


def test_group_without_retry_queues_drops_its_messages(peer: Peer, failed: int) -> None:
    peer.broker.groups.settings.put(SubscriptionGroupConfig(group_name="G", retry_queue_nums=0))
    before = peer.broker.store.commit_log.max_offset
    assert send_back(peer, failed).code == ResponseCode.SUCCESS
    assert peer.broker.store.commit_log.max_offset == before
    assert peer.broker.topics.get(RETRY) is None


@pytest.mark.parametrize("group", ["a b", "", "g" * 121])
def test_invalid_group_is_rejected_without_creating_topic(peer: Peer, failed: int, group: str) -> None:
    before = list(peer.broker.topics.configs)
    response = send_back(peer, failed, group=group)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert list(peer.broker.topics.configs) == before


@pytest.mark.parametrize("offset", [-1, 1, 10**9, 2**63 - 1])
def test_record_that_is_not_there_is_refused(peer: Peer, failed: int, offset: int) -> None:
    response = send_back(peer, offset)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == f"look message by offset failed, {offset}"


ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
- {accessKey: member-1, secretKey: secret-of-member, topicPerms: [T=SUB, "%DLQ%G=SUB", other=PUB],
   groupPerms: [G=SUB]}
- {accessKey: tracer-1, secretKey: secret-of-tracer, topicPerms: [RMQ_SYS_TRACE_TOPIC=SUB], groupPerms: [G=SUB]}
"""
OPERATOR = Credentials("operator", "secret-of-operator")
MEMBER = Credentials("member-1", "secret-of-member")
TRACER = Credentials("tracer-1", "secret-of-tracer")


def asked(peer: Peer, account: Credentials, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
    return peer.get(code, account.sign({name: str(value) for name, value in fields.items()}, body), body)


@pytest.mark.parametrize(
    ("account", "topic", "is_allowed"),
    [
        (MEMBER, "T", True),
        (MEMBER, RETRY, True),
        (MEMBER, "other", False),
        (MEMBER, "%RETRY%H", False),
        (MEMBER, DLQ, True),
        (MEMBER, "%DLQ%H", False),
        (MEMBER, "RMQ_SYS_TRACE_TOPIC", False),
        (TRACER, "RMQ_SYS_TRACE_TOPIC", True),
        (OPERATOR, "other", True),
    ],
)
def test_only_readers_of_its_topic_send_back(
    make_broker: MakeBroker, tmp_path: Path, account: Credentials, topic: str, is_allowed: bool
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    peer = Peer(make_broker(acl=path))
    peer.broker.topics.put(TopicConfig(topic_name=topic))
    send = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    offset = offset_of(asked(peer, OPERATOR, RequestCode.SEND_MESSAGE_V2, send, b"secret"))
    end = peer.broker.store.commit_log.max_offset
    header = {"offset": offset, "group": "G", "delayLevel": 0}
    response = asked(peer, account, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    missing = asked(peer, account, RequestCode.CONSUMER_SEND_MSG_BACK, header | {"offset": 10**9})
    assert missing.remark == f"look message by offset failed, {10**9}"
    assert peer.broker.statistics.denied_requests == (not is_allowed)
    if is_allowed:
        assert response.code == ResponseCode.SUCCESS
    else:
        assert (response.code, response.remark) == (missing.code, f"look message by offset failed, {offset}")
        assert peer.broker.store.commit_log.max_offset == end


@pytest.mark.parametrize("properties", ["DELAY\x013", "TIMER_DELAY_MS\x015000", "TRAN_MSG\x01true\x02PGROUP\x01P"])
def test_waiting_message_is_not_sent_back(peer: Peer, properties: str) -> None:
    offset = offset_of(peer.put("T", i=properties))
    assert send_back(peer, offset).remark == f"look message by offset failed, {offset}"


@pytest.mark.parametrize("case", ["deleted", "recreated", "cut", "not shown", "inside a body"])
def test_only_messages_that_consumers_got_return(make_broker: MakeBroker, case: str) -> None:
    peer = Peer(make_broker({"durability": Durability.SYNC if case == "not shown" else Durability.ASYNC}))
    store = peer.broker.store
    offset = offset_of(peer.put("T", i="WAIT\x01false"))
    if case in ("deleted", "recreated"):
        peer.get(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    if case == "recreated":
        peer.put("T")
    if case == "cut":
        store.queue("T", 0).min_offset = 1
    if case == "inside a body":
        record = bytearray(store.commit_log.look_message(offset) or b"")
        offset = store.commit_log.max_offset + HEAD.size
        record[28:36] = offset.to_bytes(8)
        peer.put("T", bytes(record))
    assert store.commit_log.look_message(offset) is not None
    response = send_back(peer, offset)
    assert (response.code, response.remark) == (1, f"look message by offset failed, {offset}")


def test_unwritable_retry_topic_is_refused(peer: Peer, failed: int) -> None:
    peer.broker.topics.put(TopicConfig(topic_name=RETRY, perm=4))
    response = send_back(peer, failed)
    assert response.code == ResponseCode.NO_PERMISSION
    assert response.remark == "the topic[%RETRY%G] is not writable"


@pytest.mark.parametrize(("of_topic", "of_group", "used"), [(3, 3, {0, 1, 2}), (1, 8, {0})])
def test_retries_spread_over_existing_queues(
    peer: Peer, failed: int, of_topic: int, of_group: int, used: set[int]
) -> None:
    peer.broker.topics.put(TopicConfig(topic_name=RETRY, read_queue_nums=of_topic, write_queue_nums=of_topic))
    peer.broker.groups.settings.put(SubscriptionGroupConfig(group_name="G", retry_queue_nums=of_group))
    for _ in range(60):
        send_back(peer, failed, level=1)
    peer.broker.delayed.schedule.deliver(peer.broker.store.now_ms() + 1000)
    assert {queue.queue_id for queue in peer.broker.store.queues.of_topic(RETRY) if queue.max_offset} == used


def test_retry_topic_in_unit_mode_is_marked(peer: Peer, failed: int) -> None:
    send_back(peer, failed, unitMode="true")
    config = peer.broker.topics.get(RETRY)
    assert config is not None
    assert config.topic_sys_flag == 2


def test_send_back_counts_for_first_topic(peer: Peer, failed: int) -> None:
    send_back(peer, failed)
    send_back(peer, failed, level=-1)
    send_back(peer, 10**9)
    assert peer.broker.statistics.sent_back_by_group == {("T", "G"): 2}
    assert peer.broker.statistics.put_by_topic == {"T": 1, SCHEDULE: 1, DLQ: 1}
    peer.broker.statistics.forget_topic("T")
    assert peer.broker.statistics.sent_back_by_group == {}


@pytest.mark.parametrize("level", [0, -1])
def test_refused_store_is_error_for_consumer(peer: Peer, failed: int, level: int) -> None:
    body = b"own\x01" + b"x" * (32_767 - 40)
    offset = offset_of(peer.put("T", i=body.decode()))
    response = send_back(peer, offset, level=level)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark is not None
    assert "properties" in response.remark
    assert peer.broker.statistics.sent_back_by_group == {}


async def test_sync_durability_send_back_is_answered_after_flush(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker({"durability": Durability.SYNC}))
    peer.put("T", i="WAIT\x01false")
    peer.broker.store.flush()
    header = {"offset": 0, "group": "G", "delayLevel": 0}
    assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header) is None
    assert peer.broker.group_commit is not None
    assert peer.broker.group_commit.waiting == 1
    peer.get(RequestCode.CONSUMER_SEND_MSG_BACK, {**header, "group": "g" * 121})
    peer.serve(make_command(RequestCode.CONSUMER_SEND_MSG_BACK, 1, CommandFlag.ONEWAY, dict.fromkeys(header, "0")))
    assert peer.broker.group_commit.waiting == 1
    assert peer.broker.topics.get("%RETRY%0") is not None
