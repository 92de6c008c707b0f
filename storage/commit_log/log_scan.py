"""Walk over the records of the commit log, from a place where one begins to the last one that is good, past damage.

A torn or corrupt record costs only itself.  The scan continues at the next record that proves itself:
magic, own position, lengths that add up, CRC.  Nothing false can pass, because whatever lies past the end of the log
is cleared before it grows again, so a record that proves itself was written there and belongs there.  Only after the
last such record is the torn tail, which is cut.

The bytes in between become one record of the topic ``-`` with the flag of a rolled back transaction, which no queue
gets a unit for; up to the end of a file they become a blank record.  So the log has no hole for later readers,
of which RocketMQ would end it there.  The damaged bytes go to ``quarantine/`` first.  A unit of a lost
message becomes one of those that readers pass by (``consume_queue.lost_units``), at the end of a queue it is cut.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from triomq.protocol.codes import MessageSysFlag
from triomq.protocol.host import IPV4_HOST_LENGTH
from triomq.protocol.record.intact_record import IntactWalk
from triomq.protocol.record.layout import BLANK_HEAD, BLANK_MAGIC, MESSAGE_MAGIC, head_offset, record_size
from triomq.protocol.record.record import RecordCheck, RecordKind, encode_record
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import MappedFileQueue

Progress = Callable[[int, int], None]
"""Called with the bytes scanned so far and the bytes there may be at most."""

LOGGER: Final = logging.getLogger("triomq.storage.commit_log.log_scan")

FILLER_TOPIC: Final = "-"
QUARANTINE: Final = "quarantine"
"""Directory in the root of a store for files and records that were moved out of their place."""

LEAST_FILLER_BYTES: Final = record_size(0, len(FILLER_TOPIC), 0)
"""Length of a filler without a body."""

_MAX_SAVED_BYTES: Final = 64 * 1024**2
_SCRATCH: Final = "new-copy.tmp"
_NO_HOST: Final = bytes(IPV4_HOST_LENGTH)
_MIB: Final = 1024**2
_PROGRESS_STEP_BYTES: Final = 16 * _MIB
_PROGRESS_LOG_S: Final = 3.0
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, signed=True)
_MAGIC_AT: Final = head_offset("magic")


class DamagedPart(NamedTuple):
    """A part of the commit log that holds no record.

    Attributes:
        start, end: physical offsets; ``end`` is where the next intact record begins.
        reason: the defect at ``start``.
        store_timestamp: of the next intact record, ms; 0 without one: a start of the store cuts the part off.
    """

    start: int
    end: int
    reason: str
    store_timestamp: int


class ProgressLog:
    """Logs the progress of a long walk now and then: pass it as ``progress``."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._next_s = clock_s() + _PROGRESS_LOG_S

    def __call__(self, done_bytes: int, most_bytes: int) -> None:
        """Log the progress if enough time has passed; see ``Progress``."""
        now = self._clock_s()
        if now >= self._next_s:
            self._next_s = now + _PROGRESS_LOG_S
            LOGGER.info("reading the commit log scanned_mib=%d total_mib=%d", done_bytes // _MIB, most_bytes // _MIB)


@dataclass(eq=False)
class LogScan:
    """One walk, to the end of the last good record; iterating it gives each message with its physical offset.

    After damage it continues at the next record that proves itself.

    Attributes:
        log: the commit log.
        start: where the walk starts.
        stop: where it ends at the latest; by default with the last file.
        check_crc: whether to check the bodies of records.
        cut_from: damage from here on ends the walk.  Records there may have been written in parts, at the end of which
            a sector went to the disk: then the rest of it is zero.
        progress: called now and then.
        end: end of the last good record so far; a blank record counts up to the next file.
        records: how many messages were seen.
        store_timestamp: of the last one, ms; 0 without one.
        damage: the parts that were skipped.
        stopped_by: why the walk has ended.
    """

    log: CommitLog
    start: int
    _: KW_ONLY
    stop: int | None = None
    check_crc: bool = True
    cut_from: int = sys.maxsize
    progress: Progress | None = None

    def __post_init__(self) -> None:
        files = self.log.files.files
        self._stop = self.stop if self.stop is not None else files[-1].end if files else self.start
        self._walk = IntactWalk(check_crc=self.check_crc)
        self._report_at = self.start + _PROGRESS_STEP_BYTES
        self.end = self.start
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
        files = self.log.files
        while self.end < self._stop:
            offset = self.end
            file = files.file_at(offset)
            run = []
            if file is not None:  # usually the next records in it need no closer look
                run = self._walk.run(file.map, offset - file.start, self._stop - file.start, file.start)
            if not run:
                record = self._check(offset)
                if record.kind is RecordKind.BLANK:
                    self.end = offset - offset % files.file_size + files.file_size
                    continue
                if record.kind is not RecordKind.MESSAGE:
                    if offset < self.cut_from and self._step_over(offset, record):
                        continue
                    self.stopped_by = record.reason
                    return
                run = [record]
            last = run[-1]
            self.end = last.physical_offset + last.size
            self.records += len(run)
            self.store_timestamp = last.store_timestamp
            if self.end >= self._report_at:
                self._report_at = self.end + _PROGRESS_STEP_BYTES
                if self.progress is not None:
                    self.progress(self.end - self.start, self._stop - self.start)
            yield run

    def _check(self, offset: int) -> RecordCheck:
        record = self.log.check(offset, check_crc=self.check_crc)
        if offset >= self.cut_from and 0 in record.properties:
            return RecordCheck(RecordKind.BAD, 0, f"record at {offset}: a part of its properties may be missing")
        return record

    def _step_over(self, start: int, damaged: RecordCheck) -> bool:
        """Continue at the next record before the stop that proves itself; ``False`` without one."""
        offset, reason = start, damaged.reason
        # Bytes of a body may look like a record, so the lengths of damaged records count as long as they agree.
        while damaged.kind is RecordKind.BAD and damaged.size and offset < self._stop:
            offset += damaged.size
            damaged = self.log.check(offset, check_crc=True)
        is_found = damaged.kind is RecordKind.MESSAGE and offset < self._stop
        found = damaged if is_found else self._next_proven(start)
        if found is None:
            return False
        self.end = found.physical_offset
        self.damage.append(DamagedPart(start, self.end, reason, found.store_timestamp))
        return True

    def _next_proven(self, offset: int) -> RecordCheck | None:
        for file in self.log.files.files:
            position = max(offset + 1 - file.start, 0) + _MAGIC_AT
            while position < file.size and (position := file.find(_MAGIC, position)) >= 0:
                found_at = file.start + position - _MAGIC_AT
                position += 1
                if found_at >= self._stop:  # there may be millions of records after it
                    return None
                record = self.log.check(found_at, check_crc=True)
                if record.kind is RecordKind.MESSAGE:
                    return record
        return None


def fill(files: MappedFileQueue, parts: Sequence[DamagedPart], file_system: FileSystem, quarantine: Path) -> None:
    """Replace damaged parts by records that everybody can read over, after copies were made.

    Raises:
        StoreFullError, StoreError: the disk reports an error; each part that was replaced has its copy.
    """
    pieces: list[tuple[MappedFile, int, int, int]] = []  # begin and end in the file, time of the next intact record
    for start, part_end, reason, store_timestamp in parts:
        at, number = start, len(pieces)
        while at < part_end:
            file = files.file_at(at)
            assert file is not None, "the scan has read there"
            end = min(part_end, file.end)
            pieces.append((file, at - file.start, end - file.start, store_timestamp))
            at = end
        path, size_bytes = pieces[number][0].path, part_end - start
        LOGGER.warning("commit log damaged file=%s offset=%d bytes=%d reason=%s", path, start, size_bytes, reason)
    if sum(_is_saved(file, at, stop, quarantine, file_system) for file, at, stop, _ in pieces):
        for directory in (quarantine, quarantine.parent):
            with translated("sync", directory):
                file_system.sync_directory(directory)
    for piece in pieces:
        _fill(files, *piece)


def _fill(files: MappedFileQueue, file: MappedFile, at: int, stop: int, store_timestamp: int) -> None:
    files.reserve(file, stop)
    if stop == file.size and stop - at >= BLANK_HEAD.size:
        BLANK_HEAD.pack_into(file.map, at, stop - at, BLANK_MAGIC)
        return
    if stop - at < LEAST_FILLER_BYTES:  # a body held what proves itself as a record: the hole stays
        return
    file.map[at:stop] = make_filler(file.start + at, bytes(file.view[at + LEAST_FILLER_BYTES : stop]), store_timestamp)


def make_filler(physical_offset: int, body: bytes, store_timestamp: int) -> bytes:
    """Return a record that every broker reads over; it ends ``LEAST_FILLER_BYTES`` and its body after its offset."""
    return encode_record(
        physical_offset=physical_offset,
        sys_flag=MessageSysFlag.TRANSACTION_ROLLBACK,
        born_timestamp=store_timestamp,
        born_host=_NO_HOST,
        store_timestamp=store_timestamp,
        store_host=_NO_HOST,
        body=body,
        topic=FILLER_TOPIC.encode(),
    )


def _is_saved(file: MappedFile, at: int, stop: int, quarantine: Path, file_system: FileSystem) -> bool:
    """Save some bytes of a file, but never over another copy; ``False`` if there are zeros only.

    A start that was interrupted may have replaced some of it: the copy that it has made is the better one.
    """
    content = bytes(file.view[at : min(stop, at + _MAX_SAVED_BYTES)])
    if not content.strip(b"\0"):
        return False
    first = quarantine / f"damaged-{file.start + at:020d}"
    with translated("write", first):
        file_system.make_directories(quarantine)
        path, copies = first, 1
        while file_system.exists(path):
            if file_system.read_file(path) == content:
                return True
            copies += 1
            path = first.with_name(f"{first.name}-{copies}")
        scratch = quarantine / _SCRATCH
        file_system.write_file(scratch, content)
        file_system.rename(scratch, path)  # last: a copy in its place is a whole one
    return True
