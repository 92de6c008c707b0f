"""Sends: stored records, answers, and refusals with their codes."""

from typing import Any

import pytest

from tests.unit.broker.recording import MakeBroker, Peer
from triomq.protocol.bodies.route import TopicConfig, TopicFilterType
from triomq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from triomq.protocol.record.batch import encode_batch
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests.messages import SendMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability


def stored(peer: Peer, response: RemotingCommand) -> list[MessageExt]:
    """Return the records that the response's offset message ids lead to."""
    assert response.code == ResponseCode.SUCCESS, response
    messages = []
    for text in response.ext_fields["msgId"].split(","):
        _, _, physical_offset = parse_offset_message_id(text)
        record = peer.broker.store.commit_log.look_message(physical_offset)
        assert record is not None
        messages.append(decode_record(record))
    return messages


def test_message_is_stored_unchanged_and_response_names_place(peer: Peer) -> None:
    properties = "KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x01ID\x02own\x01ü"
    flags = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD)
    response = peer.put("T", b"\x00body", queue_id=2, i=f"WAIT\x01false\x02{properties}", f=flags, g=17, h=-5, j=3)
    (message,) = stored(peer, response)
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 2, 0)
    assert (message.stored_body, message.flag, message.born_timestamp) == (b"\x00body", -5, 17)
    assert (message.reconsume_times, message.sys_flag) == (3, flags)
    assert message.born_host == "192.0.2.9:50001"
    assert message.store_host == "192.0.2.1:10911"
    assert message.encoded_properties == (properties + "\x02CLUSTER\x01DefaultCluster").encode()
    assert response.ext_fields["queueId"] == "2"
    assert response.ext_fields["queueOffset"] == "0"
    assert response.remark is None


def test_code_10_with_long_names_is_accepted(peer: Peer) -> None:
    header = SendMessageRequestHeader(
        producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=1,
        sys_flag=0, born_timestamp=5, flag=0, properties="TAGS\x01A",
    )  # fmt: skip
    (message,) = stored(peer, peer.get(RequestCode.SEND_MESSAGE, header, b"x"))
    assert (message.queue_id, message.tags, message.stored_body) == (1, "A", b"x")


def test_unknown_topic_is_rejected_without_auto_create(make_broker: MakeBroker) -> None:
    """C.2 scenario 2."""
    peer = Peer(make_broker(auto_create_topic=False))
    response = peer.put("T")
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert response.remark == "topic[T] not exist, apply first please!"
    assert peer.broker.topics.get("T") is None


def test_send_without_queue_gets_assigned_queue_in_response(peer: Peer) -> None:
    """C.2 scenario 3."""
    chosen = set()
    for _ in range(100):
        response = peer.put("T", queue_id=-1)
        (message,) = stored(peer, response)
        assert response.ext_fields["queueId"] == str(message.queue_id)
        chosen.add(message.queue_id)
    assert chosen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("queue_id", "write_queues", "code", "remark"),
    [
        (4, 4, ResponseCode.SYSTEM_ERROR, "request queueId[4] is illegal"),
        (-1, 0, ResponseCode.NO_PERMISSION, "topic[T] has no queue to write to"),
    ],
)
def test_queue_that_cannot_be_used_is_refused(
    peer: Peer, queue_id: int, write_queues: int, code: int, remark: str
) -> None:
    """C.2 scenario 3."""
    peer.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=write_queues))
    response = peer.put("T", queue_id=queue_id)
    assert (response.code, response.remark) == (code, remark)


def test_template_topic_and_read_only_topic_take_messages(peer: Peer) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", perm=4))
    for topic in ("TBW102", "T"):
        (message,) = stored(peer, peer.put(topic, b""))
        assert (message.topic, message.stored_body) == (topic, b"")


FORBIDDEN = (
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
)  # fmt: skip


@pytest.mark.parametrize("topic", FORBIDDEN)
def test_system_topics_are_forbidden_and_not_created(peer: Peer, topic: str) -> None:
    """C.2 scenario 4."""
    before = list(peer.broker.topics.configs)
    response = peer.put(topic)
    assert response.code == ResponseCode.NO_PERMISSION
    assert response.remark is not None
    assert "is forbidden" in response.remark
    assert list(peer.broker.topics.configs) == before


def test_properties_up_to_their_limit_are_taken(peer: Peer) -> None:
    room = 32_767 - len("own\x01") - len("\x02CLUSTER\x01DefaultCluster")
    assert peer.put("T", i="own\x01" + "x" * room).code == ResponseCode.SUCCESS
    assert peer.put("T", i="own\x01" + "x" * (room + 1)).code == ResponseCode.MESSAGE_ILLEGAL
    assert peer.put("T", i="own\x01" + "ü" * (room // 2 + 1)).code == ResponseCode.MESSAGE_ILLEGAL


def batch(count: int = 3) -> bytes:
    return encode_batch(
        [(number, b"body-%d" % number, b"own\x01%d\x02TAGS\x01Tag%d" % (number, number)) for number in range(count)]
    )


def test_batch_gets_consecutive_offsets_and_own_properties(peer: Peer) -> None:
    """C.2 scenario 6."""
    peer.put("T", queue_id=1)
    response = peer.put("T", batch(), queue_id=1, m="true", i="WAIT\x01true\x02shared\x01s\x02UNIQ_KEY\x01whole")
    messages = stored(peer, response)
    assert response.ext_fields["msgId"].count(",") == 2
    assert response.ext_fields["queueOffset"] == "1"
    assert [message.queue_offset for message in messages] == [1, 2, 3]
    assert [message.stored_body for message in messages] == [b"body-0", b"body-1", b"body-2"]
    for number, message in enumerate(messages):
        assert message.flag == number
        assert message.tags == f"Tag{number}"
        assert message.properties["own"] == str(number)
        assert message.properties["shared"] == "s"
        assert message.properties["CLUSTER"] == "DefaultCluster"
        assert message.unique_id is None
    assert (peer.broker.statistics.put_by_topic, peer.broker.statistics.put_bytes) == ({"T": 4}, 5 + len(batch()))


def test_batch_is_recognised_by_flag_not_code(peer: Peer) -> None:
    header = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    whole = stored(peer, peer.get(RequestCode.SEND_BATCH_MESSAGE, header, batch(1)))
    assert [message.stored_body for message in whole] == [batch(1)]
    parts = stored(peer, peer.get(RequestCode.SEND_MESSAGE_V2, {**header, "m": "true"}, batch(1)))
    assert [message.stored_body for message in parts] == [b"body-0"]


@pytest.mark.parametrize(
    ("body", "fields", "remark"),
    [
        (batch(), {"i": "DELAY\x011"}, "cannot be delayed"),
        (batch(), {"i": "TIMER_DELAY_SEC\x013"}, "cannot be delayed"),
        (encode_batch([(0, b"", b""), (0, b"", b"TIMER_DELIVER_MS\x0117")]), {}, "cannot be delayed"),
        (batch(), {"f": 4}, "part of a transaction"),
        (batch(), {"f": 8}, "part of a transaction"),
        (batch(), {"f": 12}, "part of a transaction"),
        (b"", {}, "a batch of 0 messages"),
        (b"x", {}, ""),
        (batch()[:-1], {}, ""),
        (batch() + b"\0", {}, ""),
        (encode_batch([(0, b"", b"")] * 16_385), {}, "a batch of 16385 messages: it may hold 1 to 16384"),
        (encode_batch([(0, b"small", b""), (0, b"large", b"own\x01" + b"x" * 32_760)]), {}, "properties"),
        (encode_batch([(0, bytes(400_000), b"")] * 3), {}, "is above maxMessageSize 1000000"),
    ],
)
def test_illegal_batch_stores_nothing(
    make_broker: MakeBroker, body: bytes, fields: dict[str, Any], remark: str
) -> None:
    """C.2 scenario 7."""
    peer = Peer(make_broker({"commit_log_file_size_bytes": 4 * 1024**2, "max_message_size_bytes": 1_000_000}))
    response = peer.put("T", body, m="true", **fields)
    assert response.code in {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR}
    assert remark in (response.remark or "")
    assert peer.broker.store.commit_log.max_offset == 0


def test_longest_batch_is_stored(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker({"commit_log_file_size_bytes": 4 * 1024**2}))
    assert peer.put("T", encode_batch([(0, b"", b"")] * 16_384), m="true").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("T", {}, ResponseCode.SUCCESS),
        ("T", {"e": 99}, ResponseCode.SYSTEM_ERROR),
        ("a b", {}, ResponseCode.SYSTEM_ERROR),
        ("T", {"g": "x"}, ResponseCode.SYSTEM_ERROR),
        ("SELF_TEST_TOPIC", {}, ResponseCode.NO_PERMISSION),
    ],
)
def test_every_answer_names_region_and_trace(peer: Peer, topic: str, fields: dict[str, Any], code: int) -> None:
    """C.2 scenario 8."""
    response = peer.put(topic, **fields)
    assert response.code == code
    assert response.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert response.ext_fields["TRACE_ON"] == "true"


def test_topic_with_many_tags_marks_its_messages(peer: Peer) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="T", topic_filter_type=TopicFilterType.MULTI_TAG))
    (message,) = stored(peer, peer.put("T"))
    assert message.sys_flag & MessageSysFlag.MULTI_TAGS


def test_delayed_message_is_stored_in_level_queue(peer: Peer) -> None:
    """C.2 scenario 14."""
    peer.put("T", i="DELAY\x013")
    response = peer.put("T", queue_id=2, i="TAGS\x01A\x02WAIT\x01true\x02DELAY\x013")
    (message,) = stored(peer, response)
    assert (message.topic, message.queue_id, message.queue_offset) == ("SCHEDULE_TOPIC_XXXX", 2, 1)
    assert (response.ext_fields["queueId"], response.ext_fields["queueOffset"]) == ("2", "1")
    expected = (
        b"TAGS\x01A\x02DELAY\x013\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02REAL_TOPIC\x01T\x02REAL_QID\x012"
    )
    assert message.encoded_properties == expected
    (unit,) = peer.broker.store.reader.queue_units("SCHEDULE_TOPIC_XXXX", 2, 1, 1)
    assert unit.tags_code == message.store_timestamp + 10_000
    assert peer.broker.store.reader.max_offset_in_queue("T", 2) == 0
    assert peer.broker.statistics.put_by_topic == {"SCHEDULE_TOPIC_XXXX": 2}


WAITS, HALF = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.mark.parametrize(
    ("properties", "fields", "topic"),
    [
        *((f"DELAY\x01{level}", {}, WAITS) for level in ("19", "99", "+99", "2147483648")),
        *((f"DELAY\x01{level}", {}, "T") for level in ("0", "-1", "")),
        ("MYDELAY\x013", {}, "T"),
        ("DELAY\x0118", {"f": 8}, WAITS),
        ("DELAY\x0118", {"f": 4}, "T"),
        ("DELAY\x0118", {"f": 12}, "T"),
        ("TRAN_MSG\x01true", {}, HALF),
        ("TRAN_MSG\x01false", {}, "T"),
        ("TRAN_MSG\x01true\x02DELAY\x0118", {"b": "%RETRY%G", "j": 1}, WAITS),  # C.4 row 17
        ("TRAN_MSG\x01true", {"b": "%RETRY%G", "j": 1}, HALF),
    ],
)
def test_properties_decide_where_message_waits(peer: Peer, properties: str, fields: dict[str, Any], topic: str) -> None:
    """C.2 scenario 15; levels above the highest count as the highest."""
    (message,) = stored(peer, peer.put("T", i=properties, **fields))
    assert message.topic == topic
    if topic == WAITS:
        assert (message.queue_id, message.properties["DELAY"]) == (17, "18")


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        *((f"DELAY\x01{level}", "") for level in ("x", "1.5", "1s", "9" * 5000)),
        ("TRAN_MSG\x01true\x02DELAY\x013", "part of a transaction and delayed"),
        ("TRAN_MSG\x01true\x02TIMER_DELAY_SEC\x013", "part of a transaction and delayed"),
        ("TIMER_DELAY_SEC\x01soon", "is not a number"),
        ("TIMER_DELAY_SEC\x01259201", "max delay 259200000ms"),
    ],
)
def test_impossible_delay_is_refused(peer: Peer, properties: str, remark: str) -> None:
    response = peer.put("T", i=properties)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert remark in (response.remark or "")


@pytest.mark.parametrize(
    ("fields", "version", "is_dead"),
    [
        ({"j": 15}, 407, False),
        ({"j": 16}, 407, True),
        ({"j": 2, "l": 3}, 407, False),
        ({"j": 3, "l": 3}, 407, True),
        ({"j": 3, "l": 3}, 120, False),
        ({"j": 3, "l": 3}, 121, True),
        ({"l": 0}, 407, True),
        ({}, 407, False),
    ],
)
def test_exhausted_retry_becomes_dead_letter(peer: Peer, fields: dict[str, Any], version: int, is_dead: bool) -> None:
    """C.4 row 1."""
    header = {"a": "P", "b": "%RETRY%G", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "DELAY\x015"}
    response = peer.get(RequestCode.SEND_MESSAGE_V2, {**header, **fields}, b"x", version=version)
    (message,) = stored(peer, response)
    if not is_dead:
        assert (message.topic, message.properties["REAL_TOPIC"]) == ("SCHEDULE_TOPIC_XXXX", "%RETRY%G")
        return
    assert (message.topic, message.queue_id) == ("%DLQ%G", 0)
    assert message.properties == {"CLUSTER": "DefaultCluster", "DELAY": "0"}
    assert message.reconsume_times == fields.get("j", 0)
    config = peer.broker.topics.get("%DLQ%G")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


def test_dead_letter_response_names_requested_queue(peer: Peer) -> None:
    peer.broker.topics.put(TopicConfig(topic_name="%RETRY%G"))
    response = peer.put("%RETRY%G", queue_id=5, j=16)
    (message,) = stored(peer, response)
    assert (response.ext_fields["queueId"], message.queue_id) == ("5", 0)


def test_retry_topic_needs_creatable_group(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker(auto_create_group=False))
    assert peer.put("%RETRY%unknown").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    peer = Peer(make_broker(auto_create_group=True))
    assert peer.put("%RETRY%unknown").code == ResponseCode.SUCCESS
    assert peer.broker.groups.settings.get("unknown") is not None


@pytest.mark.parametrize("missing", ["a", "b", "c", "d", "e", "f", "g", "h"])
def test_missing_header_field_is_named(peer: Peer, missing: str) -> None:
    header = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    del header[missing]
    response = peer.get(RequestCode.SEND_MESSAGE_V2, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark is not None
    assert f"'{missing}'" in response.remark


async def test_sync_send_waits_unless_opted_out(make_broker: MakeBroker) -> None:
    peer = Peer(make_broker({"durability": Durability.SYNC}))
    header = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    assert peer.ask(RequestCode.SEND_MESSAGE_V2, header) is None
    assert peer.broker.group_commit is not None
    assert peer.broker.group_commit.waiting == 1
    response = peer.ask(RequestCode.SEND_MESSAGE_V2, {**header, "i": "WAIT\x01false"})
    assert response is not None
    assert response.ext_fields["queueOffset"] == "1"
    several = {**header, "m": "true"}
    assert peer.ask(RequestCode.SEND_MESSAGE_V2, several, batch()) is None
    assert peer.broker.group_commit.waiting == 2
    response = peer.ask(RequestCode.SEND_MESSAGE_V2, {**several, "i": "WAIT\x01false"}, batch())
    assert response is not None
    assert response.ext_fields["queueOffset"] == "5"
    assert peer.broker.group_commit.waiting == 2
