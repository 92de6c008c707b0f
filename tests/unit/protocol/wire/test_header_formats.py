"""JSON headers, which nearly all peers write, and rules for all serialisations."""

import time

import orjson
import pytest

from tests.commands import decode_header, encode_header, make_command
from triomq.protocol.codes import LanguageCode, SerializeType
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import DECODERS, ENCODERS, FORMATS_FIELD, UNKNOWN_LANGUAGE, accept

JSON, ROCKETMQ = SerializeType.JSON, SerializeType.ROCKETMQ
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


@pytest.mark.parametrize("header", ["{}", '{"opaque":1}', '{"code":null}', '{"Code":1}'])
def test_json_without_a_code_is_refused(header: str) -> None:
    refuse(header, match="'code'")


@pytest.mark.parametrize("text", ["7", "+7", "007"])
def test_json_numbers_may_text_as_java_reads(text: str) -> None:
    command = decode(f'{{"code":"{text}","opaque":"{text}","flag":"{text}","version":"{text}"}}')
    assert (command.code, command.opaque, command.flag, command.version) == (7, 7, 7, 7)


@pytest.mark.parametrize(
    "value",
    [
        *(
            '"1_0"',
            '" 1"',
            '"1 "',
            '"\\t1"',
            '""',
            '"-"',
            '"+"',
            '"+-1"',
            '"1.0"',
            '"0x1"',
            '"1e3"',
            '"one"',
            '"\\u00b2"',
        ),
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


@pytest.mark.parametrize("field", ["code", "opaque", "flag", "version"])
@pytest.mark.parametrize("value", [-(2**31), -1, 0, 2**31 - 1])
def test_json_number_may_be_any_int32(field: str, value: int) -> None:
    header = {"code": 1, "opaque": -2, "flag": 1, "version": 407, field: value}
    command = decode(orjson.dumps(header))
    assert getattr(command, field) == value
    assert [getattr(command, name) for name in header] == list(header.values())


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
    assert ext(
        '{"a":1,"b":true,"c":false,"d":null,"e":1.5,"f":{"x":1},"g":[1,"2"],"h":-9223372036854775808,"i":""}'
    ) == {
        "a": "1",
        "b": "true",
        "c": "false",
        "e": "1.5",
        "f": '{"x":1}',
        "g": '[1,"2"]',
        "h": "-9223372036854775808",
        "i": "",
    }


@pytest.mark.parametrize("value", ["[]", '"x"', "5", "true", '[["a","b"]]'])
def test_json_ext_fields_that_no_object_refused(value: str) -> None:
    refuse(f'{{"code":1,"extFields":{value}}}', match="extFields is not an object")


@pytest.mark.parametrize("value", ["[]", "null", '"code"', "1", "true", '[{"code":1}]'])
def test_json_that_is_no_object_is_refused(value: str) -> None:
    refuse(value, match="not an object")


@pytest.mark.parametrize(
    "header",
    [
        *(
            "",
            " ",
            "{",
            '{"code":1',
            '{"code":1}}',
            '{"code":1}x',
            "{'code':1}",
            "{code:1}",
            '{"code":1,}',
            '{"code":01}',
        ),
        *('{"code":NaN}', '{"code":Infinity}', '{"code":1e999}', '{"code":+1}', '{"code":}', '{"code" 1}', "\ufeff{}"),
        '{"code":' + "9" * 100_000 + "}",
        '{"code":1,"remark":"\n"}',
        '{"code":1,"remark":"\\x"}',
        '{"code":1,"remark":"\\ud800"}',
        '{"code":1,"remark":"\\udc00 \\ud800"}',
        '{"code":1,"extFields":{"\\udfff":"x"}}',
    ],
)
def test_invalid_json_is_refused(header: str) -> None:
    """Unpaired surrogates too: they could not be written again."""
    refuse(header, match="header cannot be read")


@pytest.mark.parametrize("junk", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe4\xb8"])
def test_json_that_is_not_utf_8_is_refused(junk: bytes) -> None:
    refuse(b'{"code":1,"remark":"' + junk + b'"}')


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


def test_our_json_writes_codes_above_int16() -> None:
    """wire.md 2.3: the 5.x family 2000xx works with JSON headers only."""
    assert decode(encode_header(RemotingCommand(200_050))).code == 200_050


@pytest.mark.parametrize("language", [UNKNOWN_LANGUAGE, 14, 255])
@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_an_unknown_language_is_written_as_other(language: int, serialize_type: int) -> None:
    header = encode_header(make_command(1, language=language, serialize_type=serialize_type))
    assert decode(header, serialize_type).language == LanguageCode.OTHER


# --- what no writer may write ---


@pytest.mark.parametrize("serialize_type", list(SerializeType))
@pytest.mark.parametrize(
    ("remark", "fields"),
    [("\ud800", {}), ("x\udfff", {}), (None, {"a": "\udc80"}), (None, {"\ud83d": "a"})],
)
def test_an_unpaired_surrogate_is_refused_by_the_writer(
    serialize_type: int, remark: str | None, fields: dict[str, str]
) -> None:
    with pytest.raises(ProtocolError, match="code 10 cannot be written"):
        encode_header(RemotingCommand(10, remark=remark, ext_fields=fields, serialize_type=serialize_type))


@pytest.mark.parametrize("code", [32_768, 65_535, 65_536 + 10, 200_050, -32_769])
def test_binary_writer_rejects_codes_beyond_16_bits(code: int) -> None:
    with pytest.raises(ProtocolError, match=f"code {code} cannot be written"):
        encode_header(RemotingCommand(code, serialize_type=ROCKETMQ))


@pytest.mark.parametrize("version", [32_768, -32_769])
def test_the_binary_writer_refuses_versions_above_int16(version: int) -> None:
    with pytest.raises(ProtocolError):
        encode_header(make_command(1, version=version, serialize_type=ROCKETMQ))


def test_the_binary_writer_refuses_names_above_32767_bytes() -> None:
    name = "\u4e2d" * 10_922 + "x"
    assert len(name.encode()) == 32_767
    header = encode_header(RemotingCommand(1, ext_fields={name: ""}, serialize_type=ROCKETMQ))
    assert decode(header, ROCKETMQ).ext_fields == {name: ""}
    with pytest.raises(ProtocolError):
        encode_header(RemotingCommand(1, ext_fields={name + "y": ""}, serialize_type=ROCKETMQ))


@pytest.mark.parametrize("fields", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}])
def test_binary_writer_refuses_fields_that_are_not_text(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        encode_header(RemotingCommand(1, ext_fields=fields, serialize_type=ROCKETMQ))


# --- all serialisations ---


@pytest.mark.parametrize("serialize_type", [2, 76, 78, 255])
def test_an_unknown_serialisation_is_refused_by_name(serialize_type: int) -> None:
    refuse(b"{}", serialize_type, match=f"unknown header serialisation {serialize_type}")


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
