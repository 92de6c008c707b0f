"""The store as the broker sees it: put, read, flush, open and close.

One thread owns a store: every method must be called there, but ``FlushPlan.run``.  Nothing waits for the disk, except
``open``, ``close``, ``flush``, ``delete_topic``, ``destroy`` and ``FlushPlan.run``.
Source: DefaultMessageStore.java; store.md 2, 5, 7.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from triomq.protocol.errors import StoreClosedError, StoreError, StoreFullError
from triomq.storage.append import Appender, Entry
from triomq.storage.commit_log.commit_log import FILL_PIECE_BYTES, SYNCED_FILL_PIECE_BYTES, CommitLog
from triomq.storage.commit_log.log_scan import Progress
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.dispatch import Dispatcher
from triomq.storage.files.checkpoint import Checkpoint, load_checkpoint
from triomq.storage.files.deleted_topics import DeletedTopics
from triomq.storage.files.file_system import DiskSpace, FileSystem, translated
from triomq.storage.files.mapped_file_queue import MappedFileQueue
from triomq.storage.flush import FlushPlan, fill_commit_log_plan, fill_consume_queue_plan
from triomq.storage.index.message_index import MessageIndex
from triomq.storage.reading.cold_read import ColdReads
from triomq.storage.reading.store_reader import StoreReader
from triomq.storage.recovery.recovery import Recovery, RecoveryReport
from triomq.storage.recovery.redispatch import TagsCodeOf, stored_tags_code
from triomq.storage.store_directory import StoreDirectory

LOGGER: Final = logging.getLogger("triomq.storage.message_store")


_FILES_OF_LOG_FILE: Final = 2  # it is open, and so is its mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A moment of a store.

    Attributes:
        messages_put: since it was opened.
        min_offset, max_offset, flushed_offset: of the commit log.
        store_timestamp: of the newest message, ms.
        queues: consume queues with messages.
        mapped_files: of commit log and consume queues, those that are mapped now.
        reserved_bytes: disk space of these files that is known to be reserved.
        damaged_records: found while messages were read, and skipped.
        refusal: why messages are refused now, "" if they are not.
    """

    messages_put: int
    min_offset: int
    max_offset: int
    flushed_offset: int
    store_timestamp: int
    queues: int
    mapped_files: int
    reserved_bytes: int
    damaged_records: int
    refusal: str


def system_clock_ms() -> int:
    """Return the system's time, ms."""
    return time.time_ns() // 1_000_000


class MessageStore:
    """A store directory; ``open`` it, or use it in a ``with`` block.

    Attributes:
        config: the settings.
        commit_log: all records.
        queues: all consume queues.
        index: finds messages by their keys.
        cold_reads: knows what is on the disk only.
        recovery: what the last ``open`` found.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        file_system: FileSystem | None = None,
        clock_ms: Callable[[], int] = system_clock_ms,
        tags_code_of: TagsCodeOf | None = None,
    ) -> None:
        """Describe the store; nothing is touched.

        Args:
            config: where and how.
            file_system: another one for tests.
            clock_ms: gives store times.
            tags_code_of: gives the tags code of a record that has lost its unit; by default its tags' hash, and for
                delayed messages the delivery time.
        """
        self.config = config
        self.recovery: RecoveryReport | None = None
        self._file_system = file_system or FileSystem()
        self._directory = StoreDirectory(config.root, self._file_system)
        self._clock_ms = clock_ms
        self._tags_code_of = tags_code_of or stored_tags_code(config.delay_levels)
        self._is_open = False
        self._refusal: Callable[[], StoreError] | None = self._closed_error
        self._failure: StoreError | None = None
        self._disk: DiskSpace | None = None
        self._has_refused = False  # a message, since the disk was checked last
        self._has_logged_refusal = False
        self._checkpoint = self._checkpoint_on_disk = Checkpoint()
        self.queues = QueueTable(config, self._file_system, self._directory.consume_queue, self._directory.scratch)
        self._forget()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self, progress: Progress | None = None) -> RecoveryReport:
        """Lock the directory, check it, recover it; an open store stays as it is.

        ``progress`` is called now and then while the commit log is read.  What it raises ends that, and the next start
        recovers as after a crash.

        Raises:
            StoreLockedError: another process uses the directory.
            StoreLayoutError: something there is no file of this store; nothing was changed.
            StoreFullError, StoreError: the disk refuses.
        """
        if self._is_open and self.recovery is not None:
            return self.recovery
        self._directory.acquire()
        try:
            report = self._load(progress)
        except BaseException:
            self._forget()
            self._directory.release()
            raise
        self.recovery = report
        self._failure = self._disk = None
        self._has_refused = self._has_logged_refusal = False
        self._is_open = True
        self._update_refusal()
        LOGGER.info(
            "store open root=%s durability=%s clean=%s records=%d truncated_bytes=%d damaged_parts=%d lost_messages=%d "
            "units_added=%d units_removed=%d repaired_queues=%d seconds=%.3f",
            self.config.root,
            self.config.durability.value,
            report.clean,
            report.records,
            report.truncated_bytes,
            len(report.damage),
            report.lost_messages,
            report.units_added,
            report.units_removed,
            len(report.repaired_queues),
            report.seconds,
        )
        return report

    def close(self) -> None:
        """Put everything on the disk and give the directory free; a closed store stays closed.

        After an earlier failure of the disk nothing is written: the next start recovers as after a crash.

        Raises:
            StoreError: the disk refuses; the store is closed all the same.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._update_refusal()
        try:
            if self._failure is None:
                self._put_on_disk()
        finally:
            self._forget()
            self._directory.release()

    def now_ms(self) -> int:
        """Return the time of the clock that gives store times, ms."""
        return self._clock_ms()

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, always the same object; it exists in memory only until its first message.

        Raises:
            IllegalNameError: RocketMQ allows no such topic or queue id.
            StoreClosedError: the store is not open.
        """
        self._require_open()
        return self.queues.get(topic, queue_id)

    @property
    def reader(self) -> StoreReader:
        """What messages and queues are read with.

        Raises:
            StoreClosedError: the store is not open.
        """
        self._require_open()
        return self._reader

    @property
    def max_open_files(self) -> int:
        """How many files log and queues may keep open with a log as long as now."""
        return self.queues.pool.limit + _FILES_OF_LOG_FILE * len(self.commit_log.files.files)

    def append(self, entries: Sequence[Entry], *, are_copies: bool = False) -> list[tuple[int, int]]:
        """Store messages, all of them or none; see ``Appender.append``.

        Raises:
            MessageIllegalError, StoreFullError: as ``Appender.append``.
            StoreClosedError: the store is not open.
            StoreError: the disk refuses, now or before.
        """
        if self._refusal is not None:
            raise self._refusal()
        try:
            return self._appender.append(entries, are_copies=are_copies)
        except StoreError as exc:
            self._log_refusal(exc)
            raise

    def dispatch_flushed(self) -> None:
        """Durability sync: show the messages that are on the disk to consumers; call it after ``flush_done``."""
        self._require_open()
        self._dispatcher.flushed(self.commit_log.flushed_offset)

    def flush_plan(self, least_pages: int = 0) -> FlushPlan | None:
        """Plan a flush of the commit log; run the plan anywhere, then call ``flush_done`` here.

        Args:
            least_pages: only if so many pages are dirty, or a file is full; 0 for any byte.

        Returns:
            ``None`` if there is nothing to do.
        """
        self._require_open()
        plan = FlushPlan(self._file_system, self._fail)
        return plan if fill_commit_log_plan(plan, self.commit_log, least_pages) else None

    def flush_consume_queues_plan(self, least_pages: int = 0) -> FlushPlan | None:
        """Plan a flush of the consume queues; with 0, a thorough one, the checkpoint is written too.

        Args and result as ``flush_plan``.
        """
        self._require_open()
        plan = FlushPlan(self._file_system, self._fail)
        dirty = fill_consume_queue_plan(plan, self.queues, least_pages)
        indexes = self.index.fill_flush_plan(plan, self._checkpoint)
        if least_pages == 0 or indexes != self._checkpoint.indexes:
            logics = self.commit_log.store_timestamp if least_pages == 0 else self._checkpoint.logics
            checkpoint = self._checkpoint._replace(logics=logics, indexes=indexes)
            if dirty or checkpoint != self._checkpoint_on_disk:
                plan.checkpoint = (checkpoint, self._directory.checkpoint)
        return plan if dirty or plan.checkpoint is not None else None

    def flush_done(self, plan: FlushPlan) -> None:
        """Take over what a plan that ran has put on the disk.

        Raises:
            ValueError: the plan has not run, or has failed.
        """
        plan.finish()
        if plan.log is self.commit_log:
            self._checkpoint = self._checkpoint._replace(physic=max(self._checkpoint.physic, plan.store_timestamp))
        if plan.checkpoint is not None and self._is_open:
            self._checkpoint_on_disk = plan.checkpoint[0]
            _, logics, indexes = plan.checkpoint[0]
            self._checkpoint = self._checkpoint._replace(logics=logics, indexes=indexes)

    def flush(self) -> None:
        """Put everything on the disk, and wait for it; in durability sync consumers see it then.

        Raises:
            StoreError: the disk refuses; the store takes no further messages.
        """
        for make_plan in (self.flush_plan, self.flush_consume_queues_plan):
            if (plan := make_plan()) is not None:
                plan.run()
                self.flush_done(plan)
        self.dispatch_flushed()

    def check_disk(self) -> DiskSpace:
        """Measure the disk: above ``disk_full_ratio`` messages are refused until a later call finds room.

        Raises:
            StoreError: it cannot be measured.
        """
        self._require_open()
        with translated("measure the disk of", self.config.root):
            self._disk = self._file_system.space(self.config.root)
        self._update_refusal()
        if self._refusal is not None:
            self._log_refusal(self._refusal())
        elif self._has_logged_refusal and not self._has_refused:
            LOGGER.info("store takes messages again root=%s", self.config.root)
            self._has_logged_refusal = False
        self._has_refused = False
        return self._disk

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of ``topic`` and return how many had messages; made again, they begin at 0.

        Its records stay in the commit log until they expire, but come back at no restart.

        Raises:
            StoreError: the disk refuses.  If the queues are empty then, only files are left, and the topic takes no
                messages until a later call succeeds.
        """
        self._require_open()
        if any(queue.files.files for queue in self.queues.of_topic(topic)):
            self._deleted.add(topic, self.commit_log.max_offset)
        self._dispatcher.forget(topic)
        return self.queues.destroy_topic(topic)

    def destroy(self) -> None:
        """Close the store and delete log, queues, index and checkpoint; tables in ``config/`` stay.

        Raises:
            StoreError: something cannot be deleted.
        """
        self._require_open()
        self._is_open = False
        self._update_refusal()
        try:
            for queue in self.queues:
                queue.destroy()
                self.queues.remove_if_empty(queue.topic)
            self.commit_log.files.remove_directory()
            self._deleted.restrict(0, 0)
            self._directory.delete_leftovers()
            self._directory.mark_closed()
        finally:
            self._forget()
            self._directory.release()

    @property
    def has_failed(self) -> bool:
        """Whether the disk has refused what was stored already: what was not flushed before may be lost."""
        return self._failure is not None

    def statistics(self) -> StoreStatistics:
        """Return a snapshot for monitoring and tests."""
        self._require_open()
        log = self.commit_log
        files = [file for queue in self.queues for file in queue.files.files] + log.files.files
        return StoreStatistics(
            messages_put=self._appender.messages_put,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            flushed_offset=log.flushed_offset,
            store_timestamp=log.store_timestamp,
            queues=sum(bool(queue.files.files) for queue in self.queues),
            mapped_files=sum(file.is_mapped for file in files),
            reserved_bytes=sum(file.reserved for file in files),
            damaged_records=log.damage.count,
            refusal=str(self._refusal()) if self._refusal is not None else "",
        )

    def _load(self, progress: Progress | None) -> RecoveryReport:
        layout = self._directory.check(self.config, self.queues)
        self._deleted.load()
        checkpoint = load_checkpoint(self._file_system, self._directory.checkpoint)
        self.commit_log.files.load(layout.log, self._directory.set_aside)
        self.commit_log.files.sync_directory()  # a file that was deleted last comes back no more when the next one goes
        if any(queue.files.stray_starts for queue in layout.queues):
            # They are deleted and built again.  If this start is killed before that, only who reads the whole log
            # finds out that a queue is too short.
            Checkpoint().save(self._file_system, self._directory.checkpoint)
        self.queues.load(layout.queues)
        clean = self._directory.mark_running()
        recovery = Recovery(
            self.config,
            self._file_system,
            self.commit_log,
            self.queues,
            self._deleted,
            checkpoint,
            self._tags_code_of,
        )
        report = recovery.run(clean=clean, progress=progress)
        vouched = recovery.checkpoint.indexes
        report = replace(report, removed_index_files=self.index.load(vouched, clean=clean))
        newest = self.commit_log.store_timestamp
        self._checkpoint = Checkpoint(newest, newest, min(vouched, self.index.end_timestamp))  # of files that are there
        on_disk = load_checkpoint(self._file_system, self._directory.checkpoint)
        if self._checkpoint != on_disk or not self._file_system.exists(self._directory.checkpoint):
            self._checkpoint.save(self._file_system, self._directory.checkpoint)
        self._checkpoint_on_disk = self._checkpoint
        return report

    def _put_on_disk(self) -> None:
        """Flush all, remove files that were made ahead, write the checkpoint, and only then remove ``abort``."""
        log = self.commit_log
        self.index.catch_up_before_close()
        plan = FlushPlan(self._file_system, self._fail)
        fill_commit_log_plan(plan, log, 0)
        fill_consume_queue_plan(plan, self.queues, 0)
        checkpoint = Checkpoint(log.store_timestamp, log.store_timestamp, self._checkpoint.indexes)
        checkpoint = checkpoint._replace(indexes=self.index.fill_flush_plan(plan, checkpoint, before_close=True))
        plan.run()
        log.files.remove_from(sum(file.start < log.max_offset for file in log.files.files))
        for queue in self.queues:
            files = queue.files
            used = sum(file.start < queue.end_position for file in files.files)
            if used < len(files.files):
                files.remove_from(used)
                if not used:
                    files.remove_directory()
                    self.queues.remove_if_empty(queue.topic)
        checkpoint.save(self._file_system, self._directory.checkpoint)
        self._directory.mark_closed()

    def _forget(self) -> None:
        """Drop all files; views that readers hold stay valid."""
        directory = self._directory
        for queue in self.queues:
            queue.detach()
        waits_for_flush = self.config.durability is Durability.SYNC
        self.commit_log = CommitLog(
            MappedFileQueue(
                self._file_system,
                directory.commit_log,
                self.config.commit_log_file_size_bytes,
                reserve_step_bytes=self.config.reserve_step_bytes,
                scratch=directory.scratch,
            ),
            SYNCED_FILL_PIECE_BYTES if waits_for_flush else FILL_PIECE_BYTES,
        )
        self.queues = QueueTable(self.config, self._file_system, directory.consume_queue, directory.scratch)
        self.cold_reads = ColdReads(self.commit_log, self.config, self._file_system)
        log, paths = (self.commit_log, self.cold_reads), (directory.index, directory.scratch)
        self.index = MessageIndex(self.config, self._file_system, *log, *paths, self._clock_ms)
        self._deleted = DeletedTopics(directory.config / "deletedTopics.json", self._file_system)
        self._dispatcher = Dispatcher(wait_for_flush=waits_for_flush)
        self._reader = StoreReader(self.config, self.commit_log, self.queues, self.cold_reads)
        self._appender = Appender(self.config, self.commit_log, self.queues, self._dispatcher, self._clock_ms)
        self._checkpoint = self._checkpoint_on_disk = Checkpoint()

    def _fail(self, error: StoreError) -> None:
        """Take no further messages; called in the thread of the flush that failed."""
        self._failure = error
        self._update_refusal()
        self._log_refusal(error)

    def _log_refusal(self, error: StoreError) -> None:
        """Log why messages are refused, once until ``check_disk`` finds that none was for a while."""
        self._has_refused = True
        if not self._has_logged_refusal:
            self._has_logged_refusal = True
            LOGGER.error("store refuses messages root=%s error=%s", self.config.root, error)

    def _update_refusal(self) -> None:
        if not self._is_open:
            self._refusal = self._closed_error
        elif self._failure is not None:
            self._refusal = self._failed_error
        elif self._disk is not None and self._disk.used_percent > self.config.disk_full_ratio:
            self._refusal = self._full_error
        else:
            self._refusal = None

    def _require_open(self) -> None:
        if not self._is_open:
            raise self._closed_error()

    def _closed_error(self) -> StoreError:
        return StoreClosedError(f"the store {self.config.root} is not open")

    def _failed_error(self) -> StoreError:
        return StoreError(f"the store takes no messages since its disk failed: {self._failure}")

    def _full_error(self) -> StoreError:
        assert self._disk is not None, "set before this became the refusal"
        return StoreFullError(
            f"the disk of {self.config.root} is {self._disk.used_percent} % full, {self._disk.available_bytes} bytes"
            f" are free: no messages above {self.config.disk_full_ratio} % (disk_full_ratio)"
        )
