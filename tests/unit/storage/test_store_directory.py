import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.storage.making import FaultyFileSystem, StoreMaker, bodies, filled, put
from triomq.protocol.errors import StoreError, StoreLayoutError, StoreLockedError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.store_directory import LockFile, StoreDirectory


def test_files_are_for_their_owner_alone(maker: StoreMaker) -> None:
    before = os.umask(0)
    try:
        store = maker(maker.root / "store")
        put(store)
        store.close()
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in (store.config.root, *store.config.root.rglob("*"))}
    assert len(found) > 10
    assert {path: mode for path, mode in found.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


@pytest.mark.parametrize("name", ["root", "root/below"])
def test_file_in_place_of_root_is_refused(maker: StoreMaker, name: str) -> None:
    (maker.root / "root").write_bytes(b"")
    with pytest.raises(StoreLayoutError, match="is not a directory"):
        maker(maker.root / name)


def test_root_that_may_not_made_or_read_refused(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    faulty.fails = lambda number, name, path: name == "make_directories"
    faulty.code = 13
    with pytest.raises(StoreLayoutError, match=r"cannot create the store directory .*Permission denied"):
        maker(file_system=faulty)
    faulty.code = 28
    with pytest.raises(StoreError, match="free space"):
        maker(file_system=faulty)


def test_unreadable_parent_of_existing_root_is_accepted(maker: StoreMaker, faulty: FaultyFileSystem) -> None:
    root = maker.root / "store"
    faulty.fails = lambda number, name, path: name == "sync_directory" and path == maker.root
    faulty.code = 13
    with pytest.raises(StoreLayoutError, match=r"cannot create the store directory .*Permission denied"):
        maker(file_system=faulty)
    assert root.is_dir()
    put(maker(file_system=faulty))


def test_unreadable_root_is_rejected_before_locking(maker: StoreMaker) -> None:
    class Unreadable(FileSystem):
        def list_directory(self, path: Path) -> None:  # type: ignore[override]  # for the test
            raise PermissionError(13, os.strerror(13))

    with pytest.raises(StoreLayoutError, match=r"cannot read the directory .*Permission denied"):
        maker(file_system=Unreadable())
    assert not (maker.root / "store" / "lock").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("commitlog/notes.txt", b""),
        ("commitlog/.nfs0001", b""),
        (f"commitlog/{65536:020d}", bytes(100)),
        (f"commitlog/{131072:020d}", bytes(65536)),
        (f"consumequeue/T/0/{1000:020d}", bytes(999)),
        (f"consumequeue/T/0/{3000:020d}", bytes(1000)),
        ("consumequeue/T/0/x/y", b""),
    ],
)
def test_wrong_file_is_refused_before_anything_is_changed(maker: StoreMaker, name: str, content: bytes) -> None:
    store = maker()
    put(store)
    store.close()
    root = store.config.root
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(content)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with pytest.raises(StoreLayoutError):
        maker()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    (root / name).unlink()
    if name.endswith("x/y"):
        (root / name).parent.rmdir()
    assert maker().reader.max_offset_in_queue("T", 0) == 1


@pytest.mark.parametrize("name", ["commitlog", f"commitlog/{65536:020d}", "consumequeue", "consumequeue/T"])
def test_dangling_link_is_rejected_before_any_change(maker: StoreMaker, name: str) -> None:
    store = filled(maker)
    store.close()
    root, away = store.config.root, maker.root / "away"
    (root / name).rename(away)
    (root / name).symlink_to(away)
    store = maker()
    assert len(bodies(store)) == 100
    store.close()
    away.rename(maker.root / "unmounted")
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    with pytest.raises(StoreLayoutError, match=name):
        maker()
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    (maker.root / "unmounted").rename(away)
    assert len(bodies(maker())) == 100


def test_file_sizes_differing_from_directory_are_rejected(maker: StoreMaker) -> None:
    store = maker()
    put(store)
    store.close()
    with pytest.raises(StoreLayoutError, match="65536 bytes, the configured file size is 131072"):
        maker(commit_log_file_size_bytes=131072)
    with pytest.raises(StoreLayoutError, match="1000 bytes, the configured file size is 2000"):
        maker(consume_queue_file_size_bytes=2000)


def test_mark_is_on_disk_before_anything_else_happens(tmp_path: Path, faulty: FaultyFileSystem) -> None:
    directory = StoreDirectory(tmp_path, faulty)
    directory.mark_running()
    assert faulty.calls[-2:] == [("write_file", tmp_path / "abort"), ("sync_directory", tmp_path)]
    directory.mark_closed()
    assert faulty.calls[-2:] == [("unlink", tmp_path / "abort"), ("sync_directory", tmp_path)]


def test_empty_extension_directories_are_no_extensions(maker: StoreMaker) -> None:
    (maker.root / "store" / "consumequeue_ext" / "T" / "0").mkdir(parents=True)
    (maker.root / "store" / "consumequeue_ext" / "file").write_bytes(b"")
    maker()


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)  # what Java's FileChannel.tryLock(0, 1, false) does
print("locked", flush=True)
sys.stdin.read()
"""


def test_second_lock_of_same_process_is_refused(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.acquire()
    with pytest.raises(StoreLockedError, match=f"open in this process already.*{os.getpid()}"):
        LockFile(tmp_path / "lock").acquire()
    assert tried_by_another_process(tmp_path / "lock") == errno.EAGAIN
    lock.release()
    assert tried_by_another_process(tmp_path / "lock") == 0


def tried_by_another_process(path: Path) -> int:
    code = (
        "import fcntl, sys\n"
        "try: fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError as exc: sys.exit(exc.errno)"
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode


def test_javas_lock_excludes_us_and_process_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"lock")
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(StoreLockedError, match=f"in use by process {holder.pid}"):
            LockFile(path).acquire()
        holder.communicate()
    lock = LockFile(path)
    lock.acquire()
    lock.release()


def test_flock_of_another_process_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreLockedError, match="in use by another process"):
            LockFile(path).acquire()


def test_lock_failure_other_than_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("triomq.storage.store_directory.fcntl.lockf", refuse)
    monkeypatch.setattr("triomq.storage.store_directory.fcntl.fcntl", refuse)
    with pytest.raises(StoreError, match="No locks available") as caught:
        LockFile(tmp_path / "lock").acquire()
    assert not isinstance(caught.value, StoreLockedError)


def test_where_nothing_may_be_written_readers_share_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really_open(path, flags, mode)

    lock = LockFile(tmp_path / "lock")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", read_only)
        with pytest.raises(StoreError, match="Read-only"):
            lock.acquire()
        lock.acquire(to_read=True)  # no process has ever had the store
        lock.release()
        (tmp_path / "lock").write_bytes(b"lock")
        lock.acquire(to_read=True)
        assert tried_by_another_process(tmp_path / "lock") == errno.EAGAIN
        lock.release()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        monkeypatch.setattr(os, "open", read_only)
        with pytest.raises(StoreLockedError, match=f"process {holder.pid}"):
            lock.acquire(to_read=True)
        assert holder.stdin is not None
        holder.stdin.close()
