"""ROCKETMQ and msgpack headers: lengths and types that peers may write, or may not."""

import struct
import time

import msgpack
import pytest

from tests.commands import decode_header, encode_header
from tests.unit.protocol.memory import memory_below
from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import UNKNOWN_LANGUAGE

ROCKETMQ, MSGPACK = SerializeType.ROCKETMQ, SerializeType.MSGPACK
MEBIBYTE = 1024**2


def decode(header: bytes, serialize_type: int) -> RemotingCommand:
    return decode_header(header, serialize_type)


def refuse(header: bytes, serialize_type: int, match: str = ".") -> None:
    with pytest.raises(ProtocolError, match=match):
        decode(header, serialize_type)


# --- ROCKETMQ, reading ---

FIXED = struct.Struct(">hBhii")


def binary(remark: bytes = b"", entries: bytes = b"", language: int = 0) -> bytes:
    fixed = FIXED.pack(10, language, 407, -5, 2)
    return fixed + struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(entries)) + entries


def entry(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


def test_binary_header_is_read() -> None:
    command = decode(binary(b"why", entry(b"topic", "\u4e2d".encode()) + entry(b"x", b"1"), 9), ROCKETMQ)
    assert (command.code, command.language, command.version, command.opaque, command.flag) == (10, 9, 407, -5, 2)
    assert (command.remark, command.ext_fields) == ("why", {"topic": "\u4e2d", "x": "1"})
    assert command.serialize_type == ROCKETMQ


def test_binary_of_two_equal_names_last_one_wins() -> None:
    """wire.md 2.3: Java writes some fields twice, with ACL for instance."""
    assert decode(binary(entries=entry(b"a", b"1") + entry(b"b", b"") + entry(b"a", b"2")), ROCKETMQ).ext_fields == {
        "a": "2",
        "b": "",
    }


@pytest.mark.parametrize("language", [14, 77, 255])
def test_unknown_binary_language_is_accepted(language: int) -> None:
    assert decode(binary(language=language), ROCKETMQ).language == UNKNOWN_LANGUAGE


def test_binary_bytes_behind_the_map_are_ignored() -> None:
    """Java reads no further than the map."""
    assert decode(binary(entries=entry(b"a", b"1")) + b"more", ROCKETMQ).ext_fields == {"a": "1"}


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 2**30, 100, 5])
@pytest.mark.parametrize("what", ["remark", "extFields", "key", "value"])
def test_binary_invalid_length_error_names_the_field(what: str, length: int) -> None:
    fixed = FIXED.pack(10, 0, 407, 1, 0)
    header = {
        "remark": fixed + struct.pack(">i", length) + bytes(4),
        "extFields": fixed + struct.pack(">ii", 0, length) + b"four",
        "key": fixed + struct.pack(">ii", 0, 6) + struct.pack(">h", max(min(length, 32_767), -32_768)) + b"four",
        "value": fixed + struct.pack(">iih", 0, 11, 1) + b"k" + struct.pack(">i", length) + b"four",
    }[what]
    with memory_below(64 * 1024):
        refuse(header, ROCKETMQ, match=what)


def test_binary_entry_beyond_its_map_is_rejected() -> None:
    whole = binary(entries=entry(b"a", b"12345"))
    for short in range(1, 12):
        cut = whole[:17] + struct.pack(">i", short) + whole[21:]
        refuse(cut, ROCKETMQ)


@pytest.mark.parametrize("junk", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_binary_text_that_not_utf_8_refused(junk: bytes) -> None:
    refuse(binary(remark=junk), ROCKETMQ)
    refuse(binary(entries=entry(junk, b"")), ROCKETMQ)
    refuse(binary(entries=entry(b"a", junk)), ROCKETMQ)


def test_map_of_empty_entries_takes_linear_time() -> None:
    header = binary(entries=entry(b"", b"") * ((MEBIBYTE - 100) // 6))
    began = time.process_time()
    assert decode(header, ROCKETMQ).ext_fields == {"": ""}
    assert time.process_time() - began < 5


# --- msgpack ---


def pack(*fields: object) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def test_msgpack_header_is_an_array_of_seven_fields() -> None:
    command = RemotingCommand(10, -1, 2, {"a": "b"}, remark="why", serialize_type=MSGPACK)
    assert encode_header(command) == pack(10, 3, 407, -1, 2, "why", {"a": "b"})
    again = decode(encode_header(command), MSGPACK)
    assert (again.code, again.language, again.version, again.opaque, again.flag) == (10, 3, 407, -1, 2)
    assert (again.remark, again.ext_fields, again.serialize_type) == ("why", {"a": "b"}, MSGPACK)


@pytest.mark.parametrize(
    "header",
    [
        *(pack(), pack(1), pack(10, 3, 407, 1, 0, None), pack(10, 3, 407, 1, 0, None, {}, None)),
        *(msgpack.packb(value) for value in (None, 1, "text", b"bytes", {"code": 1}, {})),
    ],
)
def test_msgpack_that_no_array_of_seven_fields_refused(header: bytes) -> None:
    refuse(header, MSGPACK, match="not an array of seven fields")


@pytest.mark.parametrize("value", [None, "1", "x", 1.0, True, [], {}, b"1", 2**31, -(2**31) - 1, 2**64 - 1])
@pytest.mark.parametrize("index", range(5))
def test_msgpack_number_that_is_no_int32_is_refused(index: int, value: object) -> None:
    numbers: list[object] = [10, 3, 407, 1, 0]
    numbers[index] = value
    refuse(pack(*numbers, None, {}), MSGPACK, match="int32")


@pytest.mark.parametrize("remark", [1, True, b"bytes", [], {}])
def test_msgpack_remark_that_is_no_text_is_refused(remark: object) -> None:
    refuse(pack(10, 3, 407, 1, 0, remark, {}), MSGPACK, match="remark")


@pytest.mark.parametrize("fields", [None, [], "x", 1, [["a", "b"]]])
def test_msgpack_fields_that_are_no_map_are_refused(fields: object) -> None:
    refuse(pack(10, 3, 407, 1, 0, None, fields), MSGPACK, match="not a map")


@pytest.mark.parametrize(
    "fields",
    [
        *({"a": value} for value in (None, 1, 1.5, True, b"bytes", [], {}, ["x"], {"x": "y"})),
        {"a": msgpack.Timestamp(1_700_000_000, 5)},
        {"a": msgpack.ExtType(5, b"data")},
        {"a": msgpack.ExtType(127, bytes(70_000))},
        *({key: "value"} for key in (1, b"bytes", None, True, 1.5)),
    ],
)
def test_msgpack_fields_that_are_not_text_are_refused(fields: object) -> None:
    refuse(pack(10, 3, 407, 1, 0, None, fields), MSGPACK)


@pytest.mark.parametrize(
    "bomb",
    [
        *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
        *(
            b"\xc9\xff\xff\xff\xff\x05",
            b"\xdc\xff\xff",
            b"\xde\xff\xff",
            b"\xc5\xff\xff",
            b"\xda\xff\xff",
            b"\xc8\xff\xff\x05",
        ),
    ],
)
def test_msgpack_excess_length_is_rejected_before_allocation(bomb: bytes) -> None:
    header = b"\x97" + pack(10, 3, 407, 1, 0, None)[1:] + bomb
    with memory_below(64 * 1024):
        refuse(bomb, MSGPACK)
        refuse(header, MSGPACK)


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"\xc1", b"\x97", b"\x91" * MEBIBYTE, b"\x81\xa1a" * 100_000, b"\xd6\xff\0\0\0\0"),
        b"\xc7\x01\xff\x05",  # a timestamp of one byte
        b"\x97\x0a\x03\x01\x01\x00\xc0\x81\xa1a\xa1\xff",  # not UTF-8
        b"\x97\x0a\x03\x01\x01\x00\xa1\xff\x80",
        pack(10, 3, 407, 1, 0, None, {}) + b"\0",
    ],
)
def test_invalid_msgpack_is_refused(header: bytes) -> None:
    refuse(header, MSGPACK)
