import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triomq.protocol.errors import StoreError, StoreLockedError
from triomq.storage.files.lock_file import LockFile

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)  # what Java's FileChannel.tryLock(0, 1, false) does
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_lock_holds_four_bytes_of_text(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.acquire()
    assert lock.path.read_bytes() == b"lock"
    lock.release()
    lock.path.write_bytes(b"something else")
    lock.acquire()
    lock.release()
    assert lock.path.read_bytes() == b"lock"


def test_same_process_is_excluded_without_losing_the_lock(tmp_path: Path) -> None:
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


def test_a_javas_lock_excludes_us_and_its_process_is_named(tmp_path: Path) -> None:
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


def test_a_flock_excludes_us_too(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreLockedError, match="in use by another process"):
            LockFile(path).acquire()


def test_releasing_twice_or_without_a_lock_is_harmless(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.release()
    lock.acquire()
    lock.release()
    lock.release()


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StoreError, match=f"cannot open {tmp_path}/lock"):
        LockFile(tmp_path / "lock").acquire()


def test_another_failure_than_a_busy_lock_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("triomq.storage.files.lock_file.fcntl.lockf", refuse)
    monkeypatch.setattr("triomq.storage.files.lock_file.fcntl.fcntl", refuse)
    with pytest.raises(StoreError, match="No locks available") as caught:
        LockFile(tmp_path / "lock").acquire()
    assert not isinstance(caught.value, StoreLockedError)


def test_where_nothing_may_be_written_readers_share_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
