"""Walking over the records of the commit log, from a place where one begins to the end of what is good."""

from collections.abc import Callable, Iterator
from typing import Final

from triomq.protocol.record import RecordCheck, RecordKind
from triomq.storage.commit_log import CommitLog

Progress = Callable[[int, int], None]
"""Called with the bytes scanned so far and the bytes there may be at most."""

_PROGRESS_STEP_BYTES: Final = 16 * 1024**2


class LogScan:
    """One walk; iterating it gives each message with its physical offset.

    Attributes:
        begin: where the walk starts.
        end: end of the last good record so far; a blank record counts up to the next file.
        records: how many messages were seen.
        store_timestamp: of the last one, ms; 0 without one.
        stopped_by: why the walk has ended.
    """

    __slots__ = (
        "_check_crc",
        "_log",
        "_progress",
        "_stop",
        "begin",
        "end",
        "records",
        "stopped_by",
        "store_timestamp",
    )

    def __init__(
        self,
        log: CommitLog,
        begin: int,
        *,
        stop: int | None = None,
        check_crc: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Walk from ``begin`` to the first place that holds no good record, at most to ``stop``."""
        self._log = log
        self._stop = stop if stop is not None else log.files.files[-1].end if log.files.files else begin
        self._check_crc = check_crc
        self._progress = progress
        self.begin = self.end = begin
        self.records = 0
        self.store_timestamp = 0
        self.stopped_by = ""

    def __iter__(self) -> Iterator[tuple[int, RecordCheck]]:
        file_size = self._log.files.file_size
        report_at = self.begin + _PROGRESS_STEP_BYTES
        while self.end < self._stop:
            offset = self.end
            record = self._log.check(offset, check_crc=self._check_crc)
            if record.kind is RecordKind.MESSAGE:
                self.end = offset + record.size
                self.records += 1
                self.store_timestamp = record.store_timestamp
                yield offset, record
            elif record.kind is RecordKind.BLANK:
                self.end = offset - offset % file_size + file_size
            else:
                self.stopped_by = record.reason
                return
            if self._progress is not None and self.end >= report_at:
                self._progress(self.end - self.begin, self._stop - self.begin)
                report_at = self.end + _PROGRESS_STEP_BYTES
