"""The name server's key-value table, in memory and on disk."""

from pathlib import Path

import pytest

from triomq.broker.namesrv.kv_table import MAX_CHARACTERS, MAX_TEXTS, KvTable
from triomq.protocol.errors import RefusedError
from triomq.storage.files.json_table import JsonTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "kvConfig.json"


def opened(path: Path) -> KvTable:
    table = KvTable(JsonTable(path), on_change=lambda: None)
    table.load()
    return table


def test_only_changes_mark_the_table_dirty(path: Path) -> None:
    table = opened(path)
    table.delete("N", "none")
    assert not table.is_dirty
    table.put("N", "key", "value")
    assert table.is_dirty


def test_size_is_limited(path: Path) -> None:
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
