"""Every call on files, in one replaceable class.

Nothing else in ``triomq.storage`` talks to the operating system about files, so that a test can pass a
``FileSystem`` that fails, counts or forgets.  Methods raise ``OSError``; ``translated`` turns it into ours.
"""

import ctypes
import errno
import mmap
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from triomq.protocol.errors import StoreError, StoreFullError, StoreLayoutError

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_BAD_DISK: Final = frozenset({errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM})
_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NOT_OPENED: Final = _TOO_MANY_FILES | {errno.EACCES, errno.EPERM}
#: For the owner alone: others must not read messages, nor lock the lock file, for which reading is enough.
FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_ZEROS: Final = bytes(1024 * 1024)
_PAGE: Final = mmap.PAGESIZE
_RESIDENT_FLAGS: Final = bytes(range(1, 256, 2))  # of mincore: only the lowest bit is defined
_LINUX: Final = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) if sys.platform == "linux" else (0, 0)
_SYNCFS_REPORTS: Final = _LINUX >= (5, 8)  # what could not be written
_mincore = ctypes.PyDLL(None).mincore  # so short that giving the lock of the interpreter away would cost more


def _syncfs(number: int) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syncfs(number))  # only Linux has it


class OpenFile:
    """An open file; its descriptor is closed with the last reference, so that a flush may outlive the owner."""

    __slots__ = ("_number", "path")

    def __init__(self, number: int, path: Path) -> None:
        self._number = number
        self.path = path

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def __del__(self) -> None:
        os.close(self._number)


class DiskWork(NamedTuple):
    """A call that waits for the disk and may run in a worker thread; what yields it gets its ``StoreError``."""

    run: Callable[[], None]


class DirectoryEntry(NamedTuple):
    """One name in a directory; ``size_bytes`` is 0 for anything but a regular file.

    A link that leads nowhere counts as a directory, which cannot be read: its target is missing, not deleted.
    """

    name: str
    is_file: bool
    is_directory: bool
    size_bytes: int


class DiskSpace(NamedTuple):
    """Space of the file system that holds a path; ``available_bytes`` is what this process may use."""

    used_bytes: int
    available_bytes: int

    @property
    def used_percent(self) -> int:
        """Used part of the space for this process, percent, rounded up as in RocketMQ.  Source: store.md 5.10.

        A file system without a limit, such as ramfs, reports size 0; it is never full.
        """
        total = self.used_bytes + self.available_bytes
        return -(-100 * self.used_bytes // total) if total else 0


class FileSystem:
    """The real file system."""

    def make_directories(self, path: Path) -> None:
        """Create ``path`` and its parents; existing ones are kept."""
        missing = takewhile(lambda each: not each.exists(), path.parents)
        for each in (*reversed([*missing]), path):
            each.mkdir(_FOLDER_MODE, exist_ok=True)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Return the entries sorted by name; a directory that does not exist has none."""
        entries = []
        try:
            scan = os.scandir(path)
        except FileNotFoundError:
            if self.exists(path):  # a link that leads nowhere, as when its disk is not mounted
                raise
            return []
        with scan:
            for entry in scan:
                if entry.is_dir():  # usually known without a call of the system
                    entries.append(DirectoryEntry(entry.name, False, True, 0))
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    if entry.is_symlink():  # otherwise it was deleted meanwhile
                        entries.append(DirectoryEntry(entry.name, is_file=False, is_directory=True, size_bytes=0))
                    continue
                is_file = stat.S_ISREG(status.st_mode)
                entries.append(DirectoryEntry(entry.name, is_file, False, status.st_size if is_file else 0))
        return sorted(entries)

    def exists(self, path: Path) -> bool:
        """Return whether anything exists at ``path``."""
        return os.path.lexists(path)

    def create_file(self, scratch: Path, size_bytes: int, path: Path) -> OpenFile:
        """Make a file of zeros at ``scratch``, without reserving space, that ``rename`` will put at ``path``.

        So it never appears shorter there.  ``FileExistsError`` if ``path`` exists.
        """
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = OpenFile(os.open(scratch, flags, FILE_MODE), path)
        os.ftruncate(file.fileno(), size_bytes)
        return file

    def open_file(self, path: Path) -> OpenFile:
        """Open an existing file for reading and writing."""
        return OpenFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)

    def map_file(self, file: OpenFile, size_bytes: int) -> mmap.mmap:
        """Map a whole file, shared."""
        return mmap.mmap(file.fileno(), size_bytes)

    def expect_order(self, map_: mmap.mmap, *, in_order: bool) -> None:
        """Tell the system whether to read more than the page that is touched, as it does by default: up to 8 MiB."""
        map_.madvise(mmap.MADV_NORMAL if in_order else mmap.MADV_RANDOM)

    def reserve(self, file: OpenFile, start: int, length: int) -> None:
        """Allocate disk blocks, so that writing there through a mapping cannot fail; content is unchanged."""
        os.posix_fallocate(file.fileno(), start, length)

    def read(self, file: OpenFile, start: int, length: int) -> bytes:
        """Return the bytes from ``start`` on, as far as the file goes; the system reads no more than that."""
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return os.pread(file.fileno(), length, start)

    def zero(self, file: OpenFile, start: int, length: int) -> None:
        """Overwrite with zeros; mappings see it."""
        while length > 0:
            written = os.pwrite(file.fileno(), memoryview(_ZEROS)[:length], start)
            start += written
            length -= written

    def data_ranges(self, file: OpenFile, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) that may hold something; holes read as zeros and are left out."""
        while start < end:
            try:
                data = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError as exc:
                if exc.errno != errno.ENXIO:
                    raise
                return  # only a hole is left
            hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
            if data < end:
                yield data, min(hole, end)
            start = hole

    def is_resident(self, map_: mmap.mmap, start: int, end: int) -> bool:
        """Return whether [start, end) of a writable mapping is in memory; unknown counts as in memory."""
        if end <= start:
            return True
        begin = start // _PAGE * _PAGE
        pages = -(-(end - begin) // _PAGE)
        flags = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(map_)) + begin
        if _mincore(ctypes.c_void_p(address), ctypes.c_size_t(end - begin), flags) != 0:
            return True
        return not bytes(flags).translate(None, _RESIDENT_FLAGS)

    def read_into_memory(self, file: OpenFile, start: int, end: int) -> None:
        """Read [start, end), waiting for the disk, so that mappings have it too.

        Where the file was truncated that is an error: to touch such a page would kill the process.
        """
        buffer = bytearray(min(end - start, len(_ZEROS)))
        while start < end:
            count = os.preadv(file.fileno(), [memoryview(buffer)[: end - start]], start)
            if count == 0:
                raise OSError(errno.EIO, f"no data at {start}, the file was truncated", str(file.path))
            start += count

    def read_ahead(self, file: OpenFile, start: int, end: int) -> None:
        """Start reading [start, end) into memory."""
        os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_WILLNEED)

    def modified_ms(self, file: OpenFile) -> int:
        """Return when the file was written last, ms; through a mapping that is known only approximately."""
        return os.fstat(file.fileno()).st_mtime_ns // 1_000_000

    def sync_file(self, file: OpenFile) -> None:
        """Wait until the file's data is on the disk, also data written through mappings."""
        os.fdatasync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Wait until the directory's entries are on the disk."""
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def sync_all(self, paths: Iterable[Path]) -> None:
        """Wait until all these files and directories are on the disk; those that do not exist are left out.

        This syncs whole file systems: thousands of files one by one would each wait for the disk.
        """
        synced: set[int] = set()
        for path in paths:
            try:
                device = path.stat().st_dev
                if device in synced:
                    continue
                number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                if not _SYNCFS_REPORTS:
                    os.fsync(number)
                elif _syncfs(number):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
                else:
                    synced.add(device)
            finally:
                os.close(number)

    def rename(self, source: Path, target: Path) -> None:
        """Put ``source`` in the place of ``target``, at once."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file; mappings and open files stay valid."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def read_file(self, path: Path) -> bytes:
        """Return the whole content of a small file."""
        return path.read_bytes()

    def write_file(self, path: Path, content: bytes) -> None:
        """Write a small file and wait until it is on the disk."""
        _write(path, content, os.O_TRUNC)

    def overwrite_file(self, path: Path, content: bytes) -> None:
        """Write a small file over an old one of the same length, in its blocks, and wait until it is on the disk."""
        _write(path, content, 0)

    def space(self, path: Path) -> DiskSpace:
        """Return the space of the file system that holds ``path``."""
        status = os.statvfs(path)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return DiskSpace(used, status.f_bavail * status.f_frsize)


def _write(path: Path, content: bytes, flags: int) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, FILE_MODE)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(number, view) :]
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def translated(action: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a ``StoreError`` that names the action and the path.

    Raises:
        StoreFullError: the disk is full, or the quota is used up.
        StoreError: any other failure.
    """
    try:
        yield
    except OSError as exc:
        raise store_error(exc, action, path) from exc


def store_error(exc: OSError, action: str, path: Path) -> StoreError:
    """Return the error of our tree for ``exc``."""
    text = f"cannot {action} {path}: {exc.strerror or exc}"
    if exc.errno in NO_SPACE:
        return StoreFullError(f"{text}, {free_text(path)}; free space there or move StoreConfig.root (--store)")
    if exc.errno in _TOO_MANY_FILES:
        return StoreError(f"{text}; raise the limit of open files (ulimit -n)")
    if exc.errno in _BAD_DISK:
        return StoreError(f"{text}, {free_text(path)}; repair that or move StoreConfig.root (--store)")
    return StoreError(text)


def is_unopened(error: StoreError) -> bool:
    """Whether a file or directory could not even be opened, so that nothing of it is lost: a later try may succeed."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _NOT_OPENED


def free_text(path: Path) -> str:
    """Return the free space at ``path``, which need not exist, for an error's text."""
    reason: OSError | None = None
    for where in (path, *path.parents):
        try:
            return f"{FileSystem().space(where).available_bytes} bytes are free"
        except (FileNotFoundError, NotADirectoryError, PermissionError) as exc:
            reason = exc
        except OSError as exc:
            reason = exc
            break
    return f"free space unknown: {reason}"


def list_store_directory(file_system: FileSystem, path: Path) -> list[DirectoryEntry]:
    """Return the entries of a directory of the store, none if it does not exist.

    Raises:
        StoreLayoutError: it cannot be read.
    """
    try:
        return file_system.list_directory(path)
    except OSError as exc:
        raise StoreLayoutError(f"cannot read the directory {path}: {exc.strerror}") from exc
