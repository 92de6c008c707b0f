"""The name server's key-value table, in memory and on disk."""

from pathlib import Path

import orjson
import pytest

from triomq.broker.namesrv.kv_table import MAX_CHARACTERS, MAX_TEXTS, KvTable
from triomq.protocol.errors import RefusedError, StoreLayoutError
from triomq.storage.files.json_table import JsonTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "kvConfig.json"


def opened(path: Path) -> KvTable:
    table = KvTable(JsonTable(path), on_change=lambda: None)
    table.load()
    return table


def test_values_survive_a_restart(path: Path) -> None:
    table = opened(path)
    table.put("N", "one", "1 ünd")
    table.put("N", "two", "2")
    table.put("empty", "gone", "")
    table.delete("empty", "gone")
    table.write(list(table.pieces()))
    assert orjson.loads(path.read_bytes()) == {"configTable": {"N": {"one": "1 ünd", "two": "2"}, "empty": {}}}
    again = opened(path)
    assert (again.get("N", "one"), again.namespace("empty"), again.namespace("other")) == ("1 ünd", {}, None)


def test_apaches_file_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}\n\t}\n}', encoding="ascii")
    assert opened(path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"


@pytest.mark.parametrize("content", [b"[1]", b'{"configTable":[1]}', b'{"configTable":{"N":"x"}}'])
def test_a_file_with_something_else_is_refused_by_name(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreLayoutError, match=r"kvConfig\.json"):
        opened(path)


def test_only_changes_are_saved(path: Path) -> None:
    table = opened(path)
    table.delete("N", "none")
    assert not table.is_dirty
    table.put("N", "key", "value")
    assert table.is_dirty


def test_the_table_is_bounded(path: Path) -> None:
    table = opened(path)
    table.put("N", "key", "v" * (MAX_CHARACTERS - 4))
    with pytest.raises(RefusedError, match="key-value table is full"):
        table.put("N", "key2", "")
    table.put("N", "key", "short")
    for number in range(MAX_TEXTS // 2 - 2):
        table.put("N", str(number), "")
    with pytest.raises(RefusedError, match="key-value table is full"):
        table.put("N", "one more", "")
    assert table.get("N", "one more") is None
