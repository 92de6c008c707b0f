import json

import pytest

from tests.records import make_record
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import ProduceOptions
from triomq.cli.errors import UsageError
from triomq.cli.output import body_line, choose_formatter, json_line, long_line, terminal_line
from triomq.cli.sources import read_json_line
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record

PROPERTIES = {"TAGS": "t", "KEYS": "k l", "UNIQ_KEY": "0123", "color": "red", "WAIT": "true"}


def stored(body: bytes, sys_flag: int = 0) -> MessageExt:
    place = {"queue_id": 3, "queue_offset": 17, "physical_offset": 4711}
    times = {"born_timestamp": 1_000, "store_timestamp": 2_345}
    properties = encode_properties(PROPERTIES)
    message = decode_record(make_record(**place, **times, sys_flag=sys_flag, body=body, properties=properties))
    message.broker_name = "broker-a"
    return message


def test_body_is_raw_in_pipes_escaped_on_terminals() -> None:
    message = stored(b"\x1b[2J\xff")
    assert body_line(message) == b"\x1b[2J\xff\n"
    assert terminal_line(message) == "\\x1b[2J\ufffd\n".encode()


def test_long_format_shows_store_time_and_place() -> None:
    assert long_line(stored(b"a\nb")) == b"1970-01-01T00:00:02.345Z broker-a:3@17 tag=t keys=k,l a\\nb\n"


def test_json_has_everything() -> None:
    assert json.loads(json_line(stored(b"x"))) == {
        "topic": "T",
        "broker": "broker-a",
        "queue_id": 3,
        "queue_offset": 17,
        "message_id": "0123",
        "offset_message_id": "7F00000100002A9F0000000000001267",
        "tags": "t",
        "keys": ["k", "l"],
        "properties": {"color": "red"},
        "born_ms": 1000,
        "stored_ms": 2345,
        "tries": 0,
        "body": "x",
    }


@pytest.mark.parametrize("body", [b"text", b"\xff\x00", b"line\nbreak"])
def test_produce_reads_the_json_of_consume(body: bytes) -> None:
    options = parse(["produce", "U", "--json-lines"]).options
    assert isinstance(options, ProduceOptions)
    message = read_json_line(options, json_line(stored(body)), 1)
    assert (message.topic, message.body, message.tags, message.keys) == ("U", body, "t", ["k", "l"])
    assert message.properties == {"color": "red"}


def test_format_follows_options_then_the_output() -> None:
    assert choose_formatter(as_json=True, as_long=True, is_terminal=True) is json_line
    assert choose_formatter(as_json=False, as_long=True, is_terminal=False) is long_line
    assert choose_formatter(as_json=False, as_long=False, is_terminal=True) is terminal_line
    assert choose_formatter(as_json=False, as_long=False, is_terminal=False) is body_line


@pytest.mark.parametrize(("sys_flag", "reason"), [(1, "zlib"), (0x401, "0x400")])
def test_undecompressable_body_is_shown_as_stored(sys_flag: int, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    message = stored(b"no zlib", sys_flag)
    assert body_line(message) == terminal_line(message) == b"no zlib\n"
    assert long_line(message).endswith(b" no zlib\n")
    assert caplog.text.count("body shown as it is stored message=T:broker-a:3@17") == 3
    line = json_line(message)
    found = json.loads(line)
    assert "body" not in found
    assert found["stored_body_base64"] == "bm8gemxpYg=="
    assert reason in found["body_error"]
    options = parse(["produce", "U", "--json-lines"]).options
    assert isinstance(options, ProduceOptions)
    with pytest.raises(UsageError, match="body"):
        read_json_line(options, line, 1)
