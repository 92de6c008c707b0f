"""``triomq store`` as users call it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.unit.storage.conftest import maker, unpack  # noqa: F401  # fixtures
from tests.unit.storage.making import StoreMaker, bodies, filled, log_file, overwrite, put, queue_file
from triomq.cli.run import run
from triomq.storage.commit_log.log_walk import walk
from triomq.storage.message_store import MessageStore

Unpack = Callable[[str], Path]


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


def test_info_tells_sizes_and_queues(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_info_of_a_store_without_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "commitlog").mkdir()
    (found,) = told(capsys, "info", "--store", str(tmp_path))
    assert (found["messages"], found["newest_stored_ms"], found["queues"]) == (0, -1, [])
    assert "newest stored            -" in said(capsys, "info", "--store", str(tmp_path))


def test_check_says_sound_or_what_is_wrong(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "check", "--store", str(root))
    assert text == "10 records, 10 units in consume queues, 10 in index files: sound\n"
    assert told(capsys, "check", "--store", str(root))[0]["problems"] == []
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
    ],
)
def test_dump_gives_what_was_asked_for(
    root: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], numbers: list[int]
) -> None:
    found = told(capsys, "dump", "--store", str(root), *words)
    assert [message["body"] for message in found] == [f"body {number}" for number in numbers]


def test_dump_by_time(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = told(capsys, "dump", "--store", str(root))[3]["stored_ms"]
    times = [datetime.fromtimestamp((begin + minutes * 60_000) / 1000, UTC).isoformat() for minutes in (0, 2)]
    found = told(capsys, "dump", "--store", str(root), "--from", times[0], "--to", times[1])
    assert [message["body"] for message in found] == ["body 3", "body 4"]


def test_dump_ends_with_the_last_message_that_was_asked_for(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for found in walk(*arguments, **options):
            seen.append(found)
            yield found

    monkeypatch.setattr("triomq.cli.commands.store.walk", counted)
    for words in ((), ("--json",)):
        said(capsys, "dump", "--store", str(root), "--key", "k2", "--count", "1", *words)
        assert len(seen) == 3
        seen.clear()
    assert len(told(capsys, "dump", "--store", str(root), "--count", "9" * 30)) == 10


def test_dump_shows_times_that_no_calendar_has(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overwrite(log_file(root, 0), 56, b"\x7f")  # of the store time of the first message
    assert said(capsys, "dump", "--store", str(root)).splitlines()[1].split()[1] == "ms"
    assert said(capsys, "info", "--store", str(root))


def test_dump_as_a_table_is_for_people(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "dump", "--store", str(root)).splitlines()
    assert lines[0].split() == ["STORED", "TOPIC", "QUEUE", "OFFSET", "POSITION", "SIZE", "TAG", "KEYS", "BODY"]
    assert len(lines) == 11
    assert lines[1].endswith("body 0")


def test_a_table_says_that_it_is_cut(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triomq.cli.commands.store._ROWS_OF_A_TABLE", 4)
    assert said(capsys, "dump", "--store", str(root)).splitlines()[-1].startswith("only the first 4 are shown")
    assert len(said(capsys, "dump", "--store", str(root), "--count", "6").splitlines()) == 7


def test_repair_tells_and_only_when_asked_does(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "repair", "--store", str(root)) == "nothing to repair\n"
    for path in (root / "consumequeue/T/0").iterdir():
        path.unlink()
    text = said(capsys, "repair", "--store", str(root))
    assert "consume queue T:0: would be deleted and rebuilt" in text
    assert "nothing was changed" in text
    assert not queue_file(root, "T", 0).exists()
    (found,) = told(capsys, "repair", "--apply", "--store", str(root))
    assert (found["applied"], found["queues"], found["units_built"]) == (True, ["T:0"], 2)
    assert said(capsys, "check", "--store", str(root)).endswith("sound\n")


def test_repair_of_apaches_store_after_a_power_loss(unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = unpack("store-powerloss")
    text = said(capsys, "repair", "--apply", "--store", str(root))
    assert text.startswith("commit log: cut at 264202, 100 bytes after it cleared\n")
    assert "would" not in text
    offsets = root / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"FixtureTopic@G":{0:100000}}}')
    overwrite(log_file(root, 196608), 100, b"\xff\xff")
    lines = said(capsys, "repair", "--store", str(root)).splitlines()
    assert any(line.startswith("offset of group G in FixtureTopic:0: would be set to") for line in lines)
    assert any("are lost" in line for line in lines)
    assert "commit log: 1 damaged parts would be replaced by empty records, and a copy kept in quarantine" in lines
    said(capsys, "repair", "--apply", "--store", str(root))
    assert said(capsys, "check", "--store", str(root)).endswith("sound\n")


@pytest.mark.parametrize("name", ["t.jsonl", "t.msgpack", "t.mp"])
def test_what_is_exported_can_be_imported(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file, other = str(tmp_path / name), tmp_path / "other"
    assert told(capsys, "export", "T", file, "--store", str(root)) == [{"file": file, "exported": 5}]
    assert said(capsys, "import", file, "--store", str(other)) == "5 messages imported\n"
    assert told(capsys, "import", file, "--store", str(other)) == [{"file": file, "imported": 5}]
    found = told(capsys, "dump", "--store", str(other))
    assert [message["body"] for message in found] == [f"body {number}" for number in (1, 3, 5, 7, 9)] * 2
    assert said(capsys, "check", "--store", str(other)).startswith("10 records, 10 units")


@pytest.mark.parametrize("file", ["topic.jsonl", "topic.msgpack"])
@pytest.mark.parametrize("archive", ["store-normal", "store-crash"])
def test_export_of_apache_store_is_unchanged_by_import(
    unpack: Unpack,  # noqa: F811  # a fixture
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    archive: str,
    file: str,
) -> None:
    apaches, path, other = str(unpack(archive)), str(tmp_path / file), str(tmp_path / "other")
    place = {"physical_offset", "offset_message_id", "stored_ms", "size_bytes"}  # properties are encoded anew
    moved = []
    for topic in ("FixtureTopic", "%RETRY%fixture_group", "%DLQ%fixture_group"):
        wanted = told(capsys, "dump", "--topic", topic, "--store", apaches)
        assert told(capsys, "export", topic, path, "--store", apaches) == [{"file": path, "exported": len(wanted)}]
        assert told(capsys, "import", path, "--store", other) == [{"file": path, "imported": len(wanted)}]
        found = told(capsys, "dump", "--topic", topic, "--store", other)
        moved += wanted
        assert [{name: message[name] for name in message.keys() - place} for message in found] == [
            {name: message[name] for name in message.keys() - place} for message in wanted
        ]
    assert len(moved) > 100
    assert said(capsys, "check", "--store", other).startswith(f"{len(moved)} records, {len(moved)} units")


@pytest.mark.parametrize("form", ["jsonl", "msgpack"])
@pytest.mark.parametrize("has_bar", [True, False])
def test_an_import_may_come_from_a_pipe(
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    has_bar: bool,
) -> None:
    monkeypatch.setattr("triomq.cli.commands.store._PROGRESS_STEP", 1)
    if has_bar:
        monkeypatch.setattr("triomq.cli.commands.store.progress_bar", lambda _: nullcontext(lambda _done, _total: None))
    file = tmp_path / "file"
    said(capsys, "export", "T", str(file), "--format", form, "--store", str(root))
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "wb") as pipe:
        pipe.write(file.read_bytes())
        pipe.close()
        words = ("import", f"/dev/fd/{reader}", "--format", form, "--store", str(tmp_path / "other"))
        assert said(capsys, *words) == "5 messages imported\n"


def test_an_export_that_fails_leaves_the_file_as_it_was(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "exports"
    directory.mkdir()
    file = directory / "file"
    file.write_text("before")

    def interrupted(*_arguments: Any, **_options: Any) -> NoReturn:
        raise KeyboardInterrupt

    said(capsys, "export", "None", str(file), "--store", str(root), code=2)
    with monkeypatch.context() as patched:
        patched.setattr("triomq.cli.commands.store.walk", interrupted)
        said(capsys, "export", "T", str(file), "--store", str(root), code=130)
    assert file.read_text() == "before"
    assert list(directory.iterdir()) == [file]
    link = directory / "link"
    link.symlink_to(file)
    said(capsys, "export", "T", str(link), "--store", str(root))
    assert link.is_symlink()
    assert len(file.read_text().splitlines()) == 5


def test_an_export_is_on_the_disk_before_it_takes_its_name(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    synced: list[tuple[str, int]] = []

    def fsync(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").resolve()
        if path.suffix == ".tmp":
            synced.append((file.read_text(), len(path.read_text().splitlines())))

    monkeypatch.setattr(os, "fsync", fsync)
    said(capsys, "export", "T", str(file), "--store", str(root))
    assert synced == [("before", 5)]


@pytest.mark.parametrize("file", ["/dev/full", "/dev/null/file", "/"])
def test_an_export_that_cannot_be_written_names_the_file(
    root: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    assert run(["store", "export", "T", file, "--store", str(root)]) == 1
    assert capsys.readouterr().err.startswith(f"triomq store export: cannot write {file}: ")


def test_an_import_keeps_the_sizes_of_the_store(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "file")
    said(capsys, "export", "T", file, "--format", "msgpack", "--store", str(root))
    (index,) = (root / "index").iterdir()
    before = index.stat()
    said(capsys, "import", file, "--format", "msgpack", "--store", str(root))
    assert log_file(root, 0).stat().st_size == 65536
    after = index.stat()
    assert (after.st_size, after.st_ino) == (before.st_size, before.st_ino)
    assert said(capsys, "check", "--store", str(root)).startswith("15 records, 15 units in consume queues, 15 in index")


@pytest.mark.parametrize("form", ["jsonl", "msgpack"])
def test_import_accepts_messages_longer_than_default_limit(
    maker: StoreMaker,  # noqa: F811  # a fixture
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    longest = 16 * 1024**2 - 128 * 1024
    sizes: dict[str, Any] = {"commit_log_file_size_bytes": 64 * 1024**2, "max_message_size_bytes": longest + 1}
    store = maker(**sizes)
    put(store, body=bytes(longest))
    store.close()
    file, target = str(tmp_path / "file"), tmp_path / "other"
    said(capsys, "export", "T", file, "--format", form, "--store", str(store.config.root))
    other = maker(target, **sizes)
    put(other)
    other.close()
    said(capsys, "import", file, "--format", form, "--store", str(target))
    again = maker(target, **sizes)
    assert bodies(again) == [b"body", bytes(longest)]
    put(again, body=bytes(longest + 1))
    again.close()
    said(capsys, "export", "T", file, "--format", form, "--store", str(target))
    assert run(["store", "import", file, "--format", form, "--store", str(target)]) == 2
    assert f"at most {longest}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("check", "--store", "{tmp}/none"), 1, "is no store: it has no directory commitlog"),
        (("export", "None", "{tmp}/file", "--store", "{root}"), 2, "no message of topic 'None'"),
        (("import", "{tmp}/none", "--store", "{root}"), 1, "No such file"),
        (("import", "{tmp}/bad", "--store", "{root}"), 2, "line 1 is not JSON"),
        (("dump", "--from", "yesterday"), 2, "invalid time"),
        (("dump", "--queue", "-1"), 2, "--queue"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, complaint: str
) -> None:
    (tmp_path / "bad").write_text("no json\n")
    assert run(["store", *(word.format(tmp=tmp_path, root=root) for word in words)]) == code
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert complaint in last
    assert last.startswith("triomq store")


def test_a_running_store_is_refused(maker: StoreMaker, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    store: MessageStore = filled(maker, 3)
    for words in (("check",), ("repair", "--apply"), ("dump",), ("info",)):
        assert run(["store", *words, "--store", str(store.config.root)]) == 1
        assert "is open in this process" in capsys.readouterr().err
    assert len(bodies(store)) == 2


def test_without_a_terminal_there_is_no_bar(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "check", "--store", str(root))
    assert capsys.readouterr().err == ""
