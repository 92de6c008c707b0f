"""One file of a fixed size, mapped as a whole, and the pool that limits how many files are mapped at once.

The file is sparse; disk space is reserved ahead of the write position, because a write through a mapping kills the
process (SIGBUS) if the disk has no room.  A file is never resized: views that readers hold keep the mapping alive, also
after the file was deleted.

Each mapping holds an open file.  A store can have tens of thousands of consume queues, most of them idle; a process may
open a few thousand files, and its connections need some of them.  So a file of a ``MappingPool`` may be unmapped at any
time, and is mapped again when it is needed.  Besides its mapping it holds no open file.
"""

import resource
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Final

from triomq.protocol.errors import StoreError
from triomq.storage.files.file_system import NO_SPACE, FileSystem, OpenFile, store_error, translated

MIN_MAPPED_FILES: Final = 64
"""So many files added last are mapped still: one step may use a quarter as many queues, each with two files."""

_MAX_MAPPED_FILES: Final = 32_768  # half of the mappings that Linux allows a process (vm.max_map_count)
_LEFT_FOR_OTHERS: Final = 256  # open files, if the limit allows


class MappingPool:
    """The mapped files among those that may be unmapped; when they are too many, the one mapped first goes.

    A file that is used again is mapped again, which takes some 20 us.  No use is noted, as that would cost every use
    something: a busy file is unmapped too, once per ``limit`` mappings of others.
    """

    def __init__(self, limit: int) -> None:
        """Allow ``limit`` mapped files, or ``MIN_MAPPED_FILES`` if that is more."""
        self.limit = max(limit, MIN_MAPPED_FILES)
        self._files: dict[MappedFile, None] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: "MappedFile") -> None:
        """Note that a file was mapped, or must stay mapped while others are mapped in the same step."""
        self._files.pop(file, None)
        self._files[file] = None
        if len(self._files) > self.limit:
            next(iter(self._files)).unmap()

    def discard(self, file: "MappedFile") -> None:
        """Note that a file is mapped no more, or has left its sequence."""
        self._files.pop(file, None)


def affordable_mappings() -> int:
    """Return the limit of mapped files: three quarters of the open files that this process may have now.

    Where it may have few, it is fewer, and may be less than nothing.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_MAPPED_FILES
    return min(limit * 3 // 4, limit - _LEFT_FOR_OTHERS, _MAX_MAPPED_FILES)


_PAGE: Final = 4096
_COMPARED_AT_ONCE: Final = 256 * 1024
_ZEROS: Final = bytes(_COMPARED_AT_ONCE)


class MappedFile:
    """One mapped file of a sequence.

    Attributes:
        start: position of its first byte in the sequence; the file's name.
        size: length in bytes, in whole used by the mapping.
        path: where it is.
        pool: shared with others, if it may be unmapped.
        reserved: everything before this position of the file may be written without the disk refusing it.
        filled: everything before this position was written once, by ``fill`` with zeros at least.
        on_unmap: called with the file after the pool unmapped it, so that a holder of ``map`` drops it.
    """

    def __init__(
        self,
        file_system: FileSystem,
        file: OpenFile | Path,
        start: int,
        size: int,
        pool: MappingPool | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        """Map ``file``; nothing is known to be reserved.

        With a ``pool`` it may be unmapped, and ``file`` is closed; else it stays mapped and open.  One of which only
        the path is given is opened and mapped when it is needed.  ``in_order``: see ``expect_order``.

        Raises:
            StoreError: it cannot be mapped.
        """
        self._file_system = file_system
        self.pool = pool
        self._open_file = file if pool is None and isinstance(file, OpenFile) else None
        self._in_order = in_order
        self.on_unmap: Callable[[MappedFile], None] | None = None
        self.path = file.path if isinstance(file, OpenFile) else file
        self.start = start
        self.size = size
        self.reserved = self.filled = 0
        self._map: mmap | None = None
        self._view: memoryview | None = None
        if isinstance(file, OpenFile):
            self._remap(file)

    @property
    def map(self) -> mmap:
        """The mapping, for writing.

        Raises:
            StoreError: it was unmapped, and cannot be mapped again.
        """
        return self._map if self._map is not None else self._remap(self.file)

    @property
    def view(self) -> memoryview:
        """The same read-only; slices of it may be handed out and kept.

        Raises:
            StoreError: as ``map``.
        """
        if self._view is None:
            self._remap(self.file)
            assert self._view is not None, "it is mapped now"
        return self._view

    @property
    def file(self) -> OpenFile:
        """The open file; that of a pool is opened for each caller.

        Raises:
            StoreError: it cannot be opened.
        """
        with translated("open", self.path):
            return self._open_file or self._file_system.open_file(self.path)

    def file_if_there(self) -> OpenFile | None:
        """The same, ``None`` if it was deleted and is open nowhere any more; may be called in any thread.

        Raises:
            StoreError: it cannot be opened.
        """
        with translated("open", self.path):
            try:
                return self._open_file or self._file_system.open_file(self.path)
            except FileNotFoundError:
                return None

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from the disk, without a mapping; "" if the file was deleted; may be called in any thread.

        Raises:
            StoreError: it cannot be read, or it was truncated.
        """
        file = self.file_if_there()
        if file is None:
            return b""
        with translated("read", self.path):
            content = self._file_system.read(file, start, length)
        if len(content) < length:
            raise StoreError(f"cannot read {self.path}: no data at {start}, the file was truncated")
        return content

    @property
    def is_mapped(self) -> bool:
        """Whether it uses an open file and address space."""
        return self._map is not None

    def ensure_mapped(self) -> None:
        """Map the file again if it was unmapped, and keep it mapped while the next few files are mapped.

        Raises:
            StoreError: it cannot be mapped.
        """
        if self._map is None:
            self._remap(self.file)
        elif self.pool is not None:
            self.pool.add(self)

    def unmap(self) -> None:
        """Drop the mapping, which ends with its last view; only for a file of a pool."""
        assert self.pool is not None, "others have no way to be mapped again"
        self.pool.discard(self)
        self._map = self._view = None
        if self.on_unmap is not None:
            self.on_unmap(self)

    def _remap(self, file: OpenFile) -> mmap:
        with translated("map", self.path):
            map_ = self._file_system.map_file(file, self.size)
        self._map = map_
        self._view = memoryview(map_).toreadonly()
        if not self._in_order:
            self._file_system.expect_order(map_, in_order=False)
        if self.pool is not None:
            self.pool.add(self)
        return map_

    @property
    def end(self) -> int:
        """Position of the sequence after the file."""
        return self.start + self.size

    def modified_ms(self) -> int:
        """Return when the file was written last, ms.

        Raises:
            StoreError: the time is unknown.
        """
        with translated("look at", self.path):
            return self._file_system.modified_ms(self.file)

    def leave(self) -> None:
        """Leave the pool because the file was deleted: from now on only ``release`` ends its mapping."""
        if self.pool is not None:
            self.pool.discard(self)
            self.on_unmap = None

    def release(self) -> bool:
        """Unmap a file that has left its sequence; may run in a worker thread, for it can take long.

        Returns:
            ``False`` as long as a reader holds a view of it: call it again later.
        """
        if self._map is None or self._view is None:
            return True
        self._view.release()
        try:
            self._map.close()
        except BufferError:  # views are exported
            return False
        return True

    def expect_order(self, *, in_order: bool) -> None:
        """Enable or disable read-ahead for accesses through the mapping; it is enabled by default.

        This helps readers that read a file from its start.  A write into a part that was never written would wait until
        up to 8 MiB after it were filled with zeros: 20 to 30 ms, for a file of 6 MB all of it.
        """
        self._in_order = in_order
        if self._map is not None:
            self._file_system.expect_order(self._map, in_order=in_order)

    def assume_reserved(self, position: int) -> None:
        """Note that all before ``position`` has been written already."""
        self.reserved = max(self.reserved, position)
        self.filled = max(self.filled, position)

    def reserve(self, position: int, step_bytes: int) -> None:
        """Make everything before ``position`` safe to write; normally a whole step more.

        Raises:
            StoreFullError: the disk has not even room up to ``position``.
            StoreError: another error of the file system.
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
                if exc.errno not in NO_SPACE or end <= needed:
                    raise store_error(exc, f"reserve {needed - start} bytes in", self.path) from exc
                step //= 2
            else:
                self.reserved = end
                return

    def fill(self, position: int, step_bytes: int, piece_bytes: int) -> None:
        """Write zeros from where the file was never written up to ``position`` and the next multiple of a step.

        The first write to a page of a reserved file through a mapping is several times as expensive as after this:
        the system finds, clears and notes each page alone.  And the blocks were written once, which saves the next
        flush a note in the journal of the file system.  No more is filled than is reserved.

        Args:
            position: of the file, up to which it must be filled.
            step_bytes: multiples of it are where the zeros end.
            piece_bytes: the system keeps the pages of one call together, and flushes all of them if one was changed.

        Raises:
            StoreFullError, StoreError: the disk reports an error.
        """
        if position <= self.filled:
            return
        end = min(-(-position // step_bytes) * step_bytes, max(self.reserved, position), self.size)
        with translated("write zeros to", self.path):
            while self.filled < end:
                stop = min((self.filled // piece_bytes + 1) * piece_bytes, end)
                self._file_system.zero(self.file, self.filled, stop - self.filled)
                self.filled = stop

    def find(self, pattern: bytes, position: int) -> int:
        """Return where ``pattern``, without zero bytes, occurs next, from ``position`` on, or -1.

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
