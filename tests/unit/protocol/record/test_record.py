"""record: the stored message."""

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import DOCUMENTED
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record import layouts
from triomq.protocol.record.intact_record import IntactWalk
from triomq.protocol.record.layout import (
    BLANK_MAGIC,
    HEAD,
    HEAD_FORMATS,
    HEADS,
    head_offset,
    head_struct,
    record_size,
)
from triomq.protocol.record.record import (
    RecordKind,
    check_record,
    decode_record,
    decode_records,
    encode_record,
    find_damage,
)

GOLDEN = bytes.fromhex(
    "0000009c daa320a7 3610a686 00000001 00000000 0000000000000005 0000000000000400 00000000 0000018bcfe56800 0a4d0001"
    "0000c350 0000018bcfe56805 0a4d0001 00002a9f 00000000 0000000000000000 00000005 68656c6c6f 09 546f70696354657374"
    "0033 54414753015461674102554e49515f4b4559014330413830313041314132423138423441414332313644324633364530303031"
)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
HOST = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
PARTS = st.fixed_dictionaries(
    {
        "queue_id": I32,
        "flag": I32,
        "queue_offset": I64,
        "physical_offset": I64,
        "sys_flag": I32,
        "born_timestamp": I64,
        "born_host": HOST,
        "store_timestamp": I64,
        "store_host": HOST,
        "reconsume_times": I32,
        "prepared_transaction_offset": I64,
        "body": st.one_of(st.binary(max_size=50), st.binary(min_size=2048, max_size=2060)),
        "topic": st.binary(min_size=1, max_size=127),
        "properties": st.binary(max_size=60),
    }
)


def layout_of(parts: dict[str, Any]) -> bytes:
    """Build a record from its readable layout."""
    born, store = parts["born_host"], parts["store_host"]
    host_bits = (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0)
    head_size = HEADS[host_bits >> 4].size
    size = record_size(len(parts["body"]), len(parts["topic"]), len(parts["properties"]), head_size)
    built: bytes = layouts.RECORD.build(
        {
            **parts,
            "total_size": size,
            "body_crc": zlib.crc32(parts["body"]) & 0x7FFFFFFF,
            "sys_flag": parts["sys_flag"] & ~0x30 | host_bits,
            "born_host": {"address": born[:-4], "port": int.from_bytes(born[-4:], signed=True)},
            "store_host": {"address": store[:-4], "port": int.from_bytes(store[-4:], signed=True)},
        }
    )
    return built


def test_record_equals_the_golden_bytes() -> None:
    assert encode_record(**DOCUMENTED) == GOLDEN
    assert decode_record(GOLDEN).store_size == len(GOLDEN) == 156


@given(PARTS)
def test_packed_record_agrees_with_its_layout(parts: dict[str, Any]) -> None:
    assert encode_record(**parts) == layout_of(parts)


@given(PARTS)
def test_decoded_record_agrees_with_its_layout(parts: dict[str, Any]) -> None:
    data = layout_of(parts)
    message = decode_record(data)
    parsed = layouts.RECORD.parse(data)
    numbers = ("queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp", "store_timestamp")
    for name in (*numbers, "reconsume_times", "prepared_transaction_offset"):
        assert getattr(message, name) == parsed[name]
    assert message.stored_body == parsed.body
    assert message.topic == parsed.topic.decode("utf-8", "replace")
    assert message.encoded_properties == parsed.properties
    assert (message.store_size, message.body_crc) == (parsed.total_size, parsed.body_crc)


@given(PARTS, st.integers(0, 9), st.sampled_from([bytes, bytearray, memoryview]))
def test_check_agrees_with_decoding(parts: dict[str, Any], before: int, kind: type) -> None:
    parts |= {name: parts[name].replace(b"\0", b"x") for name in ("topic", "properties")}  # see the next but one
    parts |= {} if parts["body"] else {"body": b"x"}  # without one, zeros in the head may be what a power cut has left
    data = bytes(before) + layout_of(parts)
    check = check_record(kind(data), before, len(data), check_crc=True)
    message = decode_record(kind(data), before)
    assert check[:3] == (RecordKind.MESSAGE, message.store_size, "")
    numbers = ("queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp")
    for name in (*numbers, "prepared_transaction_offset", "topic"):
        assert getattr(check, name) == getattr(message, name)
    assert check.properties == message.encoded_properties


@pytest.mark.parametrize("border", [44, 66])
def test_record_with_cut_header_is_bad(border: int) -> None:
    """It was on the other side of a border of sectors; the length of a body would be zero there, too."""
    whole = encode_record(**{**DOCUMENTED, "body": b""})
    torn = whole[:border] + bytes(88 - border) + whole[88:]
    assert check_record(whole, 0, len(whole), check_crc=True).kind is RecordKind.MESSAGE
    found = check_record(torn, 0, len(torn), check_crc=True)
    assert (found.kind, found.size, found.reason[-29:]) == (RecordKind.BAD, len(torn), "a part of its head is missing")
    assert find_damage(torn, 0, len(torn), DOCUMENTED["topic"], DOCUMENTED["queue_id"])
    assert IntactWalk(check_crc=True).run(torn, 0, len(torn), DOCUMENTED["physical_offset"]) == []
    with_body = encode_record(**DOCUMENTED)
    torn = with_body[:border] + bytes(88 - border) + with_body[88:]
    assert check_record(torn, 0, len(torn), check_crc=True).kind is RecordKind.BAD


def test_check_gives_the_tags_code() -> None:
    assert check_record(GOLDEN, 0, len(GOLDEN), check_crc=True).tags_code == 2598919
    plain = encode_record(**{**DOCUMENTED, "properties": b""})
    assert check_record(plain, 0, len(plain), check_crc=True).tags_code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": b""},
        {"topic": b"t" * 128},
        {"properties": b"p" * 32768},
        {"queue_id": 2**31},
        {"queue_offset": 2**63},
        {"born_host": b"1234"},
        {"born_host": bytes(20), "store_host": b"1234"},
    ],
)
def test_encoding_refuses_what_does_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        encode_record(**{**DOCUMENTED, **changes})


@given(PARTS, st.sets(st.sampled_from(list(HEAD_FORMATS)), min_size=1))
def test_structs_of_some_fields_agree_with_the_head(parts: dict[str, Any], names: set[str]) -> None:
    data = encode_record(**{**parts, "born_host": bytes(8), "store_host": bytes(8)})
    fields = dict(zip(HEAD_FORMATS, HEAD.unpack_from(data), strict=True))
    wanted = [name for name in HEAD_FORMATS if name in names]
    assert head_struct(*wanted).unpack_from(data) == tuple(fields[name] for name in wanted)
    for name in wanted:
        assert struct.unpack_from(">" + HEAD_FORMATS[name], data, head_offset(name)) == (fields[name],)


@pytest.mark.parametrize("length", range(len(GOLDEN)))
def test_truncated_record_is_a_protocol_error(length: int) -> None:
    with pytest.raises(ProtocolError):
        decode_record(GOLDEN[:length])
    check = check_record(GOLDEN, 0, length, check_crc=True)
    assert check.kind is (RecordKind.END if length < 8 else RecordKind.BAD)
    if length:
        with pytest.raises(ProtocolError):
            decode_records(GOLDEN + GOLDEN[:length])


def test_lengths_that_contradict_each_other_are_refused() -> None:
    topic_at, properties_at = 88 + 5, 88 + 5 + 1 + 9
    topics = ((topic_at, length) for length in (0, 127, 128))
    for position, value in (*topics, (properties_at, 0x80), (properties_at + 1, 0)):
        damaged = bytearray(GOLDEN)
        damaged[position] = value
        with pytest.raises(ProtocolError):
            decode_record(damaged)


def test_ipv6_bits_on_too_short_record_are_refused() -> None:
    damaged = bytearray(GOLDEN[:90])
    struct.pack_into(">i", damaged, 0, 90)
    struct.pack_into(">i", damaged, 36, 0x30)
    with pytest.raises(ProtocolError, match="IPv6"):
        decode_record(damaged)


def test_body_crc_mismatch_bad_only_when_crc_checked() -> None:
    damaged = bytearray(GOLDEN)
    damaged[88] ^= 1
    assert check_record(damaged, 0, len(damaged), check_crc=True).kind is RecordKind.BAD
    assert check_record(damaged, 0, len(damaged), check_crc=False).kind is RecordKind.MESSAGE
    assert decode_record(damaged).body == b"iello"


@pytest.mark.parametrize("part", ["topic", "properties"])
@pytest.mark.parametrize("lost", ["first", "last"])
def test_missing_sector_in_topic_or_properties_is_detected(part: str, lost: str) -> None:
    text = b"x" * 100
    record = encode_record(**{**DOCUMENTED, part: text})
    at = 512 - record.index(text) - 40  # 40 bytes of the text lie before the border of two sectors
    file = bytearray(at) + record + bytes(1024)
    begin, end = (472, 512) if lost == "first" else (512, 572)
    assert check_record(file, at, len(file), check_crc=True).kind is RecordKind.MESSAGE
    file[begin + 1 : end] = bytes(end - begin - 1)
    assert check_record(file, at, len(file), check_crc=True).kind is RecordKind.MESSAGE
    file[begin] = 0
    found = check_record(file, at, len(file), check_crc=True)
    assert found.kind is RecordKind.BAD
    assert "is missing" in found.reason


@given(st.integers(8, 100), st.integers(0, 100))
def test_blank_record_agrees_with_its_layout(size: int, more: int) -> None:
    data = layouts.BLANK_RECORD.build({"size": size, "rest": bytes(size - 8)}) + bytes(more)
    assert check_record(data, 0, len(data), check_crc=True)[:2] == (RecordKind.BLANK, size)


@pytest.mark.parametrize("size", [-1, 0, 7, 101, 2**31 - 1])
def test_blank_record_of_impossible_size_is_bad(size: int) -> None:
    data = struct.pack(">ii", size, BLANK_MAGIC).ljust(100, b"\0")
    assert check_record(data, 0, 100, check_crc=True).kind is RecordKind.BAD


def test_log_ends_where_there_is_no_magic() -> None:
    check = check_record(bytes(1000), 0, 1000, check_crc=True)
    assert (check.kind, check.size) == (RecordKind.END, 0)
    assert "magic" in check.reason
