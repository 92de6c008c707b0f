"""Delete old files: first those of the commit log, then those of the consume queues, then those of followers.

``plan`` decides, and touches nothing; ``Retention`` carries it out, one file after the other, so that the order on the
disk is certain: after a power loss no file is missing between others.  The newest file of a sequence always stays.

A deleted file leaves its sequence at once.  Its space comes free when no reader holds a view of it any more; that, and
the wait for the directory, is ``Deletion.finish``, which may run in a worker thread.

Differences to RocketMQ 4.9.7: a disk that is too full costs as many files as bring it below ``disk_clean_ratio``, there
up to ten at once; a file in use is never taken from its readers, there after 120 s; a file that a connected slave has
yet to copy is deleted only for a disk that is too full, there as any other.
Source: DefaultMessageStore.java, CleanCommitLogService, CleanConsumeQueueService; store.md 5.10.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from triomq.protocol.errors import StoreError
from triomq.protocol.record.consume_queue_unit import UNIT, UNIT_SIZE
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import correct_min_offset, find_start
from triomq.storage.files.file_system import DiskSpace
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import MappedFileQueue
from triomq.storage.message_store import MessageStore

LOGGER: Final = logging.getLogger("triomq.storage.retention")

MAX_FILES_PER_RUN: Final = 10
"""Commit log files deleted in one run.  Source: MappedFileQueue.java, DELETE_FILES_BATCH_MAX."""

_RUNS_PER_REQUEST: Final = 20  # MAX_MANUAL_DELETE_FILE_TIMES
_MS_PER_HOUR: Final = 3_600_000


class Reason(Enum):
    """Why a file of the commit log is deleted."""

    AGE = "older than retention_hours"
    LENGTH = "commit log longer than retention_bytes"
    DISK = "disk fuller than disk_clean_ratio"


class LogFile(NamedTuple):
    """A file of the commit log that may be deleted: it is full, flushed, and not the newest.

    Attributes:
        is_needed: a connected slave has yet to copy it.
    """

    size_bytes: int
    modified_ms: int
    is_needed: bool = False


class Moment(NamedTuple):
    """What a plan depends on besides the files.

    Attributes:
        now_ms: the time.
        is_delete_hour: the local hour is one of ``delete_when``.
        is_requested: an administrator asked for it, which counts as a delete hour.
        log_bytes: length of the whole commit log.
        is_clock_trusted: it was not set forward a moment ago: else nothing is deleted for its age.
        disk: of the store; files that are deleted already, but still read, count as free.
    """

    now_ms: int
    is_delete_hour: bool
    is_requested: bool
    log_bytes: int
    disk: DiskSpace
    is_clock_trusted: bool = True


def plan(files: Iterable[LogFile], moment: Moment, config: StoreConfig) -> list[Reason]:
    """Return for each file to delete, from the oldest on, why; at most ``MAX_FILES_PER_RUN``.

    A file that a clock behind has dated counts as modified no earlier than those before it.
    """
    reasons: list[Reason] = []
    modified_ms = 0
    used, available = moment.disk
    log_bytes = moment.log_bytes
    for file in files:
        modified_ms = max(modified_ms, file.modified_ms)
        used_percent = DiskSpace(used, available).used_percent
        is_old = moment.is_clock_trusted and modified_ms + config.retention_hours * _MS_PER_HOUR <= moment.now_ms
        may_delete = moment.is_delete_hour or moment.is_requested or used_percent > config.disk_max_used_ratio
        if len(reasons) == MAX_FILES_PER_RUN:
            break
        if config.clean_file_forcibly and used_percent > config.disk_clean_ratio:
            reasons.append(Reason.DISK)
        elif file.is_needed:
            break
        elif config.retention_bytes is not None and log_bytes > config.retention_bytes:
            reasons.append(Reason.LENGTH)
        elif may_delete and is_old:
            reasons.append(Reason.AGE)
        else:
            break
        used, available = used - file.size_bytes, available + file.size_bytes
        log_bytes -= file.size_bytes
    return reasons


class Deletion:
    """Files that have left the store."""

    def __init__(self) -> None:
        self._files: list[MappedFile] = []
        self._sequences: list[MappedFileQueue] = []

    def take_oldest(self, sequence: MappedFileQueue) -> MappedFile:
        """Delete the oldest file of a sequence.

        Raises:
            StoreError: the disk reports an error; the file is still there.
        """
        file = sequence.remove_oldest()
        self._files.append(file)
        self._sequences.append(sequence)
        return file

    def __len__(self) -> int:
        return len(self._files)

    def is_certain(self, sequence: MappedFileQueue) -> bool:
        """Whether each deletion in a sequence survives a power cut."""
        return sequence not in self._sequences

    @property
    def size_bytes(self) -> int:
        """Bytes of the files whose space is not free yet."""
        return sum(file.size for file in self._files)

    def finish(self) -> bool:
        """Sync the deletion and free the space of files without readers; may run in a worker thread.

        Returns:
            ``False`` if a file is still read: call it again later.

        Raises:
            StoreError: the disk reports an error; the files may reappear at the next start.
        """
        while self._sequences:
            self._sequences[-1].sync_directory()
            self._sequences.pop()
        self._files = [file for file in self._files if not file.release()]
        return not self._files


class Retention:
    """Deletes files of an open store.  In the store's thread, but for ``Deletion.finish``.

    Attributes:
        held: deletions that could not be finished, because a reader still has views, or the disk reports an error.
    """

    def __init__(self, store: MessageStore, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Prepare for ``store``, which must be open; ``clock_s`` is monotonic."""
        self.held: list[Deletion] = []
        self._store = store
        self._clock_s = clock_s
        self._followed_start = -1  # unknown: an earlier process may have been killed between log and queues
        self._refused_queues: tuple[ConsumeQueue, ...] = ()
        self._requested_runs = 0
        self._future_s: dict[int, float] = {}  # files of the future: when they were seen first, by a steady clock

    def request(self) -> None:
        """Make the next twenty runs delete as in a delete hour.  Source: executeDeleteFilesManually."""
        self._requested_runs = _RUNS_PER_REQUEST

    def plan(self, *, is_clock_trusted: bool = True) -> list[Reason]:
        """Measure disk and files, and decide for one run.

        Decides for nothing while the last deletion is not synced: if that file came back after a power cut, but not the
        next ones, the log would end there.

        Raises:
            StoreError: something cannot be measured.
        """
        store, log = self._store, self._store.commit_log
        if not all(deletion.is_certain(log.files) for deletion in self.held):
            return []
        used, available = store.check_disk()
        freed = sum(deletion.size_bytes for deletion in self.held)
        now_ms = store.now_ms()
        moment = Moment(
            now_ms=now_ms,
            is_delete_hour=time.localtime(now_ms / 1000).tm_hour in store.config.delete_when,
            is_requested=self._requested_runs > 0,
            log_bytes=log.max_offset - log.files.start,
            disk=DiskSpace(max(used - freed, 0), available + freed),
            is_clock_trusted=is_clock_trusted,
        )
        self._requested_runs = max(self._requested_runs - 1, 0)
        needed_from = log.needed_from
        closed = [file for file in log.files.files[:-1] if file.end <= log.flushed_offset]
        files = (LogFile(file.size, self._modified_ms(file, now_ms), file.end > needed_from) for file in closed)
        return plan(files, moment, store.config)

    def _modified_ms(self, file: MappedFile, now_ms: int) -> int:
        """Return when a file was modified; one that a clock ahead has dated ages from when it is seen first."""
        modified_ms = file.modified_ms()
        if modified_ms <= now_ms:
            self._future_s.pop(file.start, None)
            return modified_ms
        steady_s = self._clock_s()
        return now_ms - round((steady_s - self._future_s.setdefault(file.start, steady_s)) * 1000)

    def delete_log_file(self, reason: Reason) -> Deletion:
        """Delete the oldest file of the commit log, which ``plan`` has chosen.

        Raises:
            StoreError: the disk reports an error; the file is still there.
        """
        deletion = Deletion()
        file = deletion.take_oldest(self._store.commit_log.files)
        LOGGER.info("commit log file deleted path=%s reason=%s", file.path, reason.value)
        return deletion

    @property
    def is_behind(self) -> bool:
        """Whether the commit log begins elsewhere than the queues and followers know."""
        return self._followed_start != self._store.commit_log.min_offset or bool(self._refused_queues)

    @property
    def queues_behind(self) -> list[ConsumeQueue]:
        """The queues that have to follow the commit log; those that could not, if the log begins where it did then."""
        is_known = self._followed_start == self._store.commit_log.min_offset
        return list(self._refused_queues if is_known else self._store.queues)

    def reading_for(self, queues: Iterable[ConsumeQueue]) -> Callable[[], None]:
        """Return the call to make in a worker thread before ``correct_queues`` looks at ``queues``.

        Most queues rest, and their units are on the disk only.  It raises ``StoreError`` if they cannot be read.
        """
        parts = [(tuple(queue.files.files), queue.max_offset) for queue in queues if queue.files.files]
        return partial(_read_starts, parts, self._store.commit_log.min_offset)

    def correct_queues(self, queues: Iterable[ConsumeQueue]) -> None:
        """Start queues with the first message that is still in the commit log."""
        log_start = self._store.commit_log.min_offset
        for queue in queues:
            if queue.files.files:
                correct_min_offset(queue, log_start)

    def delete_queue_files(self, queues: Iterable[ConsumeQueue]) -> Deletion:
        """Delete the oldest file of each queue if all its messages are gone; call it until nothing was deleted.

        Raises:
            StoreError: the first one cannot be deleted; nothing was deleted.
        """
        deletion = Deletion()
        for queue in queues:
            files = queue.files.files
            # The file with the last unit is still being written, even if it is full.
            if files and files[0].end <= queue.min_offset * UNIT_SIZE and files[0].end < queue.end_position:
                try:
                    deletion.take_oldest(queue.files)
                except StoreError:
                    if not deletion:
                        raise
                    break  # finish the earlier deletions first; the next call meets this file again
        return deletion

    def follow(self, refused_queues: Iterable[ConsumeQueue] = ()) -> None:
        """Let the index follow the log; call it after the queues were corrected and their files deleted.

        Args:
            refused_queues: queues whose files could not be deleted; they remain behind.

        Raises:
            StoreError: a file of the index cannot be deleted; the next call tries it again.
        """
        log_start = self._store.commit_log.min_offset
        self._store.index.files.delete_expired(log_start)
        self._followed_start = log_start
        self._refused_queues = tuple(refused_queues)

    def finish_held(self) -> None:
        """Free the space of files whose readers are done; may run in a worker thread while nothing else is called.

        Raises:
            StoreError: one of them cannot be deleted.
        """
        refusals: list[StoreError] = []
        held = []
        for deletion in self.held:
            try:
                if deletion.finish():
                    continue
            except StoreError as exc:
                refusals.append(exc)
            held.append(deletion)
        self.held = held
        if refusals:
            raise refusals[0]


def _read_starts(queues: Sequence[tuple[Sequence[MappedFile], int]], log_start: int) -> None:
    """Read the units of queues, of which files and end are given, that a search for the start of the log reads."""
    for files, end in queues:

        def physical_offset(number: int, files: Sequence[MappedFile] = files) -> int:
            file_number, at = divmod(number * UNIT_SIZE - files[0].start, files[0].size)
            unit = files[file_number].read(at, UNIT_SIZE)
            return int(UNIT.unpack(unit)[0]) if unit else log_start  # deleted meanwhile

        find_start(files[0].start // UNIT_SIZE, end, log_start, physical_offset)
