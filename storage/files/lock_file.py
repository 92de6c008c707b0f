"""The file ``lock``: one process at a time owns a store directory.

RocketMQ takes a POSIX record lock on the first byte; triomq does the same, so each excludes the other.  Such a lock
does not exclude its own process, and is lost when that process closes the file anywhere.  Hence the additional
``flock``, and a table of the locks that this process holds.  Source: store.md 5.1.
"""

import errno
import fcntl
import os
from pathlib import Path
from struct import Struct
from typing import Final

from triomq.protocol.errors import StoreError, StoreLockedError
from triomq.storage.files.file_system import FILE_MODE, store_error

_CONTENT: Final = b"lock"
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_BUSY: Final = frozenset({errno.EACCES, errno.EAGAIN})
_STRUCT_FLOCK: Final = Struct("hhqqi0q")  # type, whence, start, length, pid
_held: Final[set[tuple[int, int]]] = set()  # device and inode of the lock files of this process


class LockFile:
    """The lock of one store directory."""

    __slots__ = ("_identity", "_number", "path")

    def __init__(self, path: Path) -> None:
        """Set the path; opens nothing."""
        self.path = path
        self._number = -1
        self._identity = (0, 0)

    def acquire(self, *, to_read: bool = False) -> None:
        """Acquire the lock without waiting.

        Args:
            to_read: on a read-only file system, share the lock with other readers; without a lock file no process has
                ever opened the store, and no lock is needed.

        Raises:
            StoreLockedError: a process, possibly this one, holds it.
            StoreError: the file cannot be opened.
        """
        kind = fcntl.LOCK_EX
        try:
            self._refuse_own_process()
            try:
                number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            except OSError as exc:
                if not to_read or exc.errno not in _NOT_WRITABLE:
                    raise
                if not self.path.exists():
                    return
                number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                kind = fcntl.LOCK_SH
        except OSError as exc:
            raise store_error(exc, "open", self.path) from exc
        try:
            fcntl.lockf(number, kind | fcntl.LOCK_NB, 1, 0)
            fcntl.flock(number, kind | fcntl.LOCK_NB)
            if kind == fcntl.LOCK_EX and os.pread(number, len(_CONTENT) + 1, 0) != _CONTENT:
                os.ftruncate(number, 0)
                os.pwrite(number, _CONTENT, 0)
        except OSError as exc:
            owner = _owner(number)
            os.close(number)
            raise self._error(exc, owner) from exc
        status = os.fstat(number)
        self._identity = (status.st_dev, status.st_ino)
        _held.add(self._identity)
        self._number = number

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1
            _held.discard(self._identity)

    def _refuse_own_process(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return
        if (status.st_dev, status.st_ino) in _held:
            raise StoreLockedError(f"{self.path.parent} is open in this process already (pid {os.getpid()})")

    def _error(self, exc: OSError, owner: int) -> StoreError:
        if exc.errno not in _BUSY:
            return store_error(exc, "lock", self.path)
        user = f"process {owner}" if owner else "another process"
        return StoreLockedError(f"{self.path.parent} is in use by {user}: stop it, or choose another directory")


def _owner(number: int) -> int:
    """Return the process that holds the record lock, 0 if unknown."""
    question = _STRUCT_FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        answer = fcntl.fcntl(number, fcntl.F_GETLK, question)
    except OSError:
        return 0
    kind, _, _, _, pid = _STRUCT_FLOCK.unpack(answer)
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else 0
