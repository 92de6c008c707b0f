"""Read old messages without a page fault in the thread that serves all clients.

Problem: a page of a mapped file that is not in memory is read while the thread that touches it is blocked.  On a slow
disk that is a stall for every client, and a read error kills the process (SIGBUS).

Rejected: ``pread`` for every read, which copies each message.  A worker thread for each read, although most need no
disk.  ``madvise`` alone, which starts to read but does not say when a page is there.

So before a read the kernel is asked whether the pages are in memory (``mincore``).  Those that are not are read with
``pread`` in a worker thread, where a failure raises an error.  A read that may wait is ``Work``: it yields the ranges
that it needs in memory before it continues, so that its caller decides which task waits for the disk.

Invariant: no code on the event loop touches a page of the log or of a queue that this process did not write lately and
that ``ColdReads`` did not find in memory just before.

Price: recently written data is in memory, so the usual read costs two comparisons.  For older data the kernel is asked
about one window at a time.  Its answer for a whole window is remembered for 0.2 s: a consumer that catches up asks once
for many reads.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from triomq.protocol.errors import StoreError
from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, HALVED_UNIT, REPEATED, UNIT, UNIT_SIZE
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import DiskWork, FileSystem, translated
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.reading.get_message import TagCodes

Found = TypeVar("Found")

_HEAD_BYTES: Final = 4096  # of a record whose length is not known: most records are in it as a whole
_LOG_ROUNDS: Final = 2  # the heads of records, then the rest
_READ_ROUNDS: Final = 4  # units, records, and once more if memory was so short that they were evicted
_UNITS_SCANNED: Final = 800  # of one read with a filter, or as many as messages are wanted: see get_message
_UNITS_IN_ONE_PAGE: Final = 200
_READ_AHEAD_BYTES: Final = 1024 * 1024  # a consumer of old messages reads the following ones next
_LENGTH_BYTES: Final = 4
_GAP_BYTES: Final = 64 * 1024  # records nearer than that are asked for together
_WINDOW_BYTES: Final = 1024 * 1024
_MAX_WINDOWS: Final = 8  # of one read
_MAX_REMEMBERED: Final = 1024
_MAX_WINDOWS_REMEMBERED: Final = 16 * 1024  # 16 GiB, in some MB of memory
_REMEMBERED_S: Final = 0.2
_UNITS_REMEMBERED: Final = 512
_NEVER: Final = (0, 0, 0.0)
_BLANK_SIZE: Final = UNIT.unpack(BLANK_UNIT)[1]
_iter_units = HALVED_UNIT.iter_unpack


class ColdRange(NamedTuple):
    """A part of a file that is not in memory; it can be read also after the file was deleted."""

    file: MappedFile
    start: int
    end: int
    ahead_to: int = 0  # the kernel may read ahead up to here


Needed = Sequence[ColdRange | DiskWork]

Work = Generator[Needed, None, Found]
"""Work in small items: after each it yields what must be read, or which calls be made, before it continues.

The caller decides who waits for the disk, and between two items may do something else.  An error of the disk is raised
at the ``yield``.
"""

PAUSE: Final[Needed] = ()
"""Yielded by work that needs nothing from the disk, where others may run."""


def finish(work: Work[Found]) -> Found:
    """Do work to its end, and wait here for the disk if necessary."""
    error: StoreError | None = None
    while True:
        try:
            needed = next(work) if error is None else work.throw(error)
        except StopIteration as done:
            found: Found = done.value
            return found
        try:
            read_ranges([each for each in needed if isinstance(each, DiskWork)])
            error = None
        except StoreError as exc:
            error = exc


class ColdReads:
    """Finds what must be read from the disk before messages can be returned."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, file_system: FileSystem, clock_s: Callable[[], float]
    ) -> None:
        """Prepare for a store; ``clock_s`` is monotonic, seconds.

        What an earlier process wrote, or this one long ago, may be on disk only.
        """
        self._clock_s = clock_s
        self._log = log
        self._config = config
        self._file_system = file_system
        self._warm_until: dict[tuple[int, int], float] = {}  # file's id and number of a window
        self._warm_reads: dict[int, tuple[int, int, float]] = {}  # queue's id: start and end of its warm messages

    def find(
        self, queue: ConsumeQueue, queue_offset: int, max_msg_nums: int, codes: TagCodes, max_bytes: int | None = None
    ) -> list[ColdRange]:
        """Return the ranges that ``get_message`` with the same arguments needs and memory lacks, usually none.

        Read it, and ask again: only when the units of the queue are in memory the records they name are known.
        """
        begin, end, until = self._warm_reads.get(id(queue), _NEVER)
        looked_at = max_msg_nums if codes is None else max(max_msg_nums, _UNITS_SCANNED)
        if begin <= queue_offset < end - looked_at and self._clock_s() < until:
            return []
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return []
        hot_from = self.hot_from()
        if queue.max_physical_offset > hot_from and queue.max_offset - queue_offset < _UNITS_IN_ONE_PAGE:
            unit = queue.unit(queue_offset)
            if unit is not None and unit.physical_offset >= hot_from:
                return []
        return self._ask(queue, queue_offset, max_msg_nums, codes, max_bytes)

    def rest(self, *arguments: *tuple[ConsumeQueue, int, int, TagCodes, int | None]) -> Work[None]:
        """Continue where ``find`` with these arguments has found something, and that was read."""
        for _ in range(_READ_ROUNDS - 1):
            ranges = self.find(*arguments)
            if not ranges:
                return
            yield ranges

    def load_units(self, queue: ConsumeQueue, queue_offset: int, count: int = 1) -> Work[None]:
        """Load the units of some messages."""
        if cold := list(self._cold_units(queue, queue_offset, count)):
            yield cold

    def load_records(self, physical_offsets: Sequence[int]) -> Work[None]:
        """Load the records at these offsets, if there are any."""
        for _ in range(_LOG_ROUNDS):
            if found := list(filter(None, map(self._cold_record, physical_offsets))):
                yield found

    def load_log(self, begin: int) -> Work[int]:
        """Load some of the log from an offset on; return up to where it is in memory."""
        file = self._log.files.file_at(begin) if begin < self.hot_from() else None
        if file is None:
            return self._log.max_offset
        start = begin - file.start
        end = min(start + _WINDOW_BYTES, file.size, self._log.max_offset - file.start)
        if not self._is_warm(file, start, end, self._log.max_offset - file.start):
            yield _with_read_ahead([ColdRange(file, start, end)])
        return file.start + end

    def load_messages(self, queue: ConsumeQueue, queue_offsets: Sequence[int], most_bytes: int) -> Work[None]:
        """Load units and records of some messages of a queue, up to ``most_bytes`` of records."""
        oldest = min(queue_offsets)
        yield from self.load_units(queue, oldest)
        unit = queue.unit(oldest)
        if unit is None or unit.physical_offset >= self.hot_from() or self._is_warm_run(queue, queue_offsets):
            return
        if cold := [part for queue_offset in queue_offsets for part in self._cold_units(queue, queue_offset, 1)]:
            yield cold
        places = []
        for unit in map(queue.unit, queue_offsets):
            if unit is not None and not unit.is_lost:
                places.append((unit.physical_offset, unit.size))
                most_bytes -= unit.size
            if most_bytes < 0:
                break
        if cold := self._cold_records(places):
            yield cold

    def _is_warm_run(self, queue: ConsumeQueue, queue_offsets: Sequence[int]) -> bool:
        """Whether the messages follow one another and are in memory: the usual case, and no look at each of them."""
        first, count = queue_offsets[0], len(queue_offsets)
        if list(queue_offsets) != list(range(first, first + count)):
            return False
        units = queue.units_from(first, count)
        if units is None or len(units) != count * UNIT_SIZE or any(self._cold_units(queue, first, count)):
            return False
        return self._are_records_warm(units)

    def hot_from(self) -> int:
        """Return the physical offset from which on the log is in memory, as this process wrote it lately."""
        return max(self._log.max_offset - self._config.hot_bytes, self._log.own_from)

    def _cold_units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> Iterator[ColdRange]:
        end_offset = queue_offset + count
        while (units := queue.units_from(queue_offset, end_offset - queue_offset)) is not None:
            file = queue.files.file_at(queue_offset * UNIT_SIZE)
            assert file is not None, "it has units"
            start = queue_offset * UNIT_SIZE - file.start
            if not self._is_resident(file, start, start + len(units)):
                yield ColdRange(file, start, start + len(units))
            queue_offset += len(units) // UNIT_SIZE

    def _cold_record(self, physical_offset: int) -> ColdRange | None:
        """Return the cold range of a record whose length is unknown until its head is in memory."""
        log = self._log
        file = log.files.file_at(physical_offset) if physical_offset < self.hot_from() else None
        if file is None or physical_offset >= log.max_offset:
            return None
        start, limit = physical_offset - file.start, min(file.end, log.max_offset) - file.start
        end = min(start + _HEAD_BYTES, limit)
        if self._is_resident(file, start, end):
            end = min(start + max(int.from_bytes(file.view[start : start + _LENGTH_BYTES]), 0), limit)
        return None if self._is_resident(file, start, end) else ColdRange(file, start, end)

    def _ask(
        self, queue: ConsumeQueue, queue_offset: int, max_msg_nums: int, codes: TagCodes, max_bytes: int | None
    ) -> list[ColdRange]:
        looked_at = max(max_msg_nums, 1 if codes is None else _UNITS_SCANNED)
        units = queue.units_from(queue_offset, max(looked_at, _UNITS_REMEMBERED))
        file = queue.files.file_at(queue_offset * UNIT_SIZE)
        if units is None or file is None:
            return []
        start = queue_offset * UNIT_SIZE - file.start
        written_to = min(queue.max_offset * UNIT_SIZE - file.start, file.size)
        are_units_warm = self._is_warm(file, start, start + len(units), written_to)
        if are_units_warm and self._are_records_warm(units):
            if len(self._warm_reads) >= _MAX_REMEMBERED:
                self._warm_reads.clear()
            until = self._clock_s() + _REMEMBERED_S
            self._warm_reads[id(queue)] = queue_offset, queue_offset + len(units) // UNIT_SIZE, until
            return []
        units = units[: looked_at * UNIT_SIZE]
        end = start + len(units)
        if not (are_units_warm or self._is_resident(file, start, end)):
            return _with_read_ahead([ColdRange(file, start, end)])
        if (codes is None and self._are_windows_warm(units, max_bytes)) or self._are_records_warm(units):
            return []
        return _with_read_ahead(self._cold_records(self._wanted(units, max_msg_nums, codes, max_bytes)))

    def _wanted(
        self, units: memoryview, max_msg_nums: int, codes: TagCodes, max_bytes: int | None
    ) -> list[tuple[int, int]]:
        """Return offset and size of the records that one read gives at most."""
        most, room = self._config.transfer_limits(max_bytes)
        most = min(max_msg_nums, most)
        found: list[tuple[int, int]] = []
        for offset, size, upper, code in _iter_units(units):
            if size <= 0 or size == _BLANK_SIZE or upper == REPEATED or (codes is not None and code not in codes):
                continue
            if found and (len(found) >= most or size > room):
                break
            found.append((offset, size))
            room -= size
        return found

    def _cold_records(self, places: Sequence[tuple[int, int]]) -> list[ColdRange]:
        """Return the cold ranges of records, given by offset and size.

        Of thousands of queues each has its records far apart, but in the same windows as the others: these are asked
        for until one is not in memory as a whole.
        """
        found: list[ColdRange] = []
        log_end = self._log.max_offset
        ask_for_windows = True
        for begin, end in _joined(places, self._log.files.file_size):
            file = self._log.files.file_at(begin)
            if file is None or end > log_end:  # deleted or damaged: the read reports it
                continue
            start, end = begin - file.start, min(end - file.start, file.size)
            ask_for_windows = ask_for_windows and self._is_warm(file, start, end, log_end - file.start)
            if not ask_for_windows and not self._is_resident(file, start, end):
                found.append(ColdRange(file, start, end))
        return found

    def _are_windows_warm(self, units: memoryview, max_bytes: int | None) -> bool:
        """Whether all records that one read gives lie in windows that were just now in memory; nothing is asked."""
        now, warm_until = self._clock_s(), self._warm_until
        _, room = self._config.transfer_limits(max_bytes)
        file_id = begin = end = 0
        for offset, size, upper, _ in _iter_units(units):
            if not begin <= offset < end:
                file = self._log.files.file_at(offset)
                if file is None:
                    return False
                file_id, begin, end = id(file), file.start, file.end
            if not 0 < size <= _WINDOW_BYTES or upper == REPEATED:
                return False
            first, last = (offset - begin) // _WINDOW_BYTES, (offset + size - 1 - begin) // _WINDOW_BYTES
            if warm_until.get((file_id, first), 0.0) < now:
                return False
            if last != first and warm_until.get((file_id, last), 0.0) < now:
                return False
            room -= size
            if room <= 0:
                break
        return True

    def _are_records_warm(self, units: memoryview) -> bool:
        """Whether everything between the first and the last record of some units is in memory."""
        begin, _, _, _ = HALVED_UNIT.unpack_from(units)
        last, size, _, _ = HALVED_UNIT.unpack_from(units, len(units) - UNIT_SIZE)
        file, end = self._log.files.file_at(begin), last + size
        if file is None or not begin < end <= min(file.end, self._log.max_offset):
            return False
        if end - begin > _MAX_WINDOWS * _WINDOW_BYTES:
            return False
        return self._is_warm(file, begin - file.start, end - file.start, self._log.max_offset - file.start)

    def _is_warm(self, file: MappedFile, start: int, end: int, written_to: int) -> bool:
        """Whether all windows that hold a part of [start, end) are or were just now in memory, as far as written."""
        now, number = self._clock_s(), start // _WINDOW_BYTES
        while number * _WINDOW_BYTES < end:
            key = (id(file), number)
            if self._warm_until.get(key, 0.0) < now:
                begin = number * _WINDOW_BYTES
                if not self._is_resident(file, begin, min(begin + _WINDOW_BYTES, file.size, written_to)):
                    return False
                if len(self._warm_until) >= _MAX_WINDOWS_REMEMBERED:
                    self._warm_until.clear()
                self._warm_until[key] = now + _REMEMBERED_S
            number += 1
        return True

    def _is_resident(self, file: MappedFile, start: int, end: int) -> bool:
        return self._file_system.is_resident(file.map, start, end)


def _joined(records: Sequence[tuple[int, int]], file_size: int) -> list[tuple[int, int]]:
    """Return start and end of records, those together that lie near one another in one file."""
    parts: list[tuple[int, int]] = []
    for offset, size in records:
        if parts and 0 <= offset - parts[-1][1] <= _GAP_BYTES and offset // file_size == parts[-1][0] // file_size:
            parts[-1] = (parts[-1][0], offset + size)
        else:
            parts.append((offset, offset + size))
    return parts


def _with_read_ahead(parts: list[ColdRange]) -> list[ColdRange]:
    if parts:
        last = parts[-1]
        parts[-1] = last._replace(ahead_to=min(last.end + _READ_AHEAD_BYTES, last.file.size))
    return parts


def read_ranges(ranges: Needed, file_system: FileSystem | None = None) -> None:
    """Load ranges into memory, start reading ahead what may be wanted next, and make calls; in a worker thread.

    Raises:
        StoreError: the disk cannot read: touching these pages would kill the process; or a call raised it.
    """
    files = file_system or FileSystem()
    for each in ranges:
        if isinstance(each, DiskWork):
            each.run()
            continue
        file, start, end, ahead_to = each
        open_file = file.file_if_there()
        if open_file is None:  # deleted meanwhile: the next call notices
            continue
        with translated("read", file.path):
            files.read_into_memory(open_file, start, end)
        if ahead_to > end:
            with translated("read ahead in", file.path):
                files.read_ahead(open_file, end, ahead_to)
