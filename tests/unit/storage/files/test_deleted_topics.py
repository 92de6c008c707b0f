from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem
from triomq.protocol.errors import StoreError, StoreLayoutError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import DeletedTopics


def deleted(root: Path, file_system: FileSystem | None = None) -> DeletedTopics:
    topics = DeletedTopics(root / "config", file_system or FileSystem())
    topics.load()
    return topics


def test_a_deletion_is_remembered_over_a_restart(tmp_path: Path) -> None:
    deleted(tmp_path).add("T", 500)
    topics = deleted(tmp_path)
    assert topics.end_of("T") == 500
    assert topics.end_of("U") == 0
    topics.add("T", 900)
    assert deleted(tmp_path).end_of("T") == 900


def test_deletion_that_cannot_be_written_has_not_happened(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    topics = deleted(tmp_path, faulty)
    faulty.fails = lambda number, name, path: name == "write_file"
    with pytest.raises(StoreError):
        topics.add("T", 500)
    assert topics.end_of("T") == 0


def test_deletions_are_restricted_to_the_log_range(tmp_path: Path) -> None:
    topics = deleted(tmp_path)
    topics.add("old", 100)
    topics.add("new", 900)
    topics.add("middle", 500)
    topics.restrict(200, 700)
    again = deleted(tmp_path)
    assert [again.end_of(topic) for topic in ("old", "middle", "new")] == [0, 500, 700]


def test_restricting_nothing_writes_nothing(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    topics = deleted(tmp_path, faulty)
    topics.restrict(0, 1000)
    assert faulty.calls == []


@pytest.mark.parametrize("content", ["[]", "{}", '{"offsetTable": 5}', '{"offsetTable": {"T": "x"}}'])
def test_anything_else_in_the_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "deletedTopics.json").write_text(content)
    with pytest.raises(StoreLayoutError, match="does not hold its table"):
        deleted(tmp_path)
