"""Recover a store at its start: find the end of the commit log and make the consume queues match it.

Problem: a crash or a power cut leaves any part of the last writes on the disk.  The log may end in a torn record, units
may be missing or name records that are not there, and old bytes past the end may look like records.  Meanwhile a start
must not read a log of hundreds of gigabytes.

Rejected: RocketMQ's way.  After a clean exit it checks the last three files, after a crash it starts at the start of a
file; it ends the log at the first damaged record, leaves stale bytes past the end, and misplaces units after a gap.

Invariant: at each moment, a start that is killed leaves a store that the next start recovers.  So units are synced
before the log that they depend on changes, and the checkpoint is written last.

- After a clean exit every record has its unit: the walk over the log starts at the last record with a unit.
- After a crash it starts where the checkpoint proves that log and queues are on the disk.  Each later record gets its
  unit if that is missing.
- The log ends after the last good record.  The rest is cleared on the disk.
- Damage before the end costs only the damaged records, see ``log_scan``.  A slave's log ends there, unless the
  checkpoint vouches for that part: its master sends the rest again.

Source: CommitLog.java, recoverNormally, recoverAbnormally; store.md 5.3-5.6, 11.
"""

import logging
import sys
from dataclasses import dataclass
from typing import Final

from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import QUARANTINE, DamagedPart, LogScan, Progress, fill
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.consume_queue.unit_search import (
    correct_min_offset,
    first_offset,
    newest_unit,
    oldest_unit,
    parts_with_units,
    record_before,
)
from triomq.storage.delays import stored_tags_code
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import CHECKPOINT, Checkpoint, DeletedTopics
from triomq.storage.flush import sync_files
from triomq.storage.recovery.queue_recovery import (
    QueueEnds,
    cut_queue,
    drop_dangling_units,
    ends_intact,
    lose_units,
    recover_queue,
    resume_queue,
    truncate_queue,
)
from triomq.storage.recovery.redispatch import Redispatcher

LOGGER: Final = logging.getLogger("triomq.storage.recovery.recovery")

_SAFETY_MS: Final = 3000  # by which the times in the checkpoint count as earlier, as in RocketMQ


@dataclass(slots=True)
class RecoveryReport:
    """Result of a recovery, filled in step by step.

    Attributes:
        clean: the previous shutdown was clean.
        scan_start, log_end: the part of the commit log that was read, as physical offsets.
        records: messages in it.
        stopped_by: why the log ends there, "" at the end of the last file.
        truncated_bytes: cleared past the end of the log: more than 0 means that something was damaged or torn.
        damage: parts of the log without a record.
        lost_messages: number of units that named a record there.
        removed_files: commit log files past the end.
        units_added, units_removed: in consume queues; a unit that was torn and is complete now counts as added.
        repaired_queues: queues that had lost units in the middle, as ``topic:queue_id``.
        ignored_records: records that cannot belong to a queue.
        removed_index_files: index files that are rebuilt.
        seconds: duration.
    """

    clean: bool = True
    scan_start: int = 0
    log_end: int = 0
    records: int = 0
    stopped_by: str = ""
    truncated_bytes: int = 0
    damage: tuple[DamagedPart, ...] = ()
    lost_messages: int = 0
    removed_files: int = 0
    units_added: int = 0
    units_removed: int = 0
    repaired_queues: tuple[str, ...] = ()
    ignored_records: int = 0
    removed_index_files: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(eq=False)
class Recovery:
    """One start of a store whose files are loaded; ``run`` once.

    Attributes:
        config, file_system, log, queues, deleted: those of the store.
        is_replica: its records come from a master.
        checkpoint: as far as it can be trusted: all zeros if it names messages that the log does not have.  When
            ``run`` returns, it describes the state on the disk.
        report: the result so far.
    """

    config: StoreConfig
    file_system: FileSystem
    log: CommitLog
    queues: QueueTable
    deleted: DeletedTopics
    checkpoint: Checkpoint
    is_replica: bool

    def __post_init__(self) -> None:
        self.report = RecoveryReport()
        tags_code_of = stored_tags_code(self.config.delay_levels)
        self._dispatcher = Redispatcher(self.log, self.queues, self.deleted, tags_code_of, self.is_replica)
        self._intact: dict[ConsumeQueue, QueueEnds] = {}  # queues of which only the ends are read
        self._changed: set[ConsumeQueue] = set()  # these may be on the disk already
        self._shortened: list[ConsumeQueue] = []  # their last units named no record

    def run(self, *, clean: bool, progress: Progress | None = None) -> RecoveryReport:
        """Bring log and queues into agreement; the log is on the disk when this returns, of queues see ``_sync``.

        Args:
            clean: the previous shutdown was clean.
            progress: called while the log is read.

        Raises:
            StoreFullError, StoreError: a file cannot be read or changed.
        """
        self.report.clean = clean
        log = self.log
        if not log.files.files:
            for queue in self.queues:
                queue.destroy()
            log.resume(0)
            self.deleted.restrict(0, 0)
            self._changed.update(self.queues)
            self._sync(0)
            self.checkpoint = Checkpoint()
            return self.report
        scan = self._scan(progress)
        self._heal(scan)
        self._truncate(scan)
        self._repair(scan.end, progress)
        report, dispatcher = self.report, self._dispatcher
        report.scan_start, report.log_end = scan.start, scan.end
        report.records, report.stopped_by = scan.records, scan.stopped_by
        report.units_added = dispatcher.units_added
        report.ignored_records = dispatcher.ignored_records
        for queue in self.queues:
            if queue not in self._intact or queue in self._changed:
                correct_min_offset(queue, log.min_offset)
        changes = report.truncated_bytes, report.damage, report.removed_files, report.units_removed, report.units_added
        if not clean or any(changes):
            self._sync(min([scan.start, *(part.start for part in report.damage)]))
        log.files.expect_order(in_order=False)  # from now on they are written, and old records are read otherwise
        newest, end, known = log.store_timestamp, log.max_offset, self.checkpoint
        is_ahead = any(map(_is_ahead, self.queues))
        logics, queues_end = (min(newest, known.logics), min(end, known.queues_end)) if is_ahead else (newest, end)
        self.checkpoint = known._replace(physic=newest, logics=logics, log_end=end, queues_end=queues_end)
        return report

    def _scan(self, progress: Progress | None) -> LogScan:
        """Walk over the log and build the units that are missing."""
        log, clean = self.log, self.report.clean
        log.max_offset = log.files.files[-1].end  # until the end is known all of it may be read
        if clean:
            log.files.expect_order(in_order=False)  # a page or two is all that is needed
            dropped_from = self._recover_queues(None)
            wanted_from = max((queue.max_physical_offset for queue in self.queues), default=0)
            newest = filter(None, (newest_unit(q) for q in self.queues if q.max_physical_offset == wanted_from))
            start = max([log.min_offset, *(unit.physical_offset for unit in newest)])
            if dropped_from < log.max_offset:  # a record or its unit is damaged: look which of them
                # Killed meanwhile, the next start must look there, too: it finds only that the queue ends earlier.
                Checkpoint().save(self.file_system, self.config.root / CHECKPOINT)
                before = max(record_before(queue, log, dropped_from) for queue in self.queues)
                wanted_from = start = max(before, log.min_offset)
            log.files.expect_order(in_order=True)
        else:
            wanted_from = start = self._start_after_crash()
        scan = self._walk(start, wanted_from, progress)
        checkpoint = self.checkpoint
        is_ahead = scan.end < checkpoint.log_end  # of RocketMQ only the times of messages are known
        if not clean and (is_ahead or (not checkpoint.log_end and scan.store_timestamp < checkpoint.physic)):
            LOGGER.warning("checkpoint is ahead of the log, nothing is taken from it times=%s", checkpoint)
            self.checkpoint = Checkpoint()  # that of another store, or the disk has lost data that it had confirmed
            if start > log.min_offset:
                start = self._start_after_crash()
                scan = self._walk(start, start, progress)
        return scan

    def _start_after_crash(self) -> int:
        """End the queues with their good units; return where the walk begins.

        That is at the earliest the start of the last file whose first record the checkpoint vouches for: store.md 5.4.
        """
        log, checkpoint = self.log, self.checkpoint
        first_file = log.min_offset
        for file in reversed(log.files.files):
            record = log.check(file.start, check_crc=False)
            if checkpoint.log_end:
                is_vouched = file.start < checkpoint.end
            else:
                is_vouched = 0 < record.store_timestamp <= min(checkpoint.physic, checkpoint.logics) - _SAFETY_MS
            if record.kind is RecordKind.MESSAGE and is_vouched:
                first_file = file.start
                break
        self._recover_queues(first_file)
        return max(first_file, self._last_vouched_record())

    def _walk(self, start: int, wanted_from: int, progress: Progress | None) -> LogScan:
        """Read the log to its end, and build units that are missing for records from ``wanted_from`` on."""
        log_start = self.log.min_offset
        self._dispatcher.start(log_start if wanted_from <= log_start else None)
        cut_from = self.checkpoint.log_end if self.is_replica else sys.maxsize
        check_crc = self.config.check_crc_on_recover
        scan = LogScan(self.log, start, check_crc=check_crc, cut_from=cut_from, progress=progress)
        for run in scan.runs():
            is_wanted = run[0].physical_offset >= wanted_from
            wanted = run if is_wanted else [record for record in run if record.physical_offset >= wanted_from]
            self._dispatcher.mend(wanted)
            self._dispatcher.dispatch(wanted)
        self._dispatcher.finish()
        return scan

    def _recover_queues(self, checked_from: int | None) -> int:
        """End the queues with a unit whose record is there; return where the first record may start that has none.

        After a crash units are looked at from the record at ``checked_from`` on, see ``recover_queue``.
        """
        dropped_from = self.log.files.files[-1].end
        for queue in self.queues:
            if checked_from is None:
                ends, was_cut = resume_queue(queue, self.file_system)
                queue.flushed_position = queue.end_position
            else:
                ends, _ = recover_queue(queue, self.file_system, checked_from)
                was_cut = False  # the records of units cut here are read again anyway
            log_start = max(self.log.min_offset, self.deleted.end_of(queue.topic))
            # Nothing of it has expired or is dangling, as of most queues: it needs no further check.
            if ends is not None and ends.first.physical_offset >= log_start and ends_intact(queue, self.log, ends.last):
                queue.min_offset = first_offset(queue)
                self._intact[queue] = ends
                continue
            self._intact.pop(queue, None)
            was_forgotten = self._forget_deleted(queue)
            dropped = drop_dangling_units(queue, self.log, check_crc=self.config.check_crc_on_recover)
            self.report.units_removed += dropped
            if dropped:
                self._shortened.append(queue)
            if ends is None or was_forgotten or dropped:
                self._changed.add(queue)
            if was_cut or dropped:  # the units of these records may be wrong
                dropped_from = min(dropped_from, queue.max_physical_offset)
        return dropped_from

    def _forget_deleted(self, queue: ConsumeQueue) -> bool:
        """Delete the units of a topic that was deleted; return whether it had some.

        The machine may have stopped before the files were deleted.  Or RocketMQ rebuilt them after a crash and has
        added messages since, which stay.
        """
        deleted_end = self.deleted.end_of(queue.topic)
        oldest, newest = oldest_unit(queue), newest_unit(queue)
        if oldest is None or newest is None or oldest.physical_offset >= deleted_end:
            return False
        if newest.physical_offset < deleted_end:
            queue.destroy()
        else:
            lose_units(queue, 0, deleted_end)
        return True

    def _last_vouched_record(self) -> int:
        """Return the newest record of which the checkpoint says that it and its unit are on the disk, or -1."""
        log, limit = self.log, self.checkpoint.end
        newest = -1
        by_end = sorted(self.queues, key=lambda queue: queue.max_physical_offset, reverse=True)
        for queue in by_end if limit > 0 else ():
            if queue.max_physical_offset <= newest:
                break
            ends = self._intact.get(queue)
            if ends is not None and ends.last.physical_offset < limit:
                newest = max(newest, ends.last.physical_offset)
            elif ends is None or ends.first.physical_offset < limit:
                newest = max(newest, record_before(queue, log, limit))
        return newest

    def _heal(self, scan: LogScan) -> None:
        """Replace what the walk had to step over, and note which messages are lost.

        The units are written and synced first: once the log is whole, no start looks for them.
        """
        if not scan.damage:
            return
        changed = [(queue.files, 0) for queue in self._shortened]
        starts, ends = [part.start for part in scan.damage], [part.end for part in scan.damage]
        for queue in self.queues:
            parts = parts_with_units(queue, starts, ends)
            if lost := sum(lose_units(queue, starts[number], ends[number]) for number in parts):
                self.report.lost_messages += lost
                self._changed.add(queue)
                changed.append((queue.files, 0))
        sync_files(self.file_system, changed)
        fill(self.log.files, scan.damage, self.file_system, self.config.root / QUARANTINE)
        self.report.damage += tuple(scan.damage)

    def _truncate(self, scan: LogScan) -> None:
        """End log and queues where the walk ended."""
        log = self.log
        files = log.files.files
        self.report.removed_files = log.files.remove_from(max(sum(file.start <= scan.end for file in files), 1))
        last = files[-1]
        if scan.end < last.end:
            self.report.truncated_bytes = last.zero_from(scan.end - last.start)
        log.resume(scan.end)
        log.store_timestamp = scan.store_timestamp
        if not scan.store_timestamp:
            units = filter(None, map(newest_unit, self.queues))
            log.store_timestamp = max((log.store_time(unit.physical_offset) for unit in units), default=0)
        for queue in self.queues:
            if removed := truncate_queue(queue, scan.end):
                self.report.units_removed += removed
                self._changed.add(queue)
        self.deleted.restrict(log.min_offset, scan.end)
        if cleared := self.report.truncated_bytes:
            LOGGER.warning("commit log cut offset=%d cleared_bytes=%d reason=%s", scan.end, cleared, scan.stopped_by)

    def _repair(self, log_end: int, progress: Progress | None) -> None:
        """Give queues that have lost units in the middle what the log still knows of them."""
        log, dispatcher = self.log, self._dispatcher
        wanted = {queue for queue in self.queues if queue.files.is_incomplete}
        wanted = wanted.union(dispatcher.gaps, dispatcher.headless)
        self._changed |= wanted | dispatcher.bridged | dispatcher.mended
        repaired = sorted(f"{queue.topic}:{queue.queue_id}" for queue in wanted | dispatcher.bridged)
        self.report.repaired_queues = tuple(repaired)
        if not wanted:
            return
        for headless in dispatcher.headless:
            cut_queue(headless, 0)
        LOGGER.warning("consume queues have lost units, reading the commit log again queues=%s", repaired)
        dispatcher.start(log.min_offset)
        scan = LogScan(log, log.min_offset, stop=log_end, check_crc=False, progress=progress)
        for run in scan.runs():
            dispatcher.dispatch(record for record in run if self.queues.find(record.topic, record.queue_id) in wanted)
        dispatcher.finish()
        self._heal(scan)

    def _sync(self, scan_start: int) -> None:
        """Wait for the disk, except for queues that this start only found, or continued, after a crash.

        They may be many.  Until the next thorough flush the checkpoint says nothing about them, so that a start before
        that looks at the same records.
        """
        wanted = [queue for queue in self.queues if queue in self._changed or (self.report.clean and _is_ahead(queue))]
        sync_files(self.file_system, [(self.log.files, scan_start), *((queue.files, 0) for queue in wanted)])
        for queue in wanted:
            queue.flushed_position = queue.end_position


def _is_ahead(queue: ConsumeQueue) -> bool:
    return queue.flushed_position < queue.end_position
