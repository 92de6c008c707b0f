"""Reading old messages without a page fault in the thread that serves everybody.

A page of a mapped file that is not in memory is read while the thread that touches it stands still, and a disk that
cannot read it kills the process (SIGBUS).  So before a read the kernel is asked whether the pages are there
(``mincore``); those that are not are read with ``pread`` in a worker thread, where a failure is an error.

What was written a moment ago is in memory, and nobody is asked: the usual read costs two comparisons more.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.consume_queue_unit import UNIT_SIZE
from triomq.storage.commit_log import CommitLog
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue import ConsumeQueue
from triomq.storage.file_system import FileSystem, translated
from triomq.storage.mapped_file import MappedFile

_UNITS_SCANNED: Final = 800  # of one read, see get_message
_UNITS_IN_ONE_PAGE: Final = 200
_READ_AHEAD_BYTES: Final = 1024 * 1024  # a consumer of old messages goes on with those behind
_GAP_BYTES: Final = 64 * 1024  # records nearer than that are asked for together
_iter_units = Struct(">qi4xi").iter_unpack


class ColdRange(NamedTuple):
    """A part of a file that is not in memory; it can be read also after the file was deleted."""

    file: MappedFile
    start: int
    end: int


class ColdReads:
    """Tells what must be read from the disk before messages can be."""

    __slots__ = ("_config", "_file_system", "_log", "_opened_at")

    def __init__(self, log: CommitLog, config: StoreConfig, file_system: FileSystem | None = None) -> None:
        """Prepare for a store that has just been opened: what is older than now may be on disk only."""
        self._log = log
        self._config = config
        self._file_system = file_system or FileSystem()
        self._opened_at = log.max_offset

    def find(
        self, queue: ConsumeQueue, queue_offset: int, max_msg_nums: int, codes: frozenset[int] | None
    ) -> list[ColdRange]:
        """Return what ``get_message`` with the same arguments would have to wait for, mostly nothing.

        Read it, and ask again: only when the units of the queue are in memory the records they name are known.
        """
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return []
        hot_from = max(self._log.max_offset - self._config.hot_bytes, self._opened_at)
        if queue.max_physical_offset > hot_from and queue.max_offset - queue_offset < _UNITS_IN_ONE_PAGE:
            unit = queue.unit(queue_offset)
            if unit is not None and unit.physical_offset >= hot_from:
                return []
        return self._ask(queue, queue_offset, max_msg_nums, codes)

    def _ask(
        self, queue: ConsumeQueue, queue_offset: int, max_msg_nums: int, codes: frozenset[int] | None
    ) -> list[ColdRange]:
        units = queue.units_from(queue_offset, _UNITS_SCANNED if codes is not None else max(max_msg_nums, 1))
        file = queue.files.file_at(queue_offset * UNIT_SIZE)
        if units is None or file is None:
            return []
        start = queue_offset * UNIT_SIZE - file.start
        if cold := self._cold_part(file, start, start + len(units)):
            return [cold]
        wanted = self._wanted(units, max_msg_nums, codes)
        parts = (self._cold_record_part(begin, end) for begin, end in _joined(wanted))
        return [part for part in parts if part is not None]

    def _wanted(self, units: memoryview, max_msg_nums: int, codes: frozenset[int] | None) -> list[tuple[int, int]]:
        """Return offset and size of the records that one read gives at most."""
        config = self._config
        most, room = min(max_msg_nums, config.max_transfer_count_in_memory), config.max_transfer_bytes_in_memory
        found: list[tuple[int, int]] = []
        for offset, size, code in _iter_units(units):
            if size <= 0 or (codes is not None and code not in codes):
                continue
            if found and (len(found) >= most or size > room):
                break
            found.append((offset, size))
            room -= size
        return found

    def _cold_record_part(self, begin: int, end: int) -> ColdRange | None:
        file = self._log.files.file_at(begin)
        if file is None or end > self._log.max_offset:  # deleted, or damaged: the read will tell
            return None
        return self._cold_part(file, begin - file.start, min(end - file.start, file.size))

    def _cold_part(self, file: MappedFile, start: int, end: int) -> ColdRange | None:
        return None if self._file_system.is_resident(file.map, start, end) else ColdRange(file, start, end)


def _joined(records: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return begin and end of records, those together that lie near one another."""
    parts: list[tuple[int, int]] = []
    for offset, size in records:
        if parts and 0 <= offset - parts[-1][1] <= _GAP_BYTES:
            parts[-1] = (parts[-1][0], offset + size)
        else:
            parts.append((offset, offset + size))
    return parts


def read_ranges(ranges: Sequence[ColdRange], file_system: FileSystem | None = None) -> None:
    """Bring ranges into memory, and let the kernel begin with what follows them; in a worker thread.

    Raises:
        StoreError: the disk cannot read: touching these pages would kill the process.
    """
    files = file_system or FileSystem()
    for file, start, end in ranges:
        with translated("read", file.path):
            files.read_into_memory(file.file, start, end)
    file, _, end = ranges[-1]
    with translated("read ahead in", file.path):
        files.read_ahead(file.file, end, min(end + _READ_AHEAD_BYTES, file.size))
