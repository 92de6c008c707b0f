import json
import re
import sys
from datetime import datetime

import pytest

from tests.records import make_record
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import ProduceOptions
from triomq.cli.commands.produce import read_json_line
from triomq.cli.errors import UsageError
from triomq.cli.output import (
    body_line,
    cells,
    json_bytes,
    json_line,
    local_time,
    long_line,
    progress_bar,
    terminal_line,
    write_records,
    write_table,
)
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record


def test_json_does_not_steer_a_terminal() -> None:
    value = {"a": "\x9b31m \x7f\x80\x9f \xa0 \xc2 \xdf é", "b\x85": ["\x1b"]}
    line = json_bytes(value)
    assert line.rstrip(b"\n").decode().translate({0xA0: " "}).isprintable()
    assert json.loads(line) == value


def test_a_piped_table_has_a_heading_only(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("NAME", "N", "MS"), [("a\x1b", 1, 2.345), ("b" * 200, 22, None)])
    blanks = " " * 196
    assert capsys.readouterr().out == f"NAME{blanks}   N   MS\na\\x1b{blanks[1:]}   1  2.3\n{'b' * 200}  22    -\n"
    write_table(("NAME", "N"), [])
    assert capsys.readouterr().out == "NAME  N\n"


@pytest.mark.parametrize("text", ["[red]a[/red]", "user:key:5 a:100:b"])
def test_a_terminal_shows_brackets_and_colons_unchanged(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    write_table(("NAME", "N"), [(text, 1)])
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_ids_and_times_stay_whole_on_narrow_terminals(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ("7F00000100002A9F0000000000000001", "2026-01-31T12:00:00.000+00:00", "a text of several words that may wrap")
    write_table(("MESSAGE ID", "STORED", "WHY"), [row, row])
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert [text.count(word) for word in (*row[:2], "several", "WHY")] == [2, 2, 2, 1 if columns >= 80 else 2]
    assert max(map(len, text.splitlines())) <= columns


def test_records_are_lines_of_json_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"name": "a", "owners": ["x", "y"], "seen_ms": None, "done": True}]
    write_records(("NAME", "OWNERS", "SEEN", "DONE"), records, as_json=True)
    assert json.loads(capsys.readouterr().out) == records[0]
    write_records(("NAME", "OWNERS", "SEEN", "DONE"), records, as_json=False)
    assert capsys.readouterr().out == "NAME  OWNERS  SEEN  DONE\na     x, y    -     yes\n"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1536 * 1024**2, "1.5 GiB")]
)
def test_sizes_have_the_unit_that_suits(size: int, text: str) -> None:
    assert cells({"log_bytes": size}) == [text]


def test_times_are_local_with_their_zone() -> None:
    assert local_time(None) == local_time(-1) == "-"
    assert datetime.fromisoformat(local_time(1_234)).timestamp() == 1.234


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("checking") as report:
        assert report is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("checking") as report:
        assert report is not None
        report(1, 2)
        report(2, 2)
    captured = capsys.readouterr()
    assert "checking" in captured.err
    assert captured.out == ""


def test_a_bar_leaves_stdout_to_the_block(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    with progress_bar("reading", is_writing=True) as report:
        assert report is not None
        sys.stdout.write("line\n")
    assert capsys.readouterr().out == "line\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with progress_bar("reading", is_writing=True) as report:
        assert report is None


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
    options = parse(["produce", "U", "--json-lines"])
    assert isinstance(options, ProduceOptions)
    message = read_json_line(options, json_line(stored(body)), 1)
    assert (message.topic, message.body, message.tags, message.keys) == ("U", body, "t", ["k", "l"])
    assert message.properties == {"color": "red"}


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
    options = parse(["produce", "U", "--json-lines"])
    assert isinstance(options, ProduceOptions)
    with pytest.raises(UsageError, match="body"):
        read_json_line(options, line, 1)
