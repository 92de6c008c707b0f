from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem
from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.mapped_file import MappingPool
from triomq.storage.files.mapped_file_queue import FoundFiles, MappedFileQueue, check_directory


def sequence(root: Path, file_system: FileSystem | None = None) -> MappedFileQueue:
    return MappedFileQueue(
        file_system or FileSystem(), root / "log" / "0", 100, reserve_step_bytes=4096, scratch=root / "scratch"
    )


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "log" / "0").iterdir())


def test_position_is_found_in_its_file(tmp_path: Path) -> None:
    files = sequence(tmp_path)
    assert files.file_at(0) is None
    first, second = files.create_next(300), files.create_next(0)
    assert files.file_at(299) is None
    assert files.file_at(300) is first
    assert files.file_at(399) is first
    assert files.file_at(400) is second
    assert files.file_at(500) is None
    assert files.file_at(-1) is None


def test_file_that_cannot_be_opened_is_layout_error(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    sequence(tmp_path).create_next(0)
    faulty.fails = lambda number, name, path: name == "open_file"
    with pytest.raises(StoreLayoutError, match="cannot open"):
        sequence(tmp_path, faulty).load(FoundFiles([0], [], []))


def test_empty_files_at_end_are_deleted(tmp_path: Path) -> None:
    files = sequence(tmp_path)
    files.create_next(0)
    for start in (100, 200):
        (files.directory / f"{start:020d}").touch()
    found = check_directory(files.directory, FileSystem().list_directory(files.directory), 100)
    assert found == FoundFiles([0], [100, 200], [])
    again = sequence(tmp_path)
    again.load(found)
    assert names(tmp_path) == ["00000000000000000000"]
    assert not again.is_incomplete
    assert again.create_next(0).start == 100


@pytest.mark.parametrize("empty", [True, False])
def test_files_behind_gap_are_strays_after_crash_only(tmp_path: Path, empty: bool) -> None:
    files = sequence(tmp_path)
    for _ in range(4):
        files.create_next(0)
    gap = files.directory / f"{100:020d}"
    gap.write_bytes(b"") if empty else gap.unlink()
    entries = FileSystem().list_directory(files.directory)
    with pytest.raises(StoreLayoutError, match="00000000000000000100 is missing or empty"):
        check_directory(files.directory, entries, 100)
    found = check_directory(files.directory, entries, 100, may_be_torn=True)
    assert found == ([0], [100] if empty else [], [200, 300])


def test_strays_are_deleted_or_quarantined(tmp_path: Path) -> None:
    files = sequence(tmp_path)
    for letter in b"abc":
        files.create_next(0).map[0] = letter
    (files.directory / f"{0:020d}").unlink()
    quarantine = tmp_path / "quarantine"
    faulty = FaultyFileSystem()
    again = sequence(tmp_path, faulty)
    again.load(FoundFiles([], [], [100]), quarantine)
    assert again.is_incomplete
    synced = [path for name, path in faulty.calls if name == "sync_directory"]
    assert synced == [quarantine, tmp_path, files.directory]  # its new name is on the disk before the old one is gone
    assert (quarantine / f"0-{100:020d}").read_bytes()[:1] == b"b"
    sequence(tmp_path).load(FoundFiles([], [], [200]))
    assert names(tmp_path) == []


def test_removal_synced_before_file_of_same_name_created(tmp_path: Path) -> None:
    files = sequence(tmp_path)
    for _ in range(3):
        files.create_next(0)
    again = sequence(tmp_path, faulty := FaultyFileSystem())
    again.load(FoundFiles([0], [100], [200]))
    again.create_next(0)
    assert [(name, path.name) for name, path in faulty.calls if name != "map_file"] == [
        ("unlink", f"{100:020d}"),
        ("unlink", f"{200:020d}"),
        ("sync_directory", "0"),
        ("open_file", f"{0:020d}"),
        ("make_directories", "0"),
        ("create_file", f"{100:020d}"),
        ("rename", f"{100:020d}"),
    ]


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("readme.txt", 100, "not a file of the store"),
        (".hidden", 100, "not a file of the store"),
        ("0", 100, "not a file of the store"),
        ("9" * 20, 100, "not a file of the store"),
        ("\u0661" * 20, 100, "not a file of the store"),
        ("00000000000000000200", 99, "99 bytes, the configured file size is 100"),
        ("00000000000000000150", 100, "no multiple"),
        ("00000000000000000200", 100, "00000000000000000100 is missing"),
    ],
)
def test_unknown_directory_entry_is_refused(tmp_path: Path, name: str, size: int, reason: str) -> None:
    files = sequence(tmp_path)
    files.create_next(0)
    (files.directory / name).write_bytes(bytes(size))
    with pytest.raises(StoreLayoutError, match=reason):
        check_directory(files.directory, FileSystem().list_directory(files.directory), 100)


def test_first_file_in_pool_reserves_little_at_first(tmp_path: Path) -> None:
    size, step = 32 * 4096, 4 * 4096
    queue = MappedFileQueue(
        FileSystem(), tmp_path / "q", size, reserve_step_bytes=step, scratch=tmp_path / "s", pool=MappingPool(8)
    )
    first, second = queue.create_next(0), queue.create_next(size)
    reserved = []
    for position in range(20, size // 2, 4096):
        queue.reserve(first, position)
        reserved.append(first.reserved // 4096)
    assert reserved == [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16]
    queue.reserve(second, 20)
    assert second.reserved == step
