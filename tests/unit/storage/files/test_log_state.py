import errno
import struct
from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem
from triomq.protocol.errors import StoreError, StoreLayoutError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import Checkpoint, DeletedTopics, load_checkpoint

FILES = FileSystem()


def test_saved_checkpoint_begins_with_times_of_rocketmq(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    saved = Checkpoint(1, 2, 3, 4, 5, 6)
    saved.save(FILES, path)
    assert path.read_bytes().startswith(struct.pack(">qqq", 1, 2, 3) + bytes(40))
    assert path.stat().st_size == 4096
    assert load_checkpoint(FILES, path) == saved


def test_offsets_count_for_times_they_were_saved_with(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1, 2, 3, 4, 5, 6).save(FILES, path)
    with path.open("r+b") as file:  # as RocketMQ does
        file.write(struct.pack(">qqq", 7, 2, 3))
    assert load_checkpoint(FILES, path) == Checkpoint(7, 2, 3, 0, 0, -1)


@pytest.mark.parametrize("content", [None, b"", b"12345"])
def test_missing_or_cut_checkpoint_vouches_for_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    assert load_checkpoint(FILES, tmp_path / "checkpoint") == Checkpoint(0, 0, 0)


def test_existing_checkpoint_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1, 2, 3).save(FILES, path)
    inode = path.stat().st_ino
    assert Checkpoint(4, 5, 6).save(FILES, path)
    assert path.stat().st_ino == inode
    assert load_checkpoint(FILES, path) == Checkpoint(4, 5, 6)


def test_full_disk_leaves_old_checkpoint_and_no_error(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1, 2, 3).save(FILES, path)
    faulty.fails = lambda number, name, path: True
    assert not Checkpoint(4, 5, 6).save(faulty, path)
    assert load_checkpoint(FILES, path) == Checkpoint(1, 2, 3)


def test_unreadable_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(StoreError, match="cannot read") as caught:
        load_checkpoint(FILES, tmp_path / "checkpoint")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EISDIR


def deleted(root: Path, file_system: FileSystem | None = None) -> DeletedTopics:
    topics = DeletedTopics(root / "config", file_system or FileSystem())
    topics.load()
    return topics


def test_deletion_that_cannot_be_written_has_not_happened(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    topics = deleted(tmp_path, faulty)
    faulty.fails = lambda number, name, path: name == "write_file"
    with pytest.raises(StoreError):
        topics.add("T", 500)
    assert topics.end_of("T") == 0


def test_deletions_are_restricted_to_log_range(tmp_path: Path) -> None:
    topics = deleted(tmp_path)
    topics.add("old", 100)
    topics.add("new", 900)
    topics.add("middle", 500)
    topics.restrict(200, 700)
    again = deleted(tmp_path)
    assert [again.end_of(topic) for topic in ("old", "middle", "new")] == [0, 500, 700]


@pytest.mark.parametrize("content", ["[]", "{}", '{"offsetTable": 5}', '{"offsetTable": {"T": "x"}}'])
def test_unknown_content_of_table_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "deletedTopics.json").write_text(content)
    with pytest.raises(StoreLayoutError, match="does not hold its table"):
        deleted(tmp_path)
