"""Headers in JSON, in RocketMQ's binary format and in msgpack: accepted and refused ones."""

import struct
import time
from typing import Any

import msgpack
import pytest

from tests.commands import decode_header, encode_header, make_command
from tests.unit.protocol.memory import memory_below
from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import DECODERS, ENCODERS, FORMATS_FIELD, UNKNOWN_LANGUAGE, accept

JSON, ROCKETMQ, MSGPACK = SerializeType
MEBIBYTE = 1024**2


def decode(header: bytes | str, serialize_type: int = JSON) -> RemotingCommand:
    return decode_header(header.encode() if isinstance(header, str) else header, serialize_type)


def ext(value: str) -> dict[str, str]:
    """Decode a JSON header whose extFields are ``value``."""
    return decode('{"code":1,"extFields":' + value + "}").ext_fields


def refuse(header: bytes | str, serialize_type: int = JSON, match: str = ".") -> None:
    with pytest.raises(ProtocolError, match=match):
        decode(header, serialize_type)


# --- JSON, reading ---


def test_json_needs_the_code_alone() -> None:
    """wire.md 2.2: a missing field is 0 or absent, and the language is Java."""
    command = decode('{"code":105}')
    assert (command.code, command.opaque, command.flag, command.version) == (105, 0, 0, 0)
    assert (command.language, command.remark, command.ext_fields) == (LanguageCode.JAVA, None, {})
    assert command.serialize_type == JSON


@pytest.mark.parametrize("field", ["opaque", "flag", "version", "language", "remark", "extFields"])
def test_json_null_is_as_good_as_absent(field: str) -> None:
    command = decode(f'{{"code":1,"{field}":null}}')
    assert (command.opaque, command.flag, command.version) == (0, 0, 0)
    assert (command.remark, command.ext_fields) == (None, {})


@pytest.mark.parametrize("text", ["7", "+7", "007"])
def test_json_numbers_may_text_as_java_reads(text: str) -> None:
    command = decode(f'{{"code":"{text}","opaque":"{text}","flag":"{text}","version":"{text}"}}')
    assert (command.code, command.opaque, command.flag, command.version) == (7, 7, 7, 7)


@pytest.mark.parametrize(
    "value",
    [
        *('"1_0"', '" 1"', '"1 "', '"\\t1"', '""', '"-"', '"+"', '"+-1"', '"1.0"', '"0x1"', '"1e3"', '"one"'),
        '"\\u00b2"',
        *("1.0", "1e3", "true", "false", "[]", "[1]", "{}", '{"a":1}'),
        *("2147483648", "-2147483649", "18446744073709551615", "99999999999999999999", '"2147483648"', '"-2147483649"'),
        '"' + "9" * 5000 + '"',
        '"' + "0" * 5000 + '"',
    ],
)
@pytest.mark.parametrize("field", ["code", "opaque", "flag", "version"])
def test_json_non_int32_number_error_names_the_member(field: str, value: str) -> None:
    other = "" if field == "code" else '"code":1,'
    refuse(f'{{{other}"{field}":{value}}}', match=f"'{field}'")


@pytest.mark.parametrize(
    ("value", "language"),
    [
        *((f'"{code.name}"', code) for code in LanguageCode),
        ("9", LanguageCode.GO),
        ("13", LanguageCode.NODE_JS),
        *(
            (wrong, UNKNOWN_LANGUAGE)
            for wrong in ('"COBOL"', '"java"', '""', "14", "-1", "true", "9.0", "null", "[]", "{}")
        ),
    ],
)
def test_json_language_is_name_or_ordinal_or_unknown(value: str, language: int) -> None:
    """wire.md 2.2: an unknown language name is accepted."""
    assert decode(f'{{"code":1,"language":{value}}}').language == language


@pytest.mark.parametrize(
    ("value", "text"), [('"why"', "why"), ('""', ""), ("5", "5"), ("true", "true"), ('{"a":[1]}', '{"a":[1]}')]
)
def test_json_remark_is_text_whatever_it_was(value: str, text: str) -> None:
    assert decode(f'{{"code":1,"remark":{value}}}').remark == text


def test_json_ext_values_become_text_and_null_dropped() -> None:
    found = ext('{"a":1,"b":true,"c":false,"d":null,"e":1.5,"f":{"x":1},"g":[1,"2"],"h":-9223372036854775808,"i":""}')
    texts = {"a": "1", "b": "true", "c": "false", "e": "1.5", "f": '{"x":1}', "g": '[1,"2"]'}
    assert found == {**texts, "h": "-9223372036854775808", "i": ""}


JSON_REFUSED = {
    "'code'": ("{}", '{"opaque":1}', '{"code":null}', '{"Code":1}'),
    "extFields is not an object": [
        f'{{"code":1,"extFields":{value}}}' for value in ("[]", '"x"', "5", "true", '[["a","b"]]')
    ],
    "not an object": ("[]", "null", '"code"', "1", "true", '[{"code":1}]'),
    "header cannot be read": (
        *("", " ", "{", '{"code":1', '{"code":1}}', '{"code":1}x', "{'code':1}", "{code:1}", '{"code":1,}'),
        *('{"code":NaN}', '{"code":Infinity}', '{"code":1e999}', '{"code":+1}', '{"code":}', '{"code" 1}', "\ufeff{}"),
        *('{"code":01}', '{"code":' + "9" * 100_000 + "}", '{"code":1,"remark":"\n"}', '{"code":1,"remark":"\\x"}'),
        # unpaired surrogates, which could not be written again
        *('{"code":1,"remark":"\\ud800"}', '{"code":1,"remark":"\\udc00 \\ud800"}'),
        '{"code":1,"extFields":{"\\udfff":"x"}}',
    ),
}


@pytest.mark.parametrize(("reason", "header"), [(reason, one) for reason, each in JSON_REFUSED.items() for one in each])
def test_json_that_is_no_header_is_refused(reason: str, header: str) -> None:
    refuse(header, match=reason)


def test_json_of_two_equal_names_last_one_wins() -> None:
    command = decode('{"code":1,"code":2,"extFields":{"a":"1","a":"2"}}')
    assert (command.code, command.ext_fields) == (2, {"a": "2"})


@pytest.mark.parametrize(
    "header",
    [
        "[" * MEBIBYTE,
        '{"a":' * (MEBIBYTE // 5),
        '{"code":1,"extFields":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"code":1,"extFields":{"a":' + "[" * 600 + "]" * 600 + "}}",
    ],
)
def test_deeply_nested_json_is_refused_at_once(header: str) -> None:
    began = time.process_time()
    refuse(header)
    assert time.process_time() - began < 2


# --- JSON, writing ---


def test_json_writer_omits_absent_fields() -> None:
    assert encode_header(RemotingCommand(34, 0)) == (
        b'{"code":34,"extFields":{},"flag":0,"language":"PYTHON","opaque":0,"serializeTypeCurrentRPC":"JSON","version":407}'
    )


@pytest.mark.parametrize("language", [UNKNOWN_LANGUAGE, 14, 255])
@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_an_unknown_language_is_written_as_other(language: int, serialize_type: int) -> None:
    header = encode_header(make_command(1, language=language, serialize_type=serialize_type))
    assert decode(header, serialize_type).language == LanguageCode.OTHER


# --- what no writer may write ---


NOT_TEXT: list[dict[Any, Any]] = [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}]
SURROGATES: list[dict[str, Any]] = [{"remark": text} for text in ("\ud800", "x\udfff")]
SURROGATES += [{"ext_fields": fields} for fields in ({"a": "\udc80"}, {"\ud83d": "a"})]
UNWRITABLE: list[tuple[str, int, int, dict[str, Any]]] = [
    *(("code 10 cannot be written", 10, kind, fields) for kind in SerializeType for fields in SURROGATES),
    *(
        (f"opaque {each} of", 34, kind, {"opaque": each})
        for kind in SerializeType
        for each in (-(2**31) - 1, 2**31, 2**63, 2**64)
    ),
    *((f"code {code} cannot", code, ROCKETMQ, {}) for code in (32_768, 65_535, 65_536 + 10, 200_050, -32_769)),
    *(("code 1 cannot", 1, ROCKETMQ, {"ext_fields": fields}) for fields in NOT_TEXT),
    *(("unknown header serialisation", 34, kind, {}) for kind in (-1, 2, 76, 256)),
]


@pytest.mark.parametrize(("reason", "code", "serialize_type", "fields"), UNWRITABLE)
def test_what_no_header_can_hold_is_not_written(
    reason: str, code: int, serialize_type: int, fields: dict[str, Any]
) -> None:
    with pytest.raises(ProtocolError, match=reason):
        RemotingCommand(code, serialize_type=serialize_type, **fields).encode()


def test_the_binary_writer_refuses_names_above_32767_bytes() -> None:
    name = "\u4e2d" * 10_922 + "x"
    assert len(name.encode()) == 32_767
    header = encode_header(RemotingCommand(1, ext_fields={name: ""}, serialize_type=ROCKETMQ))
    assert decode(header, ROCKETMQ).ext_fields == {name: ""}
    with pytest.raises(ProtocolError):
        encode_header(RemotingCommand(1, ext_fields={name + "y": ""}, serialize_type=ROCKETMQ))


# --- all serialisations ---


def test_each_serialize_type_has_a_format() -> None:
    assert set(ENCODERS) == set(DECODERS) == set(SerializeType)


@pytest.mark.parametrize(
    ("offered", "accepted"),
    [
        ({}, {}),
        ({FORMATS_FIELD: ""}, {}),
        ({FORMATS_FIELD: "cbor"}, {}),
        ({FORMATS_FIELD: "cbor,msgpack"}, {FORMATS_FIELD: "msgpack"}),
    ],
)
def test_only_formats_that_we_read_are_accepted(offered: dict[str, str], accepted: dict[str, str]) -> None:
    assert accept(offered) == accepted


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


@pytest.mark.parametrize("value", [None, "1", "x", 1.0, True, [], {}, b"1", 2**31, -(2**31) - 1, 2**64 - 1])
@pytest.mark.parametrize("index", range(5))
def test_msgpack_number_that_is_no_int32_is_refused(index: int, value: object) -> None:
    numbers: list[object] = [10, 3, 407, 1, 0]
    numbers[index] = value
    refuse(pack(*numbers, None, {}), MSGPACK, match="int32")


MSGPACK_REFUSED: dict[str, list[bytes]] = {
    "not an array of seven fields": [
        *(pack(), pack(1), pack(10, 3, 407, 1, 0, None), pack(10, 3, 407, 1, 0, None, {}, None)),
        *(msgpack.packb(value) for value in (None, 1, "text", b"bytes", {"code": 1}, {})),
        b"\xd6\xff\0\0\0\0",  # a timestamp
    ],
    "not a map": [pack(10, 3, 407, 1, 0, None, fields) for fields in (None, [], "x", 1, [["a", "b"]])],
    "cannot be read": [
        *(
            pack(10, 3, 407, 1, 0, None, {"a": value})
            for value in (None, 1, 1.5, True, b"b", [], {}, ["x"], {"x": "y"})
        ),
        pack(10, 3, 407, 1, 0, None, {"a": msgpack.Timestamp(1_700_000_000, 5)}),
        *(pack(10, 3, 407, 1, 0, None, {"a": msgpack.ExtType(5, bytes(size))}) for size in (4, 70_000)),
        *(pack(10, 3, 407, 1, 0, None, {key: "value"}) for key in (1, b"bytes", None, True, 1.5)),
        *(b"", b"\xc1", b"\x97", b"\x91" * MEBIBYTE, b"\x81\xa1a" * 100_000),
        b"\xc7\x01\xff\x05",  # a timestamp of one byte
        b"\x97\x0a\x03\x01\x01\x00\xc0\x81\xa1a\xa1\xff",  # not UTF-8
        b"\x97\x0a\x03\x01\x01\x00\xa1\xff\x80",
        pack(10, 3, 407, 1, 0, None, {}) + b"\0",
    ],
}


@pytest.mark.parametrize(
    ("reason", "header"), [(reason, one) for reason, each in MSGPACK_REFUSED.items() for one in each]
)
def test_msgpack_that_is_no_header_is_refused(reason: str, header: bytes) -> None:
    refuse(header, MSGPACK, match=reason)


@pytest.mark.parametrize(
    "bomb",
    [
        *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
        *(b"\xc9\xff\xff\xff\xff\x05", b"\xdc\xff\xff", b"\xde\xff\xff", b"\xc5\xff\xff", b"\xda\xff\xff"),
        b"\xc8\xff\xff\x05",
    ],
)
def test_msgpack_excess_length_is_rejected_before_allocation(bomb: bytes) -> None:
    header = b"\x97" + pack(10, 3, 407, 1, 0, None)[1:] + bomb
    with memory_below(64 * 1024):
        refuse(bomb, MSGPACK)
        refuse(header, MSGPACK)
