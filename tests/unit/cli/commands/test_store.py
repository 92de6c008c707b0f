"""``triomq store`` as users call it."""

import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.conftest import maker  # noqa: F401  # a fixture
from tests.unit.storage.making import StoreMaker, bodies, filled, log_file, overwrite, put
from triomq.cli.run import run
from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.host import encode_host
from triomq.storage.message_store import MessageStore
from triomq.storage.tools.stopped_store import StoppedStore


@pytest.fixture
def root(maker: StoreMaker) -> Path:  # noqa: F811  # a fixture
    store = maker()
    for number in range(10):
        maker.clock.now_ms += 60_000
        properties = f"TAGS\x01A\x02KEYS\x01k{number}".encode()
        put(
            store, "T" if number % 2 else "U", number % 3, body=b"body %d" % number, properties=properties, tags_code=65
        )
    store.close()
    return store.config.root


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(["store", *words]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(capsys, *words, "--json", code=code).splitlines()]


def test_info_shows_sizes_and_queues(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root.parent / "empty" / "commitlog").mkdir(parents=True)
    (found,) = told(capsys, "info", "--store", str(root.parent / "empty"))
    assert (found["messages"], found["newest_stored_ms"], found["queues"]) == (0, -1, [])
    (found,) = told(capsys, "info", "--store", str(root))
    assert found["commit_log_file_size_bytes"] == 65536
    assert found["consume_queue_file_size_bytes"] == 1000
    assert found["messages"] == 10
    assert found["closed_properly"] is True
    assert found["newest_stored_ms"] - found["oldest_stored_ms"] == 9 * 60_000
    assert sum(queue["messages"] for queue in found["queues"] if queue["topic"] == "T") == 5
    text = said(capsys, "info", "--store", str(root))
    assert "closed properly" in text
    assert "yes" in text


@pytest.mark.parametrize("unit", [bytes(20), b"\x00\x00\x00\x7f" * 5], ids=["lost", "damaged"])
def test_info_finds_newest_message_whose_unit_was_lost(
    maker: StoreMaker,  # noqa: F811  # a fixture
    capsys: pytest.CaptureFixture[str],
    unit: bytes,
) -> None:
    store = filled(maker, 100)
    end, now_ms = store.commit_log.max_offset, maker.clock.now_ms
    store.close()
    root = store.config.root
    for topic in ("T", "U"):
        for path in (root / "consumequeue" / topic / "0").iterdir():
            overwrite(path, 0, unit * (path.stat().st_size // 20))
    (found,) = told(capsys, "info", "--store", str(root))
    assert (found["commit_log_end"], found["newest_stored_ms"]) == (end, now_ms)
    assert found["oldest_stored_ms"] == now_ms - 990
    overwrite(log_file(root, 0), 0, b"\x7f")  # the first record
    (found,) = told(capsys, "info", "--store", str(root))
    assert found["oldest_stored_ms"] == now_ms - 980


def test_check_says_sound_or_what_is_wrong(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "check", "--store", str(root))
    assert text == "10 records, 10 units in consume queues, 10 in index files: sound\n"
    (found,) = told(capsys, "check", "--store", str(root))
    names = ["sound", "records", "record_bytes", "units", "index_units", "log_end", "problems"]
    assert (list(found), found["problems"]) == (names, [])
    assert found["record_bytes"] == found["log_end"]
    overwrite(log_file(root, 0), 90, b"\xff")
    text = said(capsys, "check", "--store", str(root), code=1)
    assert "does not match its CRC" in text
    (found,) = told(capsys, "check", "--store", str(root), code=1)
    assert [problem["kind"] for problem in found["problems"]] == ["record"]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ((), range(10)),
        (("--topic", "T"), [1, 3, 5, 7, 9]),
        (("--topic", "T", "--queue", "0"), [3, 9]),
        (("--key", "k4"), [4]),
        (("--count", "2"), [0, 1]),
        (("--topic", "None"), []),
        (("--from", "2100-01-01"), []),
        (("--to", "-10m"), []),
        (("--from", "{3}", "--to", "{5}"), [3, 4]),
    ],
)
def test_dump_filters_messages(
    root: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], numbers: list[int]
) -> None:
    stored = [message["stored_ms"] for message in told(capsys, "dump", "--store", str(root))]
    times = [datetime.fromtimestamp(stored_ms / 1000, UTC).isoformat() for stored_ms in stored]
    found = told(capsys, "dump", "--store", str(root), *(word.format(*times) for word in words))
    assert [message["body"] for message in found] == [f"body {number}" for number in numbers]


def test_dump_reads_no_further_than_its_count(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    walk = StoppedStore.walk

    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for found in walk(*arguments, **options):
            seen.append(found)
            yield found

    monkeypatch.setattr(StoppedStore, "walk", counted)
    for words in ((), ("--json",)):
        said(capsys, "dump", "--store", str(root), "--key", "k2", "--count", "1", *words)
        assert len(seen) == 3
        seen.clear()
    assert len(told(capsys, "dump", "--store", str(root), "--count", "9" * 30)) == 10


def test_a_table_says_that_it_is_cut(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = said(capsys, "dump", "--store", str(root)).splitlines()
    assert lines[0].split() == ["STORED", "TOPIC", "QUEUE", "OFFSET", "POSITION", "SIZE", "TAG", "KEYS", "BODY"]
    assert len(lines) == 11
    assert lines[1].endswith("body 0")
    monkeypatch.setattr("triomq.cli.commands.store._ROWS_OF_A_TABLE", 4)
    assert said(capsys, "dump", "--store", str(root)).splitlines()[-1].startswith("only the first 4 are shown")
    assert len(said(capsys, "dump", "--store", str(root), "--count", "6").splitlines()) == 7


def test_dump_shows_bodies_as_sent(maker: StoreMaker, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    store = maker()
    compressed = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)
    put(store, body=zlib.compress(b"long " * 100), sys_flag=compressed)
    put(store, body=b"no zlib", sys_flag=compressed)
    put(store, body=b"\xff\x00", born_host=encode_host("2001:db8::1", 5000), flag=-3, reconsume_times=2)
    store.close()
    plain, damaged, binary = told(capsys, "dump", "--store", str(store.config.root))
    assert (plain["body"], plain["sys_flag"]) == ("long " * 100, 0)
    assert (damaged["body"], damaged["sys_flag"]) == ("no zlib", compressed)
    assert (binary["body_base64"], binary["born_host"]) == ("/wA=", "[2001:db8::1]:5000")
    assert (binary["store_host"], binary["flag"], binary["tries"]) == ("127.0.0.1:10911", -3, 2)
    assert "body" not in binary


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("check", "--store", "{tmp}/none"), 1, "is no store: it has no directory commitlog"),
        (("dump", "--from", "yesterday"), 2, "invalid time"),
        (("dump", "--queue", "-1"), 2, "--queue"),
    ],
)
def test_a_wrong_store_command_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, complaint: str
) -> None:
    assert run(["store", *(word.format(tmp=tmp_path) for word in words)]) == code
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert complaint in last
    assert last.startswith("triomq store")


def test_a_running_store_is_refused(maker: StoreMaker, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    store: MessageStore = filled(maker, 3)
    for words in (("check",), ("dump",), ("info",)):
        assert run(["store", *words, "--store", str(store.config.root)]) == 1
        assert "is open in this process" in capsys.readouterr().err
    assert len(bodies(store)) == 2
