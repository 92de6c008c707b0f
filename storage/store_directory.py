"""The root of a store: its lock, its marker files, and the layout check that runs before anything changes.

The file ``lock`` makes one process at a time the owner of the directory.  RocketMQ takes a POSIX record lock on the
first byte; triomq does the same, so each excludes the other.  Such a lock does not exclude its own process, and is lost
when that process closes the file anywhere.  Hence the additional ``flock``, and a table of the locks of this process.

Source: DefaultMessageStore.java, load, start, shutdown; store.md 1, 5.1.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from triomq.protocol.errors import StoreLayoutError, StoreLockedError
from triomq.storage.commit_log.log_scan import QUARANTINE
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.queue_table import QueueLayout, QueueTable
from triomq.storage.files.file_system import FILE_MODE, FileSystem, list_store_directory, store_error, translated
from triomq.storage.files.log_state import CHECKPOINT
from triomq.storage.files.mapped_file_queue import SCRATCH, FoundFiles, MappedFileQueue, check_directory


class StoreDirectory:
    """Paths and marks of one store.

    Attributes:
        file_system: access to files.
        commit_log, index, checkpoint, abort, config: paths of these.
        scratch: new files are made here and then renamed.
        quarantine: holds files that do not fit the store but may be wanted.
    """

    def __init__(self, root: Path, file_system: FileSystem) -> None:
        self.file_system: Final = file_system
        self._lock = LockFile(root / "lock")
        self.root = root
        self.commit_log = root / "commitlog"
        self.index = root / "index"
        self.checkpoint = root / CHECKPOINT
        self.abort = root / "abort"
        self.config = root / "config"
        self.scratch = root / SCRATCH
        self.quarantine = root / QUARANTINE

    def commit_log_files(self, config: StoreConfig) -> MappedFileQueue:
        """Return the sequence of commit log files; none is loaded."""
        return MappedFileQueue(
            self.file_system,
            self.commit_log,
            config.commit_log_file_size_bytes,
            reserve_step_bytes=config.reserve_step_bytes,
            scratch=self.scratch,
        )

    def acquire(self, *, to_read: bool = False) -> None:
        """Create the directory if it is missing and take its lock; ``to_read`` as for the lock file.

        Raises:
            StoreLayoutError: ``root`` is not a directory, or cannot be created or listed.
            StoreLockedError: another process, or this one, already uses it.
            StoreError: the lock cannot be taken for another reason.
        """
        try:
            self._make_root()
        except (FileExistsError, NotADirectoryError) as exc:
            raise StoreLayoutError(
                f"{self.root} is not a directory: it or a parent of it is a file; choose another directory with --store"
                " (StoreConfig.root)"
            ) from exc
        except PermissionError as exc:
            raise StoreLayoutError(f"cannot create the store directory {self.root}: {exc.strerror}") from exc
        except OSError as exc:
            raise store_error(exc, "create", self.root) from exc
        list_store_directory(self.file_system, self.root)  # raises a clear error if it is unreadable
        self._lock.acquire(to_read=to_read)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def check(self, config: StoreConfig, queues: QueueTable) -> tuple[FoundFiles, list[QueueLayout]]:
        """Check all directories and return the files of the log and of the queues; changes nothing.

        Raises:
            StoreLayoutError: a file does not match the layout of this store.
        """
        extension = self.root / "consumequeue_ext"  # then tags codes are addresses in it
        queue_folders = [queue for topic in self._folders(extension) for queue in self._folders(topic)]
        if any(list_store_directory(self.file_system, queue) for queue in queue_folders):
            raise StoreLayoutError(
                f"{extension} holds consume queue extensions (enableConsumeQueueExt), which triomq does"
                " not read: messages could not be filtered by tag"
            )
        entries = list_store_directory(self.file_system, self.commit_log)
        crashed = self.file_system.exists(self.abort)
        log = check_directory(self.commit_log, entries, config.commit_log_file_size_bytes, may_be_torn=crashed)
        return log, queues.scan(may_be_torn=crashed)

    def mark_running(self) -> bool:
        """Create the file ``abort`` and return whether the previous shutdown was clean.

        RocketMQ creates it at the end of startup; creating it first makes a crash during startup count as a crash.

        Raises:
            StoreError: it cannot be created.
        """
        with translated("create", self.abort):
            self.file_system.unlink(self.scratch)
            if self.file_system.exists(self.abort):
                return False
            self.file_system.write_file(self.abort, b"")
            self.file_system.sync_directory(self.root)
        return True

    def mark_closed(self) -> None:
        """Remove the file ``abort``, once everything is on the disk.

        Raises:
            StoreError: it cannot be removed.
        """
        with translated("delete", self.abort):
            self.file_system.unlink(self.abort)
            self.file_system.sync_directory(self.root)

    def _make_root(self) -> None:
        """Create the root and sync its directory entry, without which a power cut could lose the whole store."""
        is_new = not self.file_system.exists(self.root)
        names = [self.root]
        while not self.file_system.exists(names[-1].parent):
            names.append(names[-1].parent)
        self.file_system.make_directories(self.root)
        for name in names:
            try:
                self.file_system.sync_directory(name.parent)
            except PermissionError:  # a parent such as /home may be unreadable
                if is_new:
                    raise

    def _folders(self, directory: Path) -> list[Path]:
        return [
            directory / each.name for each in list_store_directory(self.file_system, directory) if each.is_directory
        ]


_CONTENT: Final = b"lock"
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_BUSY: Final = frozenset({errno.EACCES, errno.EAGAIN})
_STRUCT_FLOCK: Final = Struct("hhqqi0q")  # type, whence, start, length, pid
_held: Final[set[tuple[int, int]]] = set()  # device and inode of the lock files of this process


class LockFile:
    """The lock of one store directory."""

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
            with suppress(FileNotFoundError):
                status = self.path.stat()
                if (status.st_dev, status.st_ino) in _held:
                    raise StoreLockedError(f"{self.path.parent} is open in this process already (pid {os.getpid()})")
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
            if exc.errno not in _BUSY:
                raise store_error(exc, "lock", self.path) from exc
            user = f"process {owner}" if owner else "another process"
            raise StoreLockedError(
                f"{self.path.parent} is in use by {user}: stop it, or choose another directory"
            ) from exc
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


def _owner(number: int) -> int:
    """Return the process that holds the record lock, 0 if unknown."""
    question = _STRUCT_FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        answer = fcntl.fcntl(number, fcntl.F_GETLK, question)
    except OSError:
        return 0
    kind, _, _, _, pid = _STRUCT_FLOCK.unpack(answer)
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else 0
