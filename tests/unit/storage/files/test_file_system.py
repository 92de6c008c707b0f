import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.making import mapped_without_read_ahead
from triomq.protocol.errors import StoreError, StoreFullError, StoreLayoutError
from triomq.storage.files.file_system import (
    DiskSpace,
    FileSystem,
    list_store_directory,
    store_error,
)

FILES = FileSystem()


def test_existing_file_is_never_replaced_by_new_one(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        FILES.create_file(tmp_path / "scratch", 5000, tmp_path / "0")
    assert (tmp_path / "0").read_bytes() == b"precious"


def test_holes_are_no_data(tmp_path: Path) -> None:
    file = FILES.create_file(tmp_path / "scratch", 1024 * 1024, tmp_path / "0")
    assert list(FILES.data_ranges(file, 0, 1024 * 1024)) == []
    os.pwrite(file.fileno(), b"x", 500_000)
    ranges = list(FILES.data_ranges(file, 0, 1024 * 1024))
    assert any(start <= 500_000 < end for start, end in ranges)
    assert all(end <= 500_010 for _, end in FILES.data_ranges(file, 0, 500_010))
    assert list(FILES.data_ranges(file, 0, 100_000)) == []
    assert list(FILES.data_ranges(file, 900_000, 1024 * 1024)) == []


def test_reading_fills_no_holes(tmp_path: Path) -> None:
    """Else the next start would have to search it for units."""
    file = FILES.create_file(tmp_path / "scratch", 1024 * 1024, tmp_path / "0")
    FILES.reserve(file, 0, 1024 * 1024)
    os.pwrite(file.fileno(), b"x" * 5000, 0)
    before = list(FILES.data_ranges(file, 0, 1024 * 1024))
    assert FILES.read(file, 4000, 1000) == b"x" * 1000
    assert list(FILES.data_ranges(file, 0, 1024 * 1024)) == before
    assert FILES.read(file, 1024 * 1024 - 2, 10) == bytes(2)


def test_zeroing_more_than_one_write(tmp_path: Path) -> None:
    size = 3 * 1024 * 1024 + 5
    (tmp_path / "0").write_bytes(b"x" * size)
    FILES.zero(FILES.open_file(tmp_path / "0"), 2, size - 3)
    content = (tmp_path / "0").read_bytes()
    assert content == b"xx" + bytes(size - 3) + b"x"


def test_missing_directory_is_empty_and_entry_kinds_distinct(tmp_path: Path) -> None:
    assert FILES.list_directory(tmp_path / "none") == []
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    a, b = FILES.list_directory(tmp_path)
    assert (a.name, a.is_file, a.is_directory, a.size_bytes) == ("a", True, False, 3)
    assert (b.name, b.is_file, b.is_directory, b.size_bytes) == ("b", False, True, 0)


def test_link_that_leads_nowhere_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").symlink_to(tmp_path / "unmounted")
    a, b = FILES.list_directory(tmp_path)
    assert (a.name, a.is_file, a.size_bytes) == ("a", True, 3)
    assert (b.name, b.is_file, b.is_directory) == ("b", False, True)
    with pytest.raises(StoreLayoutError, match=r"cannot read the directory .*b: No such file"):
        list_store_directory(FILES, tmp_path / "b")


def test_entry_removed_during_directory_listing_is_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")

    def scandir(path: Path) -> Any:
        entries = real(path)
        (tmp_path / "a").unlink()
        return entries

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert FILES.list_directory(tmp_path) == []


def test_used_space_is_rounded_up_as_in_rocketmq() -> None:
    assert DiskSpace(used_bytes=1, available_bytes=999).used_percent == 1
    assert DiskSpace(used_bytes=900, available_bytes=100).used_percent == 90
    assert DiskSpace(used_bytes=901, available_bytes=99).used_percent == 91


def test_file_system_of_unknown_size_is_never_full() -> None:
    """A ramfs, or a tmpfs with ``size=0``."""
    assert DiskSpace(used_bytes=0, available_bytes=0).used_percent == 0


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (errno.ENOSPC, StoreFullError, "free space"),
        (errno.EDQUOT, StoreFullError, "free space"),
        (errno.EMFILE, StoreError, "ulimit -n"),
        (errno.EIO, StoreError, "Input/output error"),
    ],
)
def test_error_names_action_path_and_remedy(code: int, kind: type[StoreError], text: str) -> None:
    error = store_error(OSError(code, os.strerror(code)), "create", Path("/store/file"))
    assert type(error) is kind
    assert "cannot create /store/file" in str(error)
    assert text in str(error)


def test_free_space_is_taken_from_nearest_accessible_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def statvfs(path: Path) -> os.statvfs_result:
        asked.append(path)
        if path != tmp_path:
            raise OSError(errno.EACCES if path.parent == tmp_path else errno.ENOENT, "no")
        return real(path)

    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", statvfs)
    path = tmp_path / "commitlog" / "file"
    assert "bytes are free" in str(store_error(OSError(errno.EACCES, "no"), "create", path))
    assert asked == [path, path.parent, tmp_path]


def test_free_space_is_that_of_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(path: Path) -> os.statvfs_result:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert "free space unknown: [Errno 5]" in str(store_error(OSError(errno.EIO, "no"), "create", tmp_path))


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda path: FILES.write_file(path / "0", b"x" * 5000), ("fsync", "0", 5000)),
        (lambda path: FILES.overwrite_file(path / "0", b"x" * 5000), ("fsync", "0", 5000)),
        (lambda path: FILES.sync_file(FILES.create_file(path / "0", 4096, path / "1")), ("fdatasync", "0", 4096)),
        (lambda path: FILES.sync_directory(path), ("fsync", "", None)),
    ],
)
def test_durable_write_is_synced_after_writing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Path], None],
    wanted: tuple[str, str, int | None],
) -> None:
    synced: list[tuple[str, Path, int | None]] = []
    for name in ("fsync", "fdatasync"):

        def record(number: int, name: str = name) -> None:
            path = Path(f"/proc/self/fd/{number}").readlink()
            synced.append((name, path, path.stat().st_size if path.is_file() else None))

        monkeypatch.setattr(os, name, record)
    call(tmp_path)
    name, file_name, size = wanted
    assert synced == [(name, tmp_path / file_name, size)]


def test_kernel_gets_read_order_advice(tmp_path: Path) -> None:
    map_ = FILES.map_file(FILES.create_file(tmp_path / "0", 5000, tmp_path / "1"), 5000)
    assert mapped_without_read_ahead(tmp_path) == set()
    FILES.expect_order(map_, in_order=False)
    assert mapped_without_read_ahead(tmp_path) == {"0"}
    FILES.expect_order(map_, in_order=True)
    assert mapped_without_read_ahead(tmp_path) == set()


@pytest.mark.parametrize("is_old", [False, True])
def test_many_files_sync_at_once_if_errors_show(tmp_path: Path, is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    module = "triomq.storage.files.file_system"
    monkeypatch.setattr(f"{module}._SYNCFS_REPORTS", not is_old)
    monkeypatch.setattr(f"{module}._syncfs", lambda number: calls.append("syncfs"))
    monkeypatch.setattr("os.fsync", lambda number: calls.append("fsync"))
    paths = [tmp_path / "a", tmp_path / "gone", tmp_path]
    (tmp_path / "a").touch()
    FILES.sync_all(paths)
    assert calls == (["fsync", "fsync"] if is_old else ["syncfs"])
    monkeypatch.setattr(f"{module}._syncfs", lambda number: -1)
    if not is_old:
        with pytest.raises(OSError, match=str(tmp_path / "a")):
            FILES.sync_all(paths)
