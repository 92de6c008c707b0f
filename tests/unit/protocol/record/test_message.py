"""message: what users write and receive."""

import sys
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.records import DOCUMENTED
from triomq.protocol.errors import MessageIllegalError, ProtocolError
from triomq.protocol.host import encode_host
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record, encode_record


def received(**changes: Any) -> MessageExt:
    return decode_record(encode_record(**{**DOCUMENTED, "properties": b"", **changes}))


def test_message_sends_its_fields_as_properties() -> None:
    message = Message("T", b"x", tags="A", keys=["k1", "k2"], properties={"p": "q"}, delay_level=3, sharding_key="s")
    assert message.all_properties() == {
        "p": "q",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "__SHARDINGKEY": "s",
        "WAIT": "true",
    }


def test_plain_message_sends_wait_only() -> None:
    assert Message("T", b"").all_properties() == {"WAIT": "true"}
    assert Message("T", b"", wait_store_ok=False).all_properties() == {"WAIT": "false"}
    assert Message("T", b"", keys="k1 k2").all_properties()["KEYS"] == "k1 k2"


def test_property_that_rocketmq_means_for_users_is_accepted() -> None:
    properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1000"}
    assert Message("T", b"", properties=properties).all_properties() == {**properties, "WAIT": "true"}


@pytest.mark.parametrize(
    ("fields", "properties"),
    [
        ({"delay_s": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        ({"deliver_at": datetime(2027, 1, 15, 8, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1800000000000"}),
        ({"delay_level": 2}, {"DELAY": "2"}),
        ({}, {}),
    ],
)
def test_delays_are_sent_as_rocketmq_names_them(fields: dict[str, Any], properties: dict[str, str]) -> None:
    message = Message("T", b"", **fields)
    assert message.all_properties() == {**properties, "WAIT": "true"}
    assert message.is_delayed is bool(fields)


def test_a_time_without_a_zone_is_local_time() -> None:
    local = datetime(2027, 1, 15, 8)  # noqa: DTZ001  # the point of this test
    expected = str(int(local.astimezone().timestamp()) * 1000)
    assert Message("T", b"", deliver_at=local).all_properties()["TIMER_DELIVER_MS"] == expected


MOMENT = datetime(2027, 1, 15, tzinfo=UTC)
RESERVED = ("KEYS", "TAGS", "WAIT", "UNIQ_KEY", "REAL_TOPIC", "__SHARDINGKEY", "TIMER_DELAY_MS")
REFUSED: dict[str, list[dict[str, Any]]] = {
    "a key has no blanks, which separate keys": [{"keys": keys} for keys in (["order 17"], ("a", "b c"), [" "])],
    **{name: [{"properties": {name: "x"}}] for name in RESERVED},
    "one of delay_level, delay_s and deliver_at": [
        {"delay_s": 1, "delay_level": 1},
        {"delay_s": 1, "deliver_at": MOMENT},
        {"delay_level": 1, "deliver_at": MOMENT},
    ],
    "delay of": [{"delay_s": delay_s} for delay_s in (-1.0, float("inf"), float("nan"))],
    "no consumer can select": [{"tags": tags} for tags in ("a||b", "||", " ", "\t")],
    "delay level -1": [{"delay_level": -1}],
    "flag": [{"flag": 2**31}, {"flag": -(2**31) - 1}],
}


@pytest.mark.parametrize(
    ("reason", "fields"), [(reason, fields) for reason, each in REFUSED.items() for fields in each]
)
def test_impossible_fields_are_refused_with_the_reason(reason: str, fields: dict[str, Any]) -> None:
    with pytest.raises(MessageIllegalError, match=reason):
        Message("T", b"", **fields)


@pytest.mark.parametrize("body", ["text", None, 5, bytearray(b"x")])
def test_body_that_not_bytes_refused_at_once(body: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        Message("T", body)


def test_received_message_shows_its_record() -> None:
    properties = encode_properties({"TAGS": "TagA", "KEYS": "k1  k2", "UNIQ_KEY": "C0A8", "p": "q"})
    message = received(properties=properties, flag=7, reconsume_times=2, prepared_transaction_offset=9)
    assert (message.topic, message.body, message.stored_body) == ("TopicTest", b"hello", b"hello")
    assert (message.tags, message.keys, message.unique_id, message.message_id) == ("TagA", ("k1", "k2"), "C0A8", "C0A8")
    assert message.offset_message_id == "0A4D000100002A9F0000000000000400"
    assert (message.born_host, message.store_host) == ("10.77.0.1:50000", "10.77.0.1:10911")
    assert message.encoded_born_host == encode_host("10.77.0.1", 50000)
    assert message.encoded_store_host == encode_host("10.77.0.1", 10911)
    assert message.properties == {"TAGS": "TagA", "KEYS": "k1  k2", "UNIQ_KEY": "C0A8", "p": "q"}
    assert message.user_properties == {"p": "q"}
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (1, 5, 1024)
    assert (message.flag, message.reconsume_times, message.prepared_transaction_offset) == (7, 2, 9)
    assert (message.born_timestamp, message.store_timestamp) == (1_700_000_000_000, 1_700_000_000_005)
    assert message.store_size == 91 + 5 + 9 + len(properties)
    assert message.body_crc == zlib.crc32(b"hello") & 0x7FFFFFFF
    assert message.broker_name == ""


def test_message_without_properties_goes_by_its_offset_id() -> None:
    message = received()
    assert (message.tags, message.keys, message.unique_id, message.properties) == (None, (), None, {})
    assert message.message_id == message.offset_message_id


def test_compressed_body_is_decompressed_once_and_kept() -> None:
    message = received(body=zlib.compress(b"hello"), sys_flag=0x301)
    assert message.body == b"hello"
    assert message.body is message.body
    assert zlib.decompress(message.stored_body) == b"hello"


def test_a_large_decompressed_body_is_not_kept() -> None:
    message = received(body=zlib.compress(bytes(1024**2)), sys_flag=0x301)
    assert message.body == bytes(1024**2)
    assert message.body is not message.body


def test_body_above_limit_of_its_client_is_refused() -> None:
    message = received(body=zlib.compress(bytes(1000)), sys_flag=0x301)
    message.max_body_bytes = 999
    with pytest.raises(ProtocolError, match="max_body_bytes"):
        _ = message.body


def test_damaged_compressed_body_fails_only_on_access() -> None:
    message = received(body=b"no zlib", sys_flag=1)
    assert message.topic == "TopicTest"
    with pytest.raises(ProtocolError):
        _ = message.body


def test_ill_formed_text_replaced_and_does_not_fail() -> None:
    message = received(topic=b"T\xff", properties=b"TAGS\x01\xff")
    assert (message.topic, message.tags) == ("T�", "�")


def test_invalid_host_port_raises_protocol_error_on_access() -> None:
    message = received(born_host=bytes(4) + b"\xff" * 4)
    with pytest.raises(ProtocolError):
        _ = message.born_host


def test_received_message_keeps_no_buffer_alive() -> None:
    buffer = bytearray(encode_record(**DOCUMENTED))
    references = sys.getrefcount(buffer)
    message = decode_record(memoryview(buffer))
    assert sys.getrefcount(buffer) == references
    buffer[:] = bytes(len(buffer))
    assert (message.topic, message.body) == ("TopicTest", b"hello")


def test_queue_bounds_are_system_properties_not_user_ones() -> None:
    message = received(properties=encode_properties({"mine": "1"}))
    message.queue_bounds = QueueOffset(3), QueueOffset(9)
    assert message.properties == {"mine": "1", "MIN_OFFSET": "3", "MAX_OFFSET": "9"}
    assert message.user_properties == {"mine": "1"}
    assert message.encoded_properties == encode_properties({"mine": "1"})
