"""Pulls: messages found, pulls held, next offsets, and refusals with their codes."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.subscriptions import tag_subscription
from tests.unit.broker.recording import MakeBroker, Peer
from triomq.broker.addresses import Address
from triomq.broker.processors.pull import FOUND_IN_JSON
from triomq.broker.server import Broker
from triomq.protocol.bodies.client import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode, SerializeType
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_records
from triomq.protocol.wire.command import RemotingCommand

HOLD = {"sysFlag": 4 | 2}
HEADER: dict[str, Any] = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
}  # fmt: skip


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    return "T"


def fill(peer: Peer, count: int, tag: str = "") -> None:
    for number in range(count):
        peer.put("T", b"m%d" % number, i=f"TAGS\x01{tag}" if tag else "")


def answered(response: RemotingCommand | None) -> tuple[int, int]:
    """Code and next offset of an answer."""
    assert response is not None
    return response.code, int(response.ext_fields["nextBeginOffset"])


def found(response: RemotingCommand | None) -> list[MessageExt]:
    assert response is not None
    return decode_records(response.body)


async def test_pull_returns_messages_from_offset(peer: Peer, topic: str) -> None:
    fill(peer, 5)
    response = peer.pull(topic, 2)
    assert response is not None
    assert response.code == ResponseCode.SUCCESS
    assert response.remark == "FOUND"
    assert [message.stored_body for message in decode_records(response.body)] == [b"m2", b"m3", b"m4"]
    assert response.ext_fields == {
        "maxOffset": "5",
        "minOffset": "0",
        "nextBeginOffset": "5",
        "suggestWhichBrokerId": "0",
    }
    statistics = peer.broker.statistics
    assert (statistics.get_messages, statistics.get_bytes) == (3, len(response.body))


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({}, 32),
        ({"maxMsgNums": 0}, 1),
        ({"maxMsgNums": -7}, 1),
        ({"maxMsgBytes": 2**31 - 1}, 32),  # of Java's DefaultMQPullConsumer 5.x
        ({"triomqMaxTransferBytes": 2**31 - 1}, 100),
        ({"triomqMaxTransferBytes": 1}, 1),
        ({"triomqMaxTransferBytes": -1}, 1),
        ({"triomqMaxTransferBytes": 2**20, "subscription": "A"}, 60),
        ({"triomqMaxTransferBytes": 2**20, "subscription": "B"}, 40),
    ],
)
async def test_only_explicit_size_field_raises_pull_above_32(
    peer: Peer, topic: str, fields: dict[str, Any], got: int
) -> None:
    """C.2 scenario 24."""
    fill(peer, 60, "A")
    fill(peer, 40, "B")
    assert len(found(peer.pull(topic, 0, **{"maxMsgNums": 100, **fields}))) == got


async def test_held_pull_gets_size_it_accepts(broker: Broker, peer: Peer, another_peer: Peer, topic: str) -> None:
    for fields, got in (HOLD, 32), (HOLD | {"triomqMaxTransferBytes": 2**20}, 50):
        begin = broker.store.reader.max_offset_in_queue(topic, 0)
        assert peer.pull(topic, begin, maxMsgNums=100, **fields) is None
        fill(another_peer, 50)
        broker.worker.end_step()
        assert len(decode_records(peer.sent[-1].body)) == got
    assert len(peer.sent) == 2


async def test_empty_queue_is_answered_at_once_without_suspend(peer: Peer, topic: str) -> None:
    """C.2 scenario 22."""
    assert answered(peer.pull(topic, 0)) == (ResponseCode.PULL_NOT_FOUND, 0)
    assert answered(peer.pull(topic, 5)) == (ResponseCode.PULL_OFFSET_MOVED, 0)


async def test_offsets_outside_the_queue_are_corrected(peer: Peer, topic: str) -> None:
    """C.2 scenario 23."""
    fill(peer, 10)
    assert peer.pull(topic, 10, **HOLD) is None
    assert peer.broker.pulls.hold.held == 1
    assert answered(peer.pull(topic, 11, **HOLD)) == (ResponseCode.PULL_OFFSET_MOVED, 10)
    peer.broker.store.queue(topic, 0).min_offset = 4  # as if the messages before it had expired
    assert answered(peer.pull(topic, 3, **HOLD)) == (ResponseCode.PULL_OFFSET_MOVED, 4)
    assert answered(peer.pull(topic, -1, **HOLD)) == (ResponseCode.PULL_OFFSET_MOVED, 4)


@pytest.mark.parametrize("first", [0, 4])
async def test_slave_moves_no_reader(make_broker: MakeBroker, first: int) -> None:
    """Its master may have the missing messages.  store.md 7.1 (c), behaviour.md A.9."""
    fill(Peer(make_broker()), 10)
    broker = make_broker(role="slave", broker_id=1, ha_master=Address("127.0.0.1", 1))
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    broker.store.queue("T", 0).min_offset = first  # as if the messages before it had expired
    peer, again = Peer(broker), ResponseCode.PULL_RETRY_IMMEDIATELY
    wanted = [(0, first - 1, again), (0, 10, ResponseCode.PULL_NOT_FOUND), (0, 11, again)]
    for queue_id, offset, code in [*wanted, (1, 0, ResponseCode.PULL_NOT_FOUND), (1, 5, again)]:
        assert answered(peer.pull("T", offset, queue_id=queue_id)) == (code, offset)


@pytest.mark.parametrize("header_format", list(SerializeType))
@pytest.mark.parametrize(("ratio", "suggested"), [(None, "000"), (10, "322"), (0, "332"), (100, "222")])
async def test_reader_far_behind_is_pointed_to_slave(
    make_broker: MakeBroker, header_format: SerializeType, ratio: int | None, suggested: str
) -> None:
    """A tenth of the memory is less than the log, and more than its last record.  store.md 7.3."""
    peer = Peer(make_broker({"physical_memory_bytes": 10_000}, slave_read_ratio=ratio))
    group = SubscriptionGroupConfig(group_name="G", broker_id=2, which_broker_when_consume_slowly=3)
    peer.broker.groups.settings.put(group)
    fill(peer, 20)
    for offset, broker_id in zip((0, 19, 20), suggested, strict=True):
        fields = HEADER | {"queueOffset": offset, "maxMsgNums": 1}
        answer = peer.get(RequestCode.PULL_MESSAGE, fields, serialize_type=int(header_format))
        assert answer.ext_fields["suggestWhichBrokerId"] == broker_id


async def test_tags_with_equal_hashes_both_match(peer: Peer, topic: str) -> None:
    """C.2 scenario 27, the broker's part: it compares hashes only."""
    for tag in ("Aa", "BB", "C"):
        fill(peer, 1, tag)
    response = peer.pull(topic, 0, subscription="Aa")
    assert [message.tags for message in found(response)] == ["Aa", "BB"]
    assert answered(response) == (ResponseCode.SUCCESS, 3)


# --- holding ------------------------------------------------------------------------------------------------


async def test_held_pull_is_answered_in_same_step(peer: Peer, another_peer: Peer, topic: str) -> None:
    """C.2 scenario 21."""
    assert peer.pull(topic, 0, **HOLD) is None
    another_peer.put(topic, b"first")
    another_peer.put(topic, b"second")
    peer.broker.worker.end_step()
    (response,) = peer.sent
    assert [message.stored_body for message in decode_records(response.body)] == [b"first", b"second"]
    assert response.ext_fields["nextBeginOffset"] == "2"
    assert peer.broker.pulls.hold.held == 0


async def test_held_pull_of_non_reading_peer_must_retry(peer: Peer, another_peer: Peer, topic: str) -> None:
    assert peer.pull(topic, 0, **HOLD) is None
    peer.put(topic)
    peer.broker.worker.end_step()
    for queue_offset in (1, 1):
        assert peer.pull(topic, queue_offset, **HOLD) is None
    assert another_peer.pull(topic, 1, **HOLD) is None
    peer.sent.clear()
    peer.unread_bytes = peer.broker.config.unread_high_bytes + 1
    another_peer.put(topic)
    peer.broker.worker.end_step()
    for response in peer.sent:
        assert answered(response) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 1)
        assert (response.body, response.ext_fields["minOffset"], response.ext_fields["maxOffset"]) == (b"", "0", "2")
    assert len(peer.sent) == 2
    assert len(decode_records(another_peer.sent[-1].body)) == 1
    peer.unread_bytes -= 1
    assert answered(peer.pull(topic, 1, **HOLD)) == (ResponseCode.SUCCESS, 2)


@pytest.mark.parametrize("is_match_sent", [True, False])
async def test_held_pull_with_rejecting_filter_stays_a_while(
    peer: Peer, topic: str, autojump_clock: MockClock, is_match_sent: bool
) -> None:
    assert peer.pull(topic, 0, subscription="A", **HOLD) is None
    fill(peer, 3, "B")
    peer.broker.worker.end_step()
    assert peer.sent == []
    if is_match_sent:
        fill(peer, 1, "A")
        peer.broker.worker.end_step()
        assert [message.queue_offset for message in found(peer.sent[0])] == [3]
    else:
        expire(peer.broker, peer.broker.config.filtered_hold_s)
        assert answered(peer.sent[0]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 3)


def expire(broker: Broker, after_s: float) -> None:
    for pull in broker.pulls.hold.take_expired(trio.current_time() + after_s):
        broker.pulls._serve_held(pull, is_expired=True)


async def test_held_pulls_of_queue_can_be_ended(peer: Peer, topic: str) -> None:
    assert peer.pull(topic, 0, **HOLD) is None
    assert peer.pull(topic, 0, queueId=1, **HOLD) is None
    peer.broker.pulls.end_waiting(peer.broker.store.queue(topic, 0))
    (response,) = peer.sent
    assert answered(response) == (ResponseCode.PULL_NOT_FOUND, 0)
    assert peer.broker.pulls.hold.held == 1


@pytest.mark.parametrize(("wanted_s", "held_s"), [(1.5, 1.5), (2.0**52, 30.0), (-0.005, 0.0)])
async def test_pull_is_held_until_its_deadline(
    make_broker: MakeBroker, autojump_clock: MockClock, wanted_s: float, held_s: float
) -> None:
    """C.2 scenario 25."""
    peer = Peer(make_broker(max_hold_s=30.0))
    peer.put("T", queue_id=1)
    assert peer.pull("T", 0, suspendTimeoutMillis=int(wanted_s * 1000), **HOLD) is None
    expire(peer.broker, held_s - 0.1)
    assert peer.sent == []
    expire(peer.broker, held_s)
    assert answered(peer.sent[0]) == (ResponseCode.PULL_NOT_FOUND, 0)


async def test_failing_held_pull_is_answered_with_error(
    peer: Peer, another_peer: Peer, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert peer.pull(topic, 0, **HOLD) is None
    another_peer.put(topic)

    def broken(*_: object) -> None:
        raise RuntimeError("store is broken")

    monkeypatch.setattr(peer.broker.store.reader, "get_matching", broken)
    peer.broker.worker.end_step()
    assert [(each.code, each.remark) for each in peer.sent] == [
        (ResponseCode.SYSTEM_ERROR, "RuntimeError: store is broken")
    ]
    assert "held pull failed" in caplog.text


async def test_oneway_pull_gets_no_answer(peer: Peer, topic: str) -> None:
    fill(peer, 1)
    oneway = {name: str(value) for name, value in {**HEADER, "commitOffset": 7}.items()}
    for fields in (oneway, {**oneway, "sysFlag": "6", "queueOffset": "1", "suspendTimeoutMillis": "15000"}):
        command = RemotingCommand(RequestCode.PULL_MESSAGE, 1, CommandFlag.ONEWAY, fields)
        serve(peer, command)
    peer.put(topic)
    peer.broker.worker.end_step()
    assert peer.sent == []


def serve(peer: Peer, command: RemotingCommand) -> None:
    assert peer.broker.pipeline.serve(peer.as_connection, command) is None


@pytest.mark.parametrize(
    ("fields", "committed"),
    [
        ({"sysFlag": 7, "commitOffset": 7}, 7),
        ({"sysFlag": 4, "commitOffset": 7}, 5),
        ({"sysFlag": 5, "commitOffset": 0}, 0),
        ({"sysFlag": 7, "commitOffset": -2}, 5),  # other clients could not begin at it
    ],
)
async def test_pull_commits_its_offset_if_flagged(
    peer: Peer, topic: str, fields: dict[str, int], committed: int
) -> None:
    """C.2 scenario 29."""
    peer.broker.groups.offsets.commit("G", topic, 0, 5)
    peer.pull(topic, 0, **fields)
    assert peer.broker.groups.offsets.query("G", topic, 0) == committed


async def test_refused_pull_commits_nothing(peer: Peer, topic: str) -> None:
    peer.broker.groups.settings.put(SubscriptionGroupConfig(group_name="G", consume_enable=False))
    assert answered_code(peer.pull(topic, 0, sysFlag=7, commitOffset=7)) == ResponseCode.NO_PERMISSION
    assert peer.broker.groups.offsets.query("G", topic, 0) is None


def answered_code(response: RemotingCommand | None) -> int:
    assert response is not None
    return response.code


# --- refusals -----------------------------------------------------------------------------------------------


SQL: dict[str, Any] = {"subscription": "a > 1", "expressionType": "SQL92"}


@pytest.mark.parametrize(
    ("topic_name", "fields", "code", "remark"),
    [
        ("unknown", HOLD, ResponseCode.TOPIC_NOT_EXIST, "topic[unknown] not exist, apply first please!"),
        ("W", {}, ResponseCode.NO_PERMISSION, "the topic[W] pulling message is forbidden"),
        ("T", {"queueId": -1}, ResponseCode.SYSTEM_ERROR, "queueId[-1] is illegal"),
        ("T", {"queueId": 4}, ResponseCode.SYSTEM_ERROR, "queueId[4] is illegal"),
        ("T", {"queueId": 2**31 - 1}, ResponseCode.SYSTEM_ERROR, "queueId[2147483647] is illegal"),
        ("T", {"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, ""),
        ("T", {**SQL, "subscription": "a > 1 garbage"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, ""),
        ("T", {**SQL, "subscription": ""}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, ""),
        ("T", {**SQL, "expressionType": "sql92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, ""),
        ("T", {"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "send a heartbeat first"),
    ],
)
async def test_pull_is_refused_with_code(
    peer: Peer, topic: str, topic_name: str, fields: dict[str, Any], code: int, remark: str
) -> None:
    """C.2 scenario 28."""
    peer.broker.topics.put(TopicConfig(topic_name="W", perm=2))
    response = peer.pull(topic_name, 0, **fields)
    assert answered_code(response) == code
    assert remark in str(response and response.remark)
    assert peer.broker.topics.get("unknown") is None


# --- SQL ----------------------------------------------------------------------------------------------------

UNITS_OF_A_FILE = "100"  # in these tests; a read ends with the consume queue's file


LONG = " -- long properties\n"


def fill_numbers(peer: Peer, *numbers: int, more: str = "") -> None:
    for number in numbers:
        peer.put("T", i=f"a\x01{number}\x02{more}")


def bodies_of(response: RemotingCommand | None) -> list[int]:
    assert response is not None
    return [int(message.properties["a"]) for message in decode_records(response.body)]


async def test_sql_expression_selects_by_properties(peer: Peer, topic: str) -> None:
    fill_numbers(peer, 5, 0, 1, 2, 9)
    response = peer.pull(topic, 0, **SQL)
    assert bodies_of(response) == [5, 2, 9]
    assert response is not None
    assert response.ext_fields["nextBeginOffset"] == "5"
    assert bodies_of(peer.pull(topic, 0, maxMsgNums=2, **SQL)) == [5, 2]
    assert bodies_of(peer.pull(topic, 4, maxMsgNums=2, **SQL)) == [9]


@pytest.mark.parametrize(
    ("messages", "expression", "next_offset"),
    [
        (500, "a > 1", UNITS_OF_A_FILE),
        (30, " OR ".join(["a > 1"] * 200), "6"),
        (5, " OR ".join(["a > 1"] * 33) + LONG, "1"),
    ],
)
async def test_pull_without_matches_skips_examined_messages(
    peer: Peer, topic: str, messages: int, expression: str, next_offset: str
) -> None:
    fill_numbers(peer, *[0] * messages, more="" if LONG not in expression else f"b\x01{'x' * 32_000}")
    response = peer.pull(topic, 0, **SQL | {"subscription": expression})
    assert answered(response) == (ResponseCode.PULL_RETRY_IMMEDIATELY, int(next_offset))


async def test_held_pull_advances_past_examined_messages(peer: Peer, another_peer: Peer, topic: str) -> None:
    assert peer.pull(topic, 0, **HOLD, **SQL) is None
    fill_numbers(another_peer, *[0] * 450, 7)
    peer.broker.worker.end_step()
    assert [(each.code, each.ext_fields["nextBeginOffset"]) for each in peer.sent] == [
        (ResponseCode.PULL_RETRY_IMMEDIATELY, UNITS_OF_A_FILE)
    ]


async def test_few_held_sql_pulls_are_answered_together(peer: Peer, another_peer: Peer, topic: str) -> None:
    for _ in range(5):
        assert peer.pull(topic, 0, **HOLD, **SQL) is None
    fill_numbers(another_peer, 7)
    peer.broker.worker.end_step()
    for answered_pulls in (2, 4, 5):
        assert (len(peer.sent), peer.broker.pulls.hold.held) == (answered_pulls, 5 - answered_pulls)
        peer.broker.pulls._serve_ready()
    assert [bodies_of(each) for each in peer.sent] == [[7]] * 5


async def test_group_that_cannot_be_created_is_refused(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(auto_create_group=False))
    assert answered_code(peer.pull("T", 0)) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# --- subscriptions of heartbeats ----------------------------------------------------------------------------


def subscribe(peer: Peer, expression: str = "*", *, version: int = 5, **members: Any) -> None:
    data = ConsumerData(group_name="G", subscription_data_set=[tag_subscription("T", expression, version)], **members)
    assert peer.get(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [data]).encode()).code == ResponseCode.SUCCESS


async def test_heartbeat_subscription_applies_without_expression(peer: Peer, topic: str) -> None:
    subscribe(peer, "A || B")
    for tag in ("A", "C", "B"):
        fill(peer, 1, tag)
    response = peer.pull(topic, 0, sysFlag=0, subVersion=5)
    assert response is not None
    assert [message.tags for message in decode_records(response.body)] == ["A", "B"]


async def test_topic_without_subscription_is_refused(peer: Peer, topic: str) -> None:
    subscribe(peer)
    peer.broker.topics.put(TopicConfig(topic_name="U"))
    assert answered_code(peer.pull("U", 0, sysFlag=0)) == ResponseCode.SUBSCRIPTION_NOT_EXIST


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (6, ResponseCode.SUBSCRIPTION_NOT_LATEST),
        (5, ResponseCode.SUCCESS),
        (4, ResponseCode.SUCCESS),
        (0, ResponseCode.SUCCESS),
    ],
)
async def test_only_newer_subscription_version_is_refused(peer: Peer, topic: str, version: int, code: int) -> None:
    """C.2 scenario 28."""
    subscribe(peer)
    fill(peer, 1)
    assert answered_code(peer.pull(topic, 0, sysFlag=0, subVersion=version)) == code


async def test_broadcasting_needs_permission_of_the_group(peer: Peer, topic: str) -> None:
    peer.broker.groups.settings.put(SubscriptionGroupConfig(group_name="G", consume_broadcast_enable=False))
    subscribe(peer, message_model=MessageModel.BROADCASTING)
    assert answered_code(peer.pull(topic, 0, sysFlag=0)) == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("expression", ["a > 1", "a >"])
async def test_sql_subscription_of_heartbeat_applies(peer: Peer, topic: str, expression: str) -> None:
    fill_numbers(peer, 0, 2)
    subscription = SubscriptionData(topic="T", sub_string=expression, expression_type="SQL92", sub_version=5)
    data = ConsumerData(group_name="G", subscription_data_set=[subscription])
    peer.get(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], [data]).encode())
    response = peer.pull(topic, 0, sysFlag=0)
    assert response is not None
    if expression == "a > 1":
        assert bodies_of(response) == [2]
    else:
        assert response.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert "SQL expression, character 4: expected a value" in str(response.remark)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
@pytest.mark.parametrize("header_format", list(SerializeType))
def test_pull_response_is_identical_in_every_header_format(peer: Peer, header_format: SerializeType, code: int) -> None:
    peer.put("T")
    command = RemotingCommand(0, -5, 1, {}, remark="FOUND")
    command.ext_fields = {"maxOffset": "1", "minOffset": "0", "nextBeginOffset": "1", "suggestWhichBrokerId": "0"}
    assert command.encode_prefix(0)[8:] == FOUND_IN_JSON % (1, 0, 1, -5)
    response = peer.get(code, HEADER, serialize_type=int(header_format))
    assert (response.code, response.remark, response.serialize_type) == (0, "FOUND", header_format)
    assert response.ext_fields == command.ext_fields


def test_pull_examines_limited_number_of_messages(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.storage.reading.store_reader._MAX_UNITS_LOOKED_AT", 900)
    peer = Peer(make_broker({"consume_queue_file_size_bytes": 20 * 2000}))
    for _ in range(950):
        peer.put("T")
    answer = peer.pull("T", 0, subscription="other", maxMsgNums=1_000_000)
    assert answer is not None
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "900")
