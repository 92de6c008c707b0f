import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.storage.making import FaultyFileSystem
from triomq.protocol.errors import StoreError, StoreLayoutError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable, encode, encode_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


def test_table_of_rocketmq_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{\n\t"offsetTable":{\n\t\t"T@g":{0:70,1:13\n\t\t}\n\t}\n}')
    assert JsonTable(path).load() == {"offsetTable": {"T@g": {"0": 70, "1": 13}}}


def test_table_is_written_as_ascii_json(path: Path) -> None:
    table = {"b": {1: "\u00fc\U0001f600\t"}, "a": [True, None]}
    JsonTable(path).save(table)
    content = path.read_bytes()
    assert content.isascii()
    assert json.loads(content) == {"a": [True, None], "b": {"1": "\u00fc\U0001f600\t"}}
    assert encode({1: "x"}) == b'{\n  "1": "x"\n}'


@pytest.mark.parametrize("damage", [None, b"", b"\0" * 100, b" \n", b'{"n": 1', b"\xff", b"null"])
def test_unusable_table_falls_back_to_its_backup(
    path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    table = JsonTable(path)
    table.save({"n": 0})
    table.save({"n": 1})
    path.unlink() if damage is None else path.write_bytes(damage)
    assert JsonTable(path).load() == {"n": 0}
    assert f"table taken from its backup, later changes are lost path={path} reason={path} is " in caplog.text


def test_save_after_damage_keeps_good_backup(path: Path) -> None:
    table = JsonTable(path)
    table.save({"n": 0})
    table.save({"n": 1})
    path.write_bytes(b"{")
    table = JsonTable(path)
    table.load()
    table.save({"n": 2})
    assert json.loads(table.backup_path.read_bytes()) == {"n": 0}
    table.save({"n": 3})
    assert json.loads(table.backup_path.read_bytes()) == {"n": 2}


@pytest.mark.parametrize("damage", [None, b"", b"\0\0"])
def test_no_table_and_no_backup_is_fine(path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    if damage is not None:
        path.parent.mkdir()
        path.write_bytes(damage)
    assert JsonTable(path).load() is None
    assert (f"table is empty path={path}" in caplog.text) == (damage is not None)


def test_damage_without_backup_not_read_as_empty_table(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"{broken")
    with pytest.raises(StoreLayoutError, match=r"topics\.json is not JSON.*restore the file"):
        JsonTable(path).load()


def test_two_damaged_generations_are_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"")
    JsonTable(path).backup_path.write_bytes(b"{broken")
    with pytest.raises(StoreLayoutError, match=r"topics\.json\.bak is not JSON"):
        JsonTable(path).load()


def test_unreadable_table_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreLayoutError, match="cannot read"):
        JsonTable(path).load()


def test_failed_save_loses_at_most_newest_state(path: Path) -> None:
    steps = 0
    while True:
        faulty = FaultyFileSystem()
        failing = steps + 1
        faulty.fails = lambda number, name, path, failing=failing: number == failing  # type: ignore[misc]
        table: Any = JsonTable(path, FileSystem())
        table.save({"n": "old"})
        table = JsonTable(path, faulty)
        try:
            table.save({"n": "new"})
        except StoreError:
            assert JsonTable(path).load() in ({"n": "old"}, {"n": "new"})
            steps += 1
        else:
            break
    assert steps == 6
    assert JsonTable(path).load() == {"n": "new"}


@pytest.mark.parametrize("count", [0, 1, 682, 683, 684, 700])
def test_long_table_in_pieces_is_same_table(count: int) -> None:
    rows = {f"topic-{number:03}": {"perm": number, "name": "ü" * (number == 3)} for number in range(count)}
    head = {"dataVersion": {"counter": 1}}
    pieces = list(encode_rows(head, "table", [*rows, "gone"], rows.get))
    assert b"".join(pieces) == encode({**head, "table": rows})
    assert len(pieces) == 2 + -(-count // 683)


@pytest.mark.parametrize("count", [2048, 2049, 4096, 65_536])
def test_long_row_written_in_pieces_while_changes(count: int) -> None:
    """A topic may have 65,536 queues, and writing so many offsets takes 30 ms."""
    before: dict[int, int] = dict.fromkeys(range(count), 1)
    rows: dict[str, dict[int, int]] = {"T@a": {0: 1}, "T@b": dict(before), "T@c": dict(before), "T@d": {0: 1}}
    pieces = []
    for piece in encode_rows({}, "offsetTable", list(rows), rows.get):
        pieces.append(piece)
        rows["T@b"][len(pieces) + count] = 2
    written = orjson.loads(b"".join(pieces))["offsetTable"]
    assert written.keys() == rows.keys()
    assert written["T@c"] == {str(queue_id): 1 for queue_id in before}
    assert written["T@b"].items() >= written["T@c"].items()
    assert max(piece.count(b": ") for piece in pieces) <= 2048 + 4  # and the names of the rows
