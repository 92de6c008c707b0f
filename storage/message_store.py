"""The store as the broker uses it: open, append, read, flush and close.

One thread owns a store and calls all its methods; only ``FlushPlan.run`` may run in another thread.  Only ``open``,
``close``, ``flush``, ``delete_topic`` and ``FlushPlan.run`` wait for the disk.
Source: DefaultMessageStore.java; store.md 2, 5, 7.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from triomq.protocol.errors import StoreError
from triomq.storage.append import Appender, Entry
from triomq.storage.aside import finish_setting_aside
from triomq.storage.commit_log.commit_log import FILL_PIECE_BYTES, SYNCED_FILL_PIECE_BYTES, CommitLog
from triomq.storage.commit_log.log_scan import Progress
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.delays import stored_tags_code
from triomq.storage.files.file_system import DiskSpace, DiskWork, FileSystem, translated
from triomq.storage.files.log_state import Checkpoint, ClockSteps, DeletedTopics, load_checkpoint
from triomq.storage.flush import FlushPlan, Refusal, fill_commit_log_plan, fill_consume_queue_plan
from triomq.storage.index.message_index import MessageIndex
from triomq.storage.reading.cold_read import ColdReads, Work, finish
from triomq.storage.reading.store_reader import StoreReader
from triomq.storage.recovery.recovery import Recovery, RecoveryReport
from triomq.storage.recovery.redispatch import Redispatcher
from triomq.storage.replica import Replica
from triomq.storage.store_directory import StoreDirectory

LOGGER: Final = logging.getLogger("triomq.storage.message_store")

_FILES_OF_LOG_FILE: Final = 2  # the file and its mapping


def system_clock_ms() -> int:
    """Return the wall clock, ms."""
    return time.time_ns() // 1_000_000


class MessageStore:
    """A store directory; ``open`` it, or use it in a ``with`` block.

    Attributes:
        config, file_system: settings, and access to files.
        commit_log: all records.
        queues: all consume queues.
        index: finds messages by their keys.
        cold_reads, refused: know which records must be read from the disk, and why messages are refused now.
        recovery: result of the last ``open``.
        was_cut: whether that has set aside an end of the log.
        deleted: topics that were deleted, and from which physical offset on their records count again.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        file_system: FileSystem | None = None,
        clock_ms: Callable[[], int] = system_clock_ms,
        clock_s: Callable[[], float] = time.monotonic,
        is_replica: bool = False,
    ) -> None:
        """Make a closed store; no file is touched.

        Args:
            config: settings.
            file_system: access to files; tests pass another one.
            clock_ms: wall clock for store times and the names of index files.
            clock_s: monotonic clock for durations.
            is_replica: the store copies the log of a master, see ``replica``.
        """
        self.config = config
        self.recovery: RecoveryReport | None = None
        self.was_cut = False
        self.file_system = file_system or FileSystem()
        self._directory = StoreDirectory(config.root, self.file_system)
        self._clock_ms = clock_ms
        self._clock_s = clock_s
        self._is_replica = is_replica
        self.refused = Refusal(config)
        self._checkpoint = self._checkpoint_on_disk = Checkpoint()
        self._replica: Replica | None = None
        self._build_parts()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, progress: Progress | None = None) -> RecoveryReport:
        """Lock the directory, check its files and recover them.  Does nothing if the store is open.

        ``progress`` is called from time to time while the commit log is read.  An exception that it raises ends
        ``open``; the next start recovers as after a crash.

        Raises:
            StoreLockedError: another process uses the directory.
            StoreLayoutError: a file does not belong to such a store; nothing was changed.
            StoreFullError, StoreError: reading or writing a file failed.
        """
        if self.refused.is_open and self.recovery is not None:
            return self.recovery
        self._directory.acquire()
        try:
            self.was_cut = finish_setting_aside(self._directory, self.config, self._make_queues)
            report = self._load(progress)
        except BaseException:
            self._forget()
            self._directory.release()
            raise
        self.recovery = report
        self.refused.opened(is_copy=self._is_replica)
        LOGGER.info(
            "store open root=%s durability=%s clean=%s records=%d truncated_bytes=%d damaged_parts=%d lost_messages=%d "
            "units_added=%d units_removed=%d repaired_queues=%d seconds=%.3f",
            self.config.root, self.config.durability.value, report.clean, report.records, report.truncated_bytes,
            len(report.damage), report.lost_messages, report.units_added, report.units_removed,
            len(report.repaired_queues), report.seconds,
        )  # fmt: skip
        return report

    def close(self) -> None:
        """Write everything to the disk and release the lock.  Does nothing if the store is closed.

        Writes nothing after an earlier write failed; the next start recovers as after a crash.

        Raises:
            StoreError: writing failed; the store is closed all the same.
        """
        if not self.refused.is_open:
            return
        self.refused.closed()
        try:
            if not self.has_failed:
                self._put_on_disk()
        finally:
            self._forget()
            self._directory.release()

    def now_ms(self) -> int:
        """Return the time of the store's clock, ms."""
        return self._clock_ms()

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, the same object each time; it has no file before its first message.

        Raises:
            IllegalNameError: topic or queue id is not valid in RocketMQ.
            StoreClosedError: the store is not open.
        """
        self._require_open()
        return self.queues.get(topic, queue_id)

    @property
    def reader(self) -> StoreReader:
        """Reads messages and queues.

        Raises:
            StoreClosedError: the store is not open.
        """
        self._require_open()
        return self._reader

    @property
    def replica(self) -> Replica:
        """Takes the log of a master, in a store that was made for that.

        Raises:
            StoreClosedError: the store is not open.
            StoreError: it was made for messages of its own.
        """
        self._require_open()
        if not self._is_replica:
            raise StoreError(f"the store {self.config.root} takes no log of a master: make it with is_replica")
        if self._replica is None:
            tags_code_of = stored_tags_code(self.config.delay_levels)
            dispatcher = Redispatcher(self.commit_log, self.queues, self.deleted, tags_code_of, is_replica=True)
            self._replica = Replica(self.commit_log, self.queues, dispatcher, self.refused)
        return self._replica

    @property
    def max_open_files(self) -> int:
        """Upper limit of open files of queues and log, for a log of the present length."""
        return self.queues.pool.limit + _FILES_OF_LOG_FILE * len(self.commit_log.files.files)

    def append(self, entries: Sequence[Entry], *, are_copies: bool = False) -> list[tuple[int, int]]:
        """Store messages, all of them or none; see ``Appender.append``.

        Raises:
            MessageIllegalError, StoreFullError: as ``Appender.append``.
            StoreClosedError: the store is not open.
            StoreError: a write failed, now or earlier, or the store copies a master's log.
        """
        if (refusal := self.refused).is_active and (error := refusal.append_error()) is not None:
            raise error
        try:
            return self._appender.append(entries, are_copies=are_copies)
        except StoreError as exc:
            refusal.log(exc)
            raise

    def dispatch_flushed(self) -> None:
        """Durability sync: make flushed messages visible to consumers; call it after ``flush_done``."""
        self._require_open()
        self._appender.flushed()

    def flush_plan(self, least_pages: int = 0) -> FlushPlan | None:
        """Plan a flush of the commit log, if there is anything: run the plan in any thread, then call ``flush_done``.

        Args:
            least_pages: minimum of dirty pages, unless a file is full; 0 flushes any byte.
        """
        self._require_open()
        plan = FlushPlan(self.file_system, self.refused.failed)
        return plan if fill_commit_log_plan(plan, self.commit_log, least_pages) else None

    def flush_consume_queues_plan(self, least_pages: int = 0) -> FlushPlan | None:
        """Plan a flush of the consume queues, and with 0 also of the checkpoint; otherwise as ``flush_plan``."""
        return finish(self.planning_consume_queues_flush(least_pages))

    def planning_consume_queues_flush(self, least_pages: int) -> Work[FlushPlan | None]:
        """Do what ``flush_consume_queues_plan`` does, in steps."""
        self._require_open()
        plan = FlushPlan(self.file_system, self.refused.failed)
        log = self.commit_log
        planned = {"logics": log.store_timestamp, "queues_end": log.max_offset} if least_pages == 0 else {}
        dirty = yield from fill_consume_queue_plan(plan, self.queues, least_pages)
        indexed = self.index.fill_flush_plan(plan, self._checkpoint)
        if planned or indexed != self._checkpoint:
            checkpoint = indexed._replace(**planned)
            if dirty or checkpoint != self._checkpoint_on_disk:
                plan.checkpoint = (checkpoint, self._directory.checkpoint)
        return plan if dirty or plan.checkpoint is not None else None

    def flush_done(self, plan: FlushPlan) -> None:
        """Update the offsets after a plan has run.

        Raises:
            ValueError: the plan has not run, or failed.
        """
        plan.finish()
        if plan.log is self.commit_log and plan.flushed_offset > self._checkpoint.log_end:
            self._checkpoint = self._checkpoint._replace(physic=plan.store_timestamp, log_end=plan.flushed_offset)
        if plan.checkpoint is not None and self.refused.is_open:
            self._checkpoint_on_disk = saved = plan.checkpoint[0]
            self._checkpoint = saved._replace(physic=self._checkpoint.physic, log_end=self._checkpoint.log_end)

    def flush(self) -> None:
        """Flush everything and wait for the disk; in durability sync it is visible to consumers afterwards.

        Raises:
            StoreError: a write failed; the store accepts no further messages.
        """
        for make_plan in (self.flush_plan, self.flush_consume_queues_plan):
            if (plan := make_plan()) is not None:
                plan.run()
                self.flush_done(plan)
        self.dispatch_flushed()

    def check_disk(self) -> DiskSpace:
        """Measure the disk.  Above ``disk_full_ratio`` messages are refused until a later call finds room.

        Raises:
            StoreError: the disk cannot be measured.
        """
        self._require_open()
        with translated("measure the disk of", self.config.root):
            disk = self.file_system.space(self.config.root)
        self.refused.measured(disk)
        return disk

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of ``topic`` in one step; see ``deletion``.

        Raises:
            StoreError: a file cannot be deleted.
        """
        return finish(self.deletion(topic))

    def deletion(self, topic: str, *, exists: bool = False) -> Work[int]:
        """Delete the queues of ``topic`` and return how many had messages.  New queues of the topic start at 0.

        With ``exists`` it is remembered that the topic was deleted even if it has no queues: messages may wait for it.

        The records stay in the commit log until they expire, but no restart brings them back.  The topic takes no
        messages until all is deleted.

        Raises:
            StoreError: the topic is being deleted, or a file cannot be.  If the queues are already empty, the topic
                takes no messages until a later call succeeds.
        """
        self._require_open()
        record = None
        if exists or any(queue.files.files for queue in self.queues.of_topic(topic)):
            record = DiskWork(partial(self.deleted.add, topic, self.commit_log.max_offset))
        return (yield from self.queues.destroy_topic(topic, record, self._appender.forget))

    @property
    def has_failed(self) -> bool:
        """Whether a flush has failed: messages stored since the flush before it may be lost."""
        return self.refused.failure is not None

    def _make_queues(self, root: Path) -> None:
        """Write the consume queues of another store, by opening it."""
        config = replace(self.config, root=root, index=False)
        with MessageStore(config, file_system=self.file_system, clock_ms=self._clock_ms):
            pass

    def _load(self, progress: Progress | None) -> RecoveryReport:
        started_s = self._clock_s()
        log_files, queue_layouts = self._directory.check(self.config, self.queues)
        self.deleted.load()
        self.commit_log.clock_steps.load()
        checkpoint = load_checkpoint(self.file_system, self._directory.checkpoint)
        self.commit_log.files.load(log_files, self._directory.quarantine)
        self.commit_log.files.sync_directory()  # a file deleted before a power cut must stay deleted
        if any(queue.files.stray_starts for queue in queue_layouts):
            # These queues are deleted and rebuilt.  If this start is killed before that, only a scan of the whole
            # log finds that a queue is too short: without a checkpoint the next start makes one.
            Checkpoint().save(self.file_system, self._directory.checkpoint)
        self.queues.load(queue_layouts)
        clean = self._directory.mark_running()
        recovery = Recovery(
            self.config, self.file_system, self.commit_log, self.queues, self.deleted, checkpoint, self._is_replica
        )
        report = recovery.run(clean=clean, progress=progress)
        report.removed_index_files = self.index.load(recovery.checkpoint, clean=clean)
        report.seconds = self._clock_s() - started_s
        self._checkpoint = self.index.vouched(recovery.checkpoint)
        on_disk = load_checkpoint(self.file_system, self._directory.checkpoint)
        if self._checkpoint != on_disk or not self.file_system.exists(self._directory.checkpoint):
            self._checkpoint.save(self.file_system, self._directory.checkpoint)
        self._checkpoint_on_disk = self._checkpoint
        return report

    def _put_on_disk(self) -> None:
        """Flush all, remove preallocated files, write the checkpoint, and only then remove ``abort``."""
        log = self.commit_log
        if self._replica is not None:
            finish(self._replica.dispatching())
            self._replica.drop_incomplete()
        self.index.catch_up_before_close()
        plan = FlushPlan(self.file_system, self.refused.failed)
        fill_commit_log_plan(plan, log, 0)
        finish(fill_consume_queue_plan(plan, self.queues, 0))
        newest, end = log.store_timestamp, log.max_offset
        checkpoint = self._checkpoint._replace(physic=newest, logics=newest, log_end=end, queues_end=end)
        checkpoint = self.index.fill_flush_plan(plan, checkpoint, before_close=True)
        plan.run()
        log.files.remove_from(sum(file.start < log.max_offset for file in log.files.files))
        self.queues.remove_preallocated_files()
        checkpoint.save(self.file_system, self._directory.checkpoint)
        self._directory.mark_closed()

    def _forget(self) -> None:
        """Drop all files; views held by readers stay valid."""
        for queue in self.queues:
            queue.detach()
        self._build_parts()

    def _build_parts(self) -> None:
        """Set up the parts of an empty, closed store."""
        config, directory, files = self.config, self._directory, self.file_system
        waits_for_flush = self.config.durability is Durability.SYNC
        fill_bytes = SYNCED_FILL_PIECE_BYTES if waits_for_flush else FILL_PIECE_BYTES
        self.commit_log = log = CommitLog(
            directory.commit_log_files(config), ClockSteps(directory.config, files), fill_bytes
        )
        self.queues = QueueTable(config, files)
        self.cold_reads = ColdReads(log, config, files, self._clock_s)
        self.index = MessageIndex(config, files, log, self.cold_reads, self._clock_ms, self._clock_s)
        self.deleted = DeletedTopics(directory.config, files)
        self._reader = StoreReader(config, log, self.queues, self.cold_reads)
        self._appender = Appender(config, log, self.queues, self._clock_ms)
        self._replica = None
        self._checkpoint = self._checkpoint_on_disk = Checkpoint()

    def _require_open(self) -> None:
        if not self.refused.is_open:
            raise self.refused.closed_error()
