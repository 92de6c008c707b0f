"""Walk over the records of the commit log, from a place where one begins to the last one that is good."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from triomq.protocol.record.intact_record import IntactWalk
from triomq.protocol.record.layout import MESSAGE_MAGIC, head_offset
from triomq.protocol.record.record import RecordCheck, RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.damage import DamagedPart

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
        """Note how far it is; see ``Progress``."""
        now = self._clock_s()
        if now >= self._next_s:
            self._next_s = now + _PROGRESS_LOG_S
            LOGGER.info("reading the commit log scanned_mib=%d total_mib=%d", done_bytes // _MIB, most_bytes // _MIB)


class LogScan:
    """One walk; iterating it gives each message with its physical offset.

    Where there is no record, it continues at the next one that proves itself, see ``damage``.

    Attributes:
        start: where the walk starts.
        end: end of the last good record so far; a blank record counts up to the next file.
        records: how many messages were seen.
        store_timestamp: of the last one, ms; 0 without one.
        damage: what was stepped over.
        stopped_by: why the walk has ended.
    """

    __slots__ = (
        "_check_crc",
        "_log",
        "_progress",
        "_report_at",
        "_stop",
        "_walk",
        "damage",
        "end",
        "records",
        "start",
        "stopped_by",
        "store_timestamp",
    )

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
        """Continue at the next record that proves itself; ``False`` if there is none before the stop."""
        found = self._after(offset, damaged) or self._next_proven(offset)
        if found is None:
            return False
        path = next(at.path for at in self._log.files.files if offset < at.end)
        start = found.physical_offset
        self.damage.append(DamagedPart(path, offset, start, damaged.reason, found.store_timestamp))
        self.end = start
        return True

    def _after(self, offset: int, damaged: RecordCheck) -> RecordCheck | None:
        """Return the record after damaged ones whose lengths agree: what is in a body may look like a record."""
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
