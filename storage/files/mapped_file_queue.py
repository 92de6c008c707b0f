"""A sequence of mapped files of one size: the commit log, or one consume queue.

A file is named after the position of its first byte, in 20 digits.  RocketMQ takes every entry of the directory for
one of its files, so nothing else is ever put there.  Source: MappedFileQueue.java; store.md 1.1, 1.2.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.file_system import DirectoryEntry, FileSystem, list_store_directory, translated
from triomq.storage.files.mapped_file import MappedFile, MappingPool

LOGGER: Final = logging.getLogger("triomq.storage.files.mapped_file_queue")

SCRATCH: Final = "new-file.tmp"
"""A new file has this name, in the root of the store, until it is complete and can be renamed."""

_NAME_DIGITS: Final = 20
_LARGEST_START: Final = 2**63 - 1


class FoundFiles(NamedTuple):
    """The files of a sequence that ``check_directory`` found, by their starts.

    Attributes:
        starts: of the sequence itself.
        empty_starts: of files that have no byte: a power cut leaves them where a file was made and nothing of it
            reached the disk.
        stray_starts: of files with content after a missing or empty one.
    """

    starts: list[int]
    empty_starts: list[int]
    stray_starts: list[int]


@dataclass(eq=False)
class MappedFileQueue:
    """The files of one directory, in order and without gaps; nothing is opened before ``load``.

    Attributes:
        file_system: what does the work.
        directory: need not exist before the first file.
        file_size: bytes of each file.
        reserve_step_bytes: how far ahead disk space is reserved, see ``reserve``.
        scratch: path of a new file until it has its full length; same file system, another directory.
        pool: bounds how many of these and other files are mapped; without it all of these are.
        files: from the oldest to the newest.
        directory_changes: how often a file was added or removed.
        directory_synced: how many of these changes are on the disk.
        is_incomplete: files were missing when it was loaded.
    """

    file_system: FileSystem
    directory: Path
    file_size: int
    _: KW_ONLY
    reserve_step_bytes: int
    scratch: Path
    pool: MappingPool | None = None

    def __post_init__(self) -> None:
        self.files: list[MappedFile] = []
        self.directory_changes = self.directory_synced = 0
        self.is_incomplete = False

    @property
    def start(self) -> int:
        """Position of the first byte; 0 without files."""
        return self.files[0].start if self.files else 0

    def load(self, found: FoundFiles, quarantine: Path | None = None) -> None:
        """Take over the files that ``check_directory`` found, and get rid of the others.

        Those of a pool are opened and mapped when they are needed, others now.

        Args:
            found: the files.
            quarantine: a directory for stray files; without it they are deleted, as they can be rebuilt.

        Raises:
            StoreLayoutError: a file cannot be opened.
            StoreError: a file cannot be deleted or moved.
        """
        for start in found.empty_starts:
            self._discard(start, None)
        for start in found.stray_starts:
            self._discard(start, quarantine)
        if found.stray_starts and quarantine is not None:  # no other copy exists
            for directory in (quarantine, quarantine.parent):
                with translated("sync", directory):
                    self.file_system.sync_directory(directory)
        if found.empty_starts or found.stray_starts:  # before one of them is created again
            self.sync_directory()
        self.is_incomplete = bool(found.stray_starts)
        self.directory_changes += 1  # a process killed before this one may not have synced the directory
        for start in found.starts:
            path = self._path(start)
            try:
                file = path if self.pool is not None else self.file_system.open_file(path)
            except OSError as exc:
                raise StoreLayoutError(f"cannot open {path}: {exc.strerror}") from exc
            in_order = self.pool is None  # of ten thousand queues a page or two is needed, not 6 MB of zeros
            self.files.append(MappedFile(self.file_system, file, start, self.file_size, self.pool, in_order=in_order))

    def create_next(self, start: int) -> MappedFile:
        """Add a new file of zeros; without files it begins at ``start``, else after the newest.

        Raises:
            StoreFullError, StoreError: it cannot be made; nothing is left of it.
        """
        if self.files:
            start = self.files[-1].end
        path = self._path(start)
        with translated("create", path):
            self.file_system.make_directories(self.directory)
            file = self.file_system.create_file(self.scratch, self.file_size, path)
            mapped = MappedFile(self.file_system, file, start, self.file_size, self.pool, in_order=False)
            try:
                self.file_system.rename(self.scratch, path)  # last: a file in its place is a complete one
            except BaseException:
                mapped.leave()
                raise
        self.files.append(mapped)
        self.directory_changes += 1
        return mapped

    def reserve(self, file: MappedFile, position: int) -> None:
        """Make ``file`` safe to write before ``position``.

        Most of ten thousand queues stay small: the first file of one in a pool doubles until a step is reached.

        Raises:
            StoreFullError, StoreError: see ``MappedFile.reserve``.
        """
        step = self.reserve_step_bytes
        if self.pool is not None and not file.start:
            step = min(step, file.reserved)
        file.reserve(position, step)

    def file_at(self, position: int) -> MappedFile | None:
        """Return the file that holds ``position`` of the sequence, or ``None``."""
        if not self.files:
            return None
        number = (position - self.files[0].start) // self.file_size
        return self.files[number] if 0 <= number < len(self.files) else None

    def write(self, position: int, content: bytes) -> None:
        """Write bytes into files that exist and may be written there, see ``reserve``.

        Raises:
            StoreError: a file cannot be mapped.
        """
        while content:
            file = self.file_at(position)
            assert file is not None, "there is room"
            at = position - file.start
            part = content[: file.size - at]
            file.map[at : at + len(part)] = part
            position += len(part)
            content = content[len(part) :]

    def expect_order(self, *, in_order: bool) -> None:
        """Enable or disable read-ahead for all files, see ``MappedFile.expect_order``."""
        for file in self.files:
            file.expect_order(in_order=in_order)

    def remove_from(self, number: int) -> int:
        """Delete the files from index ``number`` on and return how many they were.

        Raises:
            StoreError: one cannot be deleted; it and the ones before it are still there.
        """
        removed = 0
        while len(self.files) > number:
            self._unlink(self.files[-1])
            self.files.pop()
            removed += 1
        return removed

    def remove_oldest(self) -> MappedFile:
        """Delete the oldest file and return it: what readers hold of it stays valid, see ``MappedFile.release``.

        Raises:
            StoreError: it cannot be deleted; it is still there.
        """
        self._unlink(self.files[0])
        return self.files.pop(0)

    def sync_directory(self) -> None:
        """Wait until the directory's entries are on the disk; may run in a worker thread.

        Raises:
            StoreError: the disk reports an error.
        """
        with translated("sync", self.directory), suppress(FileNotFoundError):  # it was removed meanwhile
            self.file_system.sync_directory(self.directory)

    def remove_directory(self) -> None:
        """Delete all files and the directory itself; on the disk that is when the directory above was synced.

        Raises:
            StoreError: something cannot be deleted.  The sequence is empty; a later call deletes the rest.
        """
        for file in self.files:
            file.leave()
        self.files.clear()
        self.directory_changes += 1
        entries = list_store_directory(self.file_system, self.directory)
        names = sorted(entry.name for entry in entries if entry.is_file and _is_file_name(entry.name))
        for name in reversed(names):  # those that are left, if one cannot be deleted, have no gaps
            with translated("delete", self.directory / name):
                self.file_system.unlink(self.directory / name)
        with translated("delete", self.directory):
            if self.file_system.exists(self.directory):
                self.file_system.remove_directory(self.directory)

    def directories(self) -> Iterator[Path]:
        """Yield its directory and those above it up to the store's root: a name is on the disk when all of them are."""
        yield self.directory
        for path in self.directory.parents:
            yield path
            if path == self.scratch.parent:
                return

    def _discard(self, start: int, quarantine: Path | None) -> None:
        path = self._path(start)
        LOGGER.warning("file does not continue the sequence path=%s moved_to=%s", path, quarantine or "nowhere")
        with translated("remove", path):
            if quarantine is None:
                self.file_system.unlink(path)
            else:
                self.file_system.make_directories(quarantine)
                self.file_system.rename(path, quarantine / f"{self.directory.name}-{path.name}")

    def _unlink(self, file: MappedFile) -> None:
        with translated("delete", file.path):
            self.file_system.unlink(file.path)
        file.leave()
        self.directory_changes += 1

    def _path(self, start: int) -> Path:
        return self.directory / file_name(start)


def check_directory(
    directory: Path, entries: Iterable[DirectoryEntry], file_size: int, *, may_be_torn: bool = False
) -> FoundFiles:
    """Return which files a sequence has; changes nothing.

    Args:
        directory: where the files lie.
        entries: its content.
        file_size: bytes of each file.
        may_be_torn: a missing file is no error: names that were never on the disk get lost in any order.

    Raises:
        StoreLayoutError: an entry is no file of this sequence, has another size, or one is missing in between.
    """
    sizes: dict[int, int] = {}
    for name, is_file, _, size_bytes in entries:
        if not is_file or not _is_file_name(name):
            or_else = "" if is_file else ", or bring back what it leads to if it is a link"
            raise StoreLayoutError(f"{directory / name} is not a file of the store: move it elsewhere{or_else}")
        if size_bytes not in {0, file_size}:
            raise StoreLayoutError(
                f"{directory / name} has {size_bytes} bytes, the configured file size is {file_size}:"
                " open the store with the sizes it was written with"
            )
        start = int(name)
        if start % file_size:
            raise StoreLayoutError(
                f"{directory / name}: its name is no multiple of the configured file size {file_size}"
            )
        sizes[start] = size_bytes
    starts = sorted(sizes)
    good = 0
    while good < len(starts) and sizes[starts[good]] and starts[good] == starts[0] + good * file_size:
        good += 1
    stray = [start for start in starts[good:] if sizes[start]]
    if stray and not may_be_torn:
        missing = file_name(starts[0] + good * file_size)
        raise StoreLayoutError(f"{directory}: the file {missing} is missing or empty, but others follow it")
    return FoundFiles(starts[:good], [start for start in starts[good:] if not sizes[start]], stray)


def file_name(start: int) -> str:
    """Return the name of the file that begins at ``start``."""
    return f"{start:0{_NAME_DIGITS}d}"


def _is_file_name(name: str) -> bool:
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit() and int(name) <= _LARGEST_START
