"""Walk over the records of the commit log, from a place where one begins to the last one that is good.

``LogScan`` decides which bytes are damage and where the log continues.  ``walk`` and ``find_ends`` use it on a stopped
store, whose end is unknown.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from triomq.protocol.record.intact_record import IntactWalk
from triomq.protocol.record.layout import MESSAGE_MAGIC, head_offset
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.damage import DamagedPart
from triomq.storage.files.file_system import FileSystem, translated

Progress = Callable[[int, int], None]
"""Called with the bytes scanned so far and the bytes there may be at most."""

LOGGER: Final = logging.getLogger("triomq.storage.commit_log.log_scan")

_MIB: Final = 1024**2
_PROGRESS_STEP_BYTES: Final = 16 * _MIB
_PROGRESS_LOG_S: Final = 3.0
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, signed=True)
_MAGIC_AT: Final = head_offset("magic")


class ProgressLog:
    """Logs the progress of a long walk now and then: pass it as ``progress``."""

    __slots__ = ("_clock_s", "_next_s")

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._next_s = clock_s() + _PROGRESS_LOG_S

    def __call__(self, done_bytes: int, most_bytes: int) -> None:
        """Log the progress if enough time has passed; see ``Progress``."""
        now = self._clock_s()
        if now >= self._next_s:
            self._next_s = now + _PROGRESS_LOG_S
            LOGGER.info("reading the commit log scanned_mib=%d total_mib=%d", done_bytes // _MIB, most_bytes // _MIB)


class LogScan:
    """One walk; iterating it gives each message with its physical offset.

    After damage it continues at the next record that proves itself, see ``damage``.

    Attributes:
        start: where the walk starts.
        end: end of the last good record so far; a blank record counts up to the next file.
        records: how many messages were seen.
        store_timestamp: of the last one, ms; 0 without one.
        damage: the parts that were skipped.
        stopped_by: why the walk has ended.
    """

    def __init__(
        self,
        log: CommitLog,
        start: int,
        *,
        stop: int | None = None,
        check_crc: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Walk from ``start`` to the end of the last good record, at most to ``stop``."""
        self._log = log
        self._stop = stop if stop is not None else log.files.files[-1].end if log.files.files else start
        self._check_crc = check_crc
        self._progress = progress
        self._walk = IntactWalk(check_crc=check_crc)
        self._report_at = start + _PROGRESS_STEP_BYTES
        self.start = self.end = start
        self.records = 0
        self.store_timestamp = 0
        self.damage: list[DamagedPart] = []
        self.stopped_by = ""

    def __iter__(self) -> Iterator[tuple[int, RecordCheck]]:
        for run in self.runs():
            for record in run:
                yield record.physical_offset, record

    def runs(self) -> Iterator[list[RecordCheck]]:
        """Yield the same messages in batches: this object describes the walk up to the last run returned.

        Damage between two messages ends a run.
        """
        file_size = self._log.files.file_size
        while self.end < self._stop:
            if run := self._plain():
                yield run
                continue
            offset = self.end
            record = self._log.check(offset, check_crc=self._check_crc)
            if record.kind is RecordKind.MESSAGE:
                yield self._passed([record])
            elif record.kind is RecordKind.BLANK:
                self.end = offset - offset % file_size + file_size
            elif not self._step_over(offset, record):
                self.stopped_by = record.reason
                return

    def _plain(self) -> list[RecordCheck]:
        """Continue over the next records of one file that need no closer look, if there are any."""
        file = self._log.files.file_at(self.end)
        if file is None:
            return []
        run = self._walk.run(file.map, self.end - file.start, self._stop - file.start, file.start)
        return self._passed(run) if run else run

    def _passed(self, run: list[RecordCheck]) -> list[RecordCheck]:
        last = run[-1]
        self.end = end = last.physical_offset + last.size
        self.records += len(run)
        self.store_timestamp = last.store_timestamp
        if end >= self._report_at:
            self._report(end)
        return run

    def _report(self, end: int) -> None:
        self._report_at = end + _PROGRESS_STEP_BYTES
        if self._progress is not None:
            self._progress(end - self.start, self._stop - self.start)

    def _step_over(self, offset: int, damaged: RecordCheck) -> bool:
        """Continue at the next record before the stop that proves itself; ``False`` without one."""
        found = self._after(offset, damaged) or self._next_proven(offset)
        if found is None:
            return False
        path = next(at.path for at in self._log.files.files if offset < at.end)
        start = found.physical_offset
        self.damage.append(DamagedPart(path, offset, start, damaged.reason, found.store_timestamp))
        self.end = start
        return True

    def _after(self, offset: int, damaged: RecordCheck) -> RecordCheck | None:
        """Return the record after damaged ones whose lengths agree: bytes of a body may look like a record."""
        while damaged.kind is RecordKind.BAD and damaged.size and offset < self._stop:
            offset += damaged.size
            damaged = self._log.check(offset, check_crc=True)
        return damaged if damaged.kind is RecordKind.MESSAGE and offset < self._stop else None

    def _next_proven(self, offset: int) -> RecordCheck | None:
        for file in self._log.files.files:
            position = max(offset + 1 - file.start, 0) + _MAGIC_AT
            while position < file.size and (position := file.find(_MAGIC, position)) >= 0:
                found_at = file.start + position - _MAGIC_AT
                position += 1
                if found_at >= self._stop:  # there may be millions of records after it
                    return None
                record = self._log.check(found_at, check_crc=True)
                if record.kind is RecordKind.MESSAGE:
                    return record
        return None


_COMPARED_AT_ONCE: Final = 256 * 1024


class Damage(NamedTuple):
    """A part of the log without a good record.

    Attributes:
        offset, end: where it is, as physical offsets.
        reason: the defect at its start.
        is_tail: no good record lies after it; a start of the store cuts it off.
    """

    offset: int
    end: int
    reason: str
    is_tail: bool


def walk(
    log: CommitLog, file_system: FileSystem, *, check_crc: bool = True, progress: Progress | None = None
) -> Iterator[tuple[int, RecordCheck] | Damage]:
    """Yield each message with its physical offset, and each damaged part, in the order of the log.

    Args:
        log: its files are loaded; where it ends need not be known.
        file_system: reports where files have holes.
        check_crc: also compare bodies with their CRC; those after damage are compared anyway.
        progress: called now and then.

    Raises:
        StoreError: a file cannot be read.
    """
    scan = LogScan(log, log.files.start, check_crc=check_crc, progress=progress)
    for offset, record in scan:
        for part in scan.damage:
            yield Damage(part.start, part.end, part.reason, is_tail=False)
        scan.damage.clear()
        yield offset, record
    if scan.stopped_by and (end := _data_end(log, file_system, scan.end)) > scan.end:
        yield Damage(scan.end, end, scan.stopped_by, is_tail=True)


def find_ends(
    log: CommitLog, known: int, progress: Progress | None = None
) -> tuple[tuple[int, RecordCheck], tuple[int, RecordCheck]] | None:
    """Return the first and the last message, each with its physical offset; ``None`` without messages.

    Args:
        log: its files are loaded; where it ends need not be known.
        known: where a record near the end begins, such as the last one that has a unit; any number.
        progress: called now and then.
    """
    first = next(iter(LogScan(log, log.files.start, check_crc=False)), None)
    if first is None:
        return None

    def is_message(offset: int) -> bool:
        return log.check(offset, check_crc=False).kind is RecordKind.MESSAGE

    starts = [file.start for file in reversed(log.files.files)]  # a record begins at each, if the log is so long
    start = max(next(filter(is_message, starts), 0), known if is_message(known) else 0, first[0])
    last = deque(LogScan(log, start, check_crc=False, progress=progress), maxlen=1)
    return first, last[0] if last else first


def _data_end(log: CommitLog, file_system: FileSystem, offset: int) -> int:
    """Return the end of the last bytes after ``offset`` that are not zero, else ``offset``."""
    found = offset
    for file in log.files.files:
        if file.end > offset:
            with translated("read", file.path):
                ranges = list(file_system.data_ranges(file.file, max(offset - file.start, 0), file.size))
            for start, end in ranges:
                for at in range(start, end, _COMPARED_AT_ONCE):
                    if data := bytes(file.view[at : min(at + _COMPARED_AT_ONCE, end)]).rstrip(b"\0"):
                        found = file.start + at + len(data)
    return found
