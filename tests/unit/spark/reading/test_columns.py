"""Scenarios 8, 9 and 14 of spark.md 6: columns equal to what the record by record decoder of the client says."""

import zlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.errors import ProtocolError, UnsupportedCompressionError
from triomq.protocol.host import encode_host
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.compression import compress
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_records, encode_record
from triomq.spark.options.options import Options
from triomq.spark.reading.columns import Decoder
from triomq.spark.schema import READ_TYPES

QUEUE = MessageQueue("T", "broker-a", 2)
V4, V6 = encode_host("10.0.0.1", 1234), encode_host("2001:db8::1", 65535)
ALL = tuple(READ_TYPES)
NAMES = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"ROW_ID", b"DELAY", b"a", b"\xc3\xa4", b"", b"bad\xff"])
VALUES = st.sampled_from([b"", b"1", b"A", b"x\x01y", b"\xe4\xbd\xa0", b"\x80tail", b"long " * 20])
PARTS = st.tuples(NAMES, VALUES, st.booleans()).map(lambda part: part[0] + (b"\x01" if part[2] else b"") + part[1])
PROPERTIES = st.tuples(st.lists(PARTS, max_size=6), st.booleans()).map(
    lambda parts: b"\x02".join(parts[0]) + (b"\x02" if parts[1] else b"")
)


def record(
    queue_offset: int,
    body: bytes = b"body",
    properties: bytes = b"",
    *,
    sys_flag: int = 0,
    born: bytes = V4,
    stored: bytes = V4,
    topic: bytes = b"T",
) -> bytes:
    return encode_record(
        queue_id=2, queue_offset=queue_offset, physical_offset=queue_offset * 1000 + 7, sys_flag=sys_flag,
        born_timestamp=1_700_000_000_123 + queue_offset, born_host=born, store_host=stored,
        store_timestamp=1_700_000_000_456 + queue_offset, body=body, topic=topic, properties=properties,
        flag=-queue_offset, reconsume_times=queue_offset % 3,
    )  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Several records one after the other, odd in many ways."""
    parts = []
    for queue_offset in range(draw(st.integers(1, 6))):
        body = draw(st.binary(max_size=40))
        sys_flag = draw(st.sampled_from([0, 4, 8, 12]))
        if draw(st.booleans()):
            body, sys_flag = zlib.compress(body), sys_flag | int(MessageSysFlag.COMPRESSED)
        parts.append(
            record(
                queue_offset, body, draw(PROPERTIES), sys_flag=sys_flag, born=draw(st.sampled_from([V4, V6])),
                stored=draw(st.sampled_from([V4, V6])), topic=draw(st.sampled_from([b"T", b"%RETRY%g"])),
            )
        )  # fmt: skip
    return b"".join(parts)


def time(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def expected(message: MessageExt, topic: str = "T") -> dict[str, Any]:
    """What the columns of a message must be, by the client's decoder."""
    properties = message.properties
    retried = properties.get("RETRY_TOPIC") if topic.startswith("%RETRY%") else None
    delay = properties.get("DELAY")
    return {
        "topic": retried or message.topic, "broker": "broker-a", "queueId": message.queue_id,
        "queueOffset": message.queue_offset, "msgId": message.message_id, "keys": properties.get("KEYS"),
        "tags": message.tags, "body": message.body, "flag": message.flag,
        "properties": {name: value for name, value in properties.items() if name not in ("KEYS", "TAGS")},
        "bornTime": time(message.born_timestamp), "storeTime": time(message.store_timestamp),
        "bornHost": message.born_host, "storeHost": message.store_host, "reconsumeTimes": message.reconsume_times,
        "delayLevel": int(delay) if delay and delay.isdecimal() else None,
        "transactionState": ("none", "prepared", "commit", "rollback")[message.sys_flag >> 2 & 3],
        "rowId": properties.get("ROW_ID"),
    }  # fmt: skip


def decoder(*columns: str, **options: Any) -> Decoder:
    return Decoder(QUEUE, columns or ALL, Options(options))


def rows(decoder: Decoder, chunk: bytes, begin: int = 0, end: int = 2**40) -> list[dict[str, Any]]:
    found = []
    for batch in decoder.decode(chunk, begin, end):
        assert batch.num_rows
        batch.validate(full=True)
        for row in batch.to_pylist():
            if "properties" in row:
                assert len(dict(row["properties"])) == len(row["properties"])
                row["properties"] = dict(row["properties"])
            found.append(row)
    return found


@settings(max_examples=1000)  # of 1 to 6 records each
@given(records())
def test_columns_equal_the_clients_decoder(chunk: bytes) -> None:
    assert rows(decoder(), chunk) == [expected(message) for message in decode_records(chunk)]


def test_batches_have_wanted_columns_in_order() -> None:
    found = rows(decoder("tags", "queueOffset"), record(3, properties=b"TAGS\x01A"))
    assert [list(row.items()) for row in found] == [[("tags", "A"), ("queueOffset", 3)]]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=6), st.integers(0, 10), st.integers(10, 20))
def test_overlapping_answers_give_each_offset_once(answers: list[tuple[int, int]], begin: int, end: int) -> None:
    offsets = [first + index for first, count in answers for index in range(count)]
    found = [row["queueOffset"] for row in rows(decoder("queueOffset"), b"".join(map(record, offsets)), begin, end)]
    wanted: list[int] = []
    for queue_offset in offsets:
        if begin <= queue_offset < end and queue_offset > max(wanted, default=-1):
            wanted.append(queue_offset)
    assert found == wanted


def test_tags_of_equal_hash_are_distinguished() -> None:
    chunk = b"".join(
        record(number, properties=b"TAGS\x01" + tag) for number, tag in enumerate([b"Aa", b"BB", b"Aa", b"C"])
    )
    chunk += record(4)
    found = rows(decoder("queueOffset", tags="Aa || C"), chunk)
    assert [row["queueOffset"] for row in found] == [0, 2, 3]


def test_compressed_bodies_do_not_make_one_huge_batch() -> None:
    packed = compress(bytes(100_000))
    chunk = b"".join(record(number, packed, sys_flag=1) for number in range(10)) + record(10)
    batches = list(decoder("body", "queueOffset", batchBytes=250_000).decode(chunk, 0, 99))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 2]
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == list(range(11))
    bodies = [row["body"] for batch in batches for row in batch.to_pylist()]
    assert bodies == [bytes(100_000)] * 10 + [b"body"]


def test_retried_message_has_its_first_topic() -> None:
    retried = Decoder(MessageQueue("%RETRY%g", "broker-a", 0), ("topic",), Options({}))
    chunk = record(0, properties=b"RETRY_TOPIC\x01Orders", topic=b"%RETRY%g") + record(1, topic=b"%RETRY%g")
    assert rows(retried, chunk) == [{"topic": "Orders"}, {"topic": "%RETRY%g"}]


def test_sixty_property_names_are_distinguished() -> None:
    many = b"\x02".join(b"n%d\x01v" % number for number in range(60)) + b"\x02n7\x01last"
    (row,) = rows(decoder("properties"), record(0, properties=many))
    assert len(row["properties"]) == 60
    assert row["properties"]["n7"] == "last"


def test_unreadable_compressed_bodies_become_null(caplog: pytest.LogCaptureFixture) -> None:
    chunk = record(1, compress(b"ok"), sys_flag=1) + record(2, b"no zlib", sys_flag=1)
    chunk += record(3, compress(bytes(2000)), sys_flag=1) + record(4)
    found = rows(decoder("body", maxBodyBytes=1999), chunk)
    assert [row["body"] for row in found] == [b"ok", None, None, b"body"]
    damaged, too_large = caplog.messages
    assert "T@broker-a:2 offset 2: zlib" in damaged
    assert "T@broker-a:2 offset 3: zlib body: more than 1999 bytes" in too_large


def test_host_flag_longer_than_its_data_is_damage() -> None:
    damaged = bytearray(record(0, b"x"))
    damaged[39] |= 0x30  # both hosts IPv6
    with pytest.raises(ProtocolError, match="T@broker-a:2 offset 0"):
        list(decoder().decode(bytes(damaged), 0, 1))


@given(records(), st.integers(1, 2000), st.integers(0, 255))
def test_damage_is_an_error_of_ours_or_harmless(chunk: bytes, at: int, value: int) -> None:
    damaged = bytearray(chunk)
    damaged[at % len(chunk)] = value
    with suppress(ProtocolError, UnsupportedCompressionError):
        list(decoder().decode(bytes(damaged), 0, 2**62))


@pytest.mark.parametrize("cut", [1, 50, 92, 95])
def test_a_truncated_record_names_its_queue(cut: int) -> None:
    with pytest.raises(ProtocolError, match="T@broker-a:2"):
        rows(decoder(), record(0) + record(1)[:cut])
