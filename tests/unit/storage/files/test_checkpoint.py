import errno
import struct
from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem
from triomq.protocol.errors import StoreError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import Checkpoint, load_checkpoint

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
def test_a_missing_or_cut_checkpoint_vouches_for_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    assert load_checkpoint(FILES, tmp_path / "checkpoint") == Checkpoint(0, 0, 0)


def test_an_existing_checkpoint_is_written_in_place(tmp_path: Path) -> None:
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


def test_another_failure_is_an_error(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    faulty.code = errno.EIO
    faulty.fails = lambda number, name, path: True
    with pytest.raises(StoreError, match="cannot write"):
        Checkpoint(4, 5, 6).save(faulty, tmp_path / "checkpoint")


def test_an_unreadable_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(StoreError, match="cannot read") as caught:
        load_checkpoint(FILES, tmp_path / "checkpoint")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EISDIR
