"""The table of what everybody holds: what is known after a stop, and after a kill."""

from pathlib import Path

import pytest

from triomq.broker.quotas.holdings import Holdings
from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.json_table import JsonTable


def open_table(path: Path) -> Holdings:
    holdings = Holdings(JsonTable(path))
    holdings.load()
    return holdings


def test_what_was_saved_is_known_after_a_kill_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config" / "quotas.json"
    holdings = open_table(path)
    for start in (0, 1000, 2000):
        holdings.stored(start, 300, ("topic T", "account a"))
    holdings.created_by("account a", "groups").update(("G", "H"))
    holdings.write(holdings.encode())
    holdings.stored(2000, 50, ("topic T",))  # and the broker is killed
    holdings = open_table(path)
    assert dict(holdings.held_bytes) == {"topic T": 900, "account a": 900}
    assert holdings.created_by("account a", "groups") == {"G", "H"}
    assert holdings.created_by("account a", "topics") == set()
    assert JsonTable(path).load() == holdings.to_json() | {
        "files": {str(n): {"account a": 300, "topic T": 300} for n in (0, 1000, 2000)}
    }
    holdings.restrict(1000, 1999)  # retention deleted the first file, recovery the last one
    assert dict(holdings.held_bytes) == {"topic T": 300, "account a": 300}
    holdings.restrict(2000, 3000)
    assert not holdings.held_bytes


@pytest.mark.parametrize("text", ["[1]", '{"files": 5}', '{"files": {"a": {}}}', '{"created": {"topics": [1]}}'])
def test_another_content_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "quotas.json").write_text(text)
    with pytest.raises(StoreLayoutError, match=r"quotas\.json does not hold quotas"):
        open_table(tmp_path / "quotas.json")
