"""The index files of one store, from the oldest to the newest: found, made, mapped and deleted.

Source: IndexService.java; store.md 5.4, 5.7.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from triomq.protocol.errors import IndexDamagedError
from triomq.protocol.record.index_unit import IndexHeader
from triomq.storage.config import StoreConfig
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.files.mapped_file_queue import SCRATCH
from triomq.storage.index.index_file import NO_UNITS, IndexFile, IndexLayout, list_index_files, open_index_file

LOGGER: Final = logging.getLogger("triomq.storage.index.index_files")

_MAX_MAPPED_FILES: Final = 4


class IndexFiles:
    """The files of an index.

    Attributes:
        all: the files, oldest first.
        directory: where they are; need not exist before the first file.
    """

    def __init__(self, config: StoreConfig, file_system: FileSystem, clock_ms: Callable[[], int]) -> None:
        """Describe the files of a store; ``clock_ms`` gives the names of new ones.  Opens nothing."""
        self._file_system = file_system
        self._layout = IndexLayout(config.index_slots, config.index_units)
        self._scratch = config.root / SCRATCH
        self._clock_ms = clock_ms
        self._mapped: dict[IndexFile, None] = {}  # with the newest file; the most recently used one last
        self.all: list[IndexFile] = []
        self.directory = config.root / "index"

    @property
    def newest_header(self) -> IndexHeader:
        """Header of the newest file, else that of an empty one."""
        return self.all[-1].header if self.all else NO_UNITS

    def load(self, check: Callable[[IndexFile], None]) -> list[str]:
        """Open the files on the disk; delete the first one that ``check`` rejects and all later ones.

        Returns:
            The names of the deleted files.

        Raises:
            StoreError: a file cannot be read or deleted.
        """
        entries = list_index_files(self._file_system, self.directory)
        paths = [self.directory / entry.name for entry in entries]
        for number, entry in enumerate(entries):
            try:
                file = open_index_file(self._file_system, self._layout, paths[number], entry.size_bytes)
                check(file)
            except IndexDamagedError as exc:
                return self._delete(paths[number:], exc)
            self.all.append(file)
        return []

    def writable(self) -> IndexFile:
        """Return the newest file; make another one if it is full or missing.

        Raises:
            StoreError: the file cannot be made.
        """
        if self.all and self.all[-1].room:
            return self.all[-1]
        now_ms = self._clock_ms()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        header = NO_UNITS
        if self.all:
            end_timestamp, end_offset = self.newest_header.end_timestamp, self.newest_header.end_physical_offset
            header = IndexHeader(end_timestamp, end_timestamp, end_offset, end_offset, 0, 1)
            if name <= (newest := self.all[-1].path.name):  # the clock was set back
                name = str(int(newest) + 1).zfill(len(newest))
        file = IndexFile(self._file_system, self._layout, self.directory / name, header)
        file.create(self._scratch)
        self.all.append(file)
        self.keep_mapped(file)
        return file

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete files all of whose records are before this offset, but never the newest; return how many.

        Raises:
            StoreError: a file cannot be deleted.
        """
        deleted = 0
        while len(self.all) > 1 and self.all[0].header.end_physical_offset < min_physical_offset:
            self.all[0].delete()
            self._forget(self.all[0])
            deleted += 1
        return deleted

    def delete_from(self, first: IndexFile, reason: IndexDamagedError) -> list[str]:
        """Delete ``first`` and all later files; return their names.

        Raises:
            StoreError: a file cannot be deleted.
        """
        files = self.all[self.all.index(first) :]
        removed = self._delete([file.path for file in files], reason)
        for file in files:
            self._forget(file)
        return removed

    def keep_mapped(self, file: IndexFile) -> None:
        """Note a use of ``file``; unmap the least recently used files, but not the newest, which is written."""
        self._mapped.pop(file, None)
        self._mapped[file] = None
        for old in [old for old in self._mapped if old is not self.all[-1]][:-_MAX_MAPPED_FILES]:
            del self._mapped[old]
            old.unmap()

    def _delete(self, paths: Sequence[Path], reason: IndexDamagedError) -> list[str]:
        """Delete files, the newest first, so that no file is ever missing between others; return their names."""
        names = [path.name for path in paths]
        LOGGER.warning("index files are rebuilt from the commit log files=%s reason=%s", ",".join(names), reason)
        for path in reversed(paths):
            with translated("delete", path):
                self._file_system.unlink(path)
        return names

    def _forget(self, file: IndexFile) -> None:
        self.all.remove(file)
        self._mapped.pop(file, None)
