"""One file of a fixed size, mapped as a whole.

The file is sparse; disk space is reserved ahead of the write position, because writing through a mapping where the
disk has no room kills the process (SIGBUS).  A file is never resized: views that readers hold keep the mapping alive,
also after the file was deleted.
"""

from mmap import mmap
from pathlib import Path
from typing import Final

from triomq.protocol.errors import StoreFullError
from triomq.storage.file_system import NO_SPACE, FileSystem, OpenFile, store_error, translated

_PAGE: Final = 4096
_COMPARED_AT_ONCE: Final = 256 * 1024
_ZEROS: Final = bytes(_COMPARED_AT_ONCE)


class MappedFile:
    """One mapped file of a sequence.

    Attributes:
        start: position of its first byte in the sequence; the file's name.
        size: length in bytes, in whole used by the mapping.
        reserved: everything before this position of the file may be written without the disk refusing it.
        map: the mapping, for writing.
        view: the same read-only; slices of it may be handed out and kept.
    """

    __slots__ = ("_file_system", "file", "map", "reserved", "size", "start", "view")

    def __init__(self, file_system: FileSystem, file: OpenFile, start: int, size: int) -> None:
        """Map ``file``; nothing is known to be reserved.

        Raises:
            StoreError: it cannot be mapped.
        """
        self._file_system = file_system
        self.file = file
        self.start = start
        self.size = size
        self.reserved = 0
        with translated("map", file.path):
            self.map: mmap = file_system.map_file(file, size)
        self.view = memoryview(self.map).toreadonly()

    @property
    def end(self) -> int:
        """Position of the sequence behind the file."""
        return self.start + self.size

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return self.file.path

    def modified_ms(self) -> int:
        """Return when the file was written last, ms.

        Raises:
            StoreError: that cannot be told.
        """
        with translated("look at", self.path):
            return self._file_system.modified_ms(self.file)

    def release(self) -> bool:
        """Unmap a file that has left its sequence; may run in a worker thread, for it can take long.

        Returns:
            ``False`` as long as a reader holds a view of it: call it again later.
        """
        self.view.release()
        try:
            self.map.close()
        except BufferError:  # views are exported
            return False
        return True

    def expect_order(self, *, in_order: bool) -> None:
        """Let the system read ahead of what is read through the mapping, as it does by default, or not."""
        self._file_system.expect_order(self.map, in_order=in_order)

    def assume_reserved(self, position: int) -> None:
        """Note that all before ``position`` has been written already."""
        self.reserved = max(self.reserved, position)

    def reserve(self, position: int, step_bytes: int) -> None:
        """Make everything before ``position`` safe to write; normally a whole step more.

        Raises:
            StoreFullError: the disk has not even room up to ``position``.
            StoreError: the file system refuses for another reason.
        """
        if position <= self.reserved:
            return
        start = self.reserved // _PAGE * _PAGE
        needed = min(-(-position // _PAGE) * _PAGE, self.size)
        step = step_bytes
        while True:
            end = min(max(needed, start + step), self.size)
            try:
                self._file_system.reserve(self.file, start, end - start)
            except OSError as exc:
                if exc.errno not in NO_SPACE:
                    raise store_error(exc, "reserve space in", self.path) from exc
                if end <= needed:
                    raise self._full(needed - start) from exc
                step //= 2
            else:
                self.reserved = end
                return

    def _full(self, needed_bytes: int) -> StoreFullError:
        try:
            free = f"{self._file_system.space(self.path.parent).available_bytes} bytes are free"
        except OSError as exc:
            free = f"free space unknown: {exc.strerror}"
        return StoreFullError(
            f"no space for {self.path}: {needed_bytes} bytes needed, {free};"
            " free space there or move StoreConfig.root (--store) to another disk"
        )

    def find(self, pattern: bytes, position: int) -> int:
        """Return where ``pattern``, without zero bytes, stands next, from ``position`` on, or -1.

        Holes of the file are not read, not even one byte: in a full tmpfs that kills the process.

        Raises:
            StoreError: reading failed.
        """
        with translated("read", self.path):
            for start, end in self._file_system.data_ranges(self.file, position, self.size):
                found = self.map.find(pattern, start, end)
                if found >= 0:
                    return found
        return -1

    def zero_from(self, position: int) -> int:
        """Make everything from ``position`` on zeros, on disk too, and return how many bytes were touched.

        What is zero already is not written, so a sparse file stays sparse and a good one unchanged.

        Raises:
            StoreError: reading or writing failed.
        """
        touched = 0
        with translated("clear the end of", self.path):
            for start, end in self._file_system.data_ranges(self.file, position, self.size):
                for at in range(start, end, _COMPARED_AT_ONCE):
                    stop = min(at + _COMPARED_AT_ONCE, end)
                    if self.map[at:stop] != _ZEROS[: stop - at]:  # bytes: a view is compared one by one
                        self._file_system.zero(self.file, at, stop - at)
                        touched += stop - at
        return touched
