"""Flushing in three steps, so that only the waiting for the disk happens in another thread, and why a store refuses
messages: it is closed, a flush has failed, or the disk is full.

1. The owner's thread makes a plan: which files, and what will be on the disk when they are synced.
2. ``FlushPlan.run`` syncs them, in any thread; ``fdatasync`` releases the interpreter lock, ``mmap.flush`` does not.
3. The owner's thread completes the plan: offsets and checkpoint move on.

After a failed sync the kernel may have dropped the data, so nothing may count as stored any more: the store refuses
further messages from then on.  The kernel reports it only once, so flushes of the log run one at a time, and none
succeeds after a failed one.  Where a file cannot even be opened, nothing was tried: another flush makes up for it.
Source: MappedFileQueue.java, flush; store.md 5.9.
"""

import logging
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from triomq.protocol.errors import StoreClosedError, StoreError, StoreFullError
from triomq.protocol.event_log import EventLog
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import DiskSpace, FileSystem, is_unopened, store_error, translated
from triomq.storage.files.log_state import Checkpoint
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import MappedFileQueue

LOGGER: Final = logging.getLogger("triomq.storage.message_store")

_PAGE: Final = 4096
_QUEUES_AT_ONCE: Final = 256  # some 1 ms
_MANY: Final = 50  # files and directories: one by one they would take a usual disk a second or more


class FlushPlan:
    """The files that one flush syncs, and the offsets that are on the disk afterwards.

    Attributes:
        complete: ``run`` has succeeded.
        log: the commit log that is flushed, if it is.
        flushed_offset: everything in ``log`` before it is on the disk then.
        store_timestamp: of the last message before ``flushed_offset``, ms.
        queue_positions: consume queue flush: the queues, their generation, and how far their units are
            on the disk then.
        checkpoint: what ``run`` writes at the end, and where.
    """

    def __init__(self, file_system: FileSystem, on_failure: Callable[[StoreError], None] | None = None) -> None:
        """Make an empty plan; ``on_failure`` is called in the thread of ``run``."""
        self._file_system = file_system
        self._on_failure = on_failure
        self._files: list[MappedFile] = []
        self._directories: dict[Path, None] = {}
        self._sequences: list[tuple[MappedFileQueue, int]] = []
        self.checkpoint: tuple[Checkpoint, Path] | None = None
        self.complete = False
        self.log: CommitLog | None = None
        self.flushed_offset = 0
        self.store_timestamp = 0
        self.queue_positions: list[tuple[ConsumeQueue, int, int]] = []

    def add(self, sequence: MappedFileQueue, begin: int, end: int) -> None:
        """Have ``run`` sync the files that hold [begin, end) of a sequence, and its directory if that changed."""
        self._files += [file for file in sequence.files if file.end > begin and file.start < end]
        self._sequences.append((sequence, sequence.directory_changes))

    def add_file(self, file: MappedFile, directories: Iterable[Path]) -> None:
        """Add a file to sync, and the directories that hold its entry."""
        self._files.append(file)
        self._directories.update(dict.fromkeys(directories))

    def finish(self) -> None:
        """Update the planned sequences and queues: their data is on the disk now.  In the owner's thread.

        Raises:
            ValueError: ``run`` has not succeeded.
        """
        if not self.complete:
            raise ValueError("the flush was not run, or it failed")
        if self.log is not None:
            self.log.flushed_offset = max(self.log.flushed_offset, self.flushed_offset)
        for sequence, changes in self._sequences:
            sequence.directory_synced = max(sequence.directory_synced, changes)
        for queue, generation, position in self.queue_positions:
            if queue.generation == generation:  # else it was deleted meanwhile
                queue.flushed_position = max(queue.flushed_position, position)

    def run(self) -> None:
        """Wait until everything is on the disk.  May run in a worker thread.

        Raises:
            StoreError: the disk reports an error; unless only opening a file failed, the store takes no more messages.
        """
        with nullcontext() if self.log is None else self.log.syncing:
            if self.log is not None and self.log.sync_failure is not None:
                raise StoreError(f"an earlier flush has failed, nothing counts as stored: {self.log.sync_failure}")
            try:
                self._sync()
            except StoreError as exc:
                if not is_unopened(exc):
                    if self.log is not None:
                        self.log.sync_failure = exc
                    if self._on_failure is not None:
                        self._on_failure(exc)
                raise
        self.complete = True

    def _sync(self) -> None:
        files, directories = self._files, self._changed_directories()
        together = [*(file.path for file in files if file.pool is not None), *directories]
        if len(together) > _MANY:
            with translated("sync", together[0]):
                self._file_system.sync_all(together)
            files, directories = [file for file in files if file.pool is None], {}
        for file in files:
            if (open_file := file.file_if_there()) is not None:  # else the topic was deleted meanwhile
                try:
                    self._file_system.sync_file(open_file)
                except OSError as exc:  # without a cause: it was open, also where the error is one of rights
                    raise store_error(exc, "sync", file.path) from None
        for directory in directories:
            with translated("sync", directory), suppress(FileNotFoundError):  # the topic was deleted meanwhile
                self._file_system.sync_directory(directory)
        if self.checkpoint is not None:
            checkpoint, path = self.checkpoint
            if not checkpoint.save(self._file_system, path):
                self.checkpoint = None

    def _changed_directories(self) -> dict[Path, None]:
        """Return all directories to sync: of ten thousand new queues that is work enough to leave to ``run``."""
        found: dict[Path, None] = {}
        for sequence, changes in self._sequences:
            for directory in sequence.directories() if sequence.directory_synced < changes else ():
                if directory in found:  # and with it those above
                    break
                found[directory] = None
        return found | self._directories


def sync_files(file_system: FileSystem, parts: Iterable[tuple[MappedFileQueue, int]]) -> None:
    """Sync each sequence from a position on, and the directories that changed; wait for the disk.

    Raises:
        StoreError: the disk reports an error.
    """
    plan = FlushPlan(file_system)
    for files, start in parts:
        plan.add(files, start, sys.maxsize)
    plan.run()
    plan.finish()


def fill_commit_log_plan(plan: FlushPlan, log: CommitLog, least_pages: int) -> bool:
    """Plan to flush the commit log if at least ``least_pages`` pages are dirty (0: anything), or a file is full.

    Returns ``False`` if nothing is planned.
    """
    begin, end = log.flushed_offset, log.max_offset
    if not _is_due(begin, end, log.files.file_size, least_pages):
        return False
    plan.add(log.files, begin, end)
    plan.log = log
    plan.flushed_offset = end
    plan.store_timestamp = log.store_timestamp
    return True


def fill_consume_queue_plan(
    plan: FlushPlan, queues: Iterable[ConsumeQueue], least_pages: int
) -> Generator[tuple[()], None, bool]:
    """Plan to flush each queue with at least ``least_pages`` dirty pages (0: anything), or a full file.

    Yields after some queues, so that others may append to them in between.  Returns ``False`` for nothing to do.
    """
    for number, queue in enumerate(list(queues), 1):
        if not number % _QUEUES_AT_ONCE:
            yield ()
        begin, end = queue.flushed_position, queue.end_position
        if _is_due(begin, end, queue.files.file_size, least_pages):
            plan.add(queue.files, begin, end)
            plan.queue_positions.append((queue, queue.generation, end))
    return bool(plan.queue_positions)


def _is_due(begin: int, end: int, file_size: int, least_pages: int) -> bool:
    is_full = begin // file_size != end // file_size
    return begin < end and (is_full or not least_pages or end // _PAGE - begin // _PAGE >= least_pages)


class Refusal:
    """Whether one store accepts messages, and the reason if not.

    Attributes:
        is_open: whether the store is open.
        is_copy: the store takes the log of a master, see ``Replica``, and no messages.
        failure: the first failed flush or write-back; messages that were not flushed before may be lost.
        is_active: whether messages are refused now.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._disk: DiskSpace | None = None
        self._has_refused = False  # a message, since the disk was measured last
        self._log = EventLog(
            LOGGER, "store refuses messages root=%s error=%s", recovery="store accepts messages again root=%s"
        )
        self.failure: StoreError | None = None
        self.is_open = self.is_copy = False
        self.is_active = True

    def opened(self, *, is_copy: bool = False) -> None:
        """Accept messages from now on, or with ``is_copy`` only the log of a master."""
        self.is_open = True
        self.is_copy = is_copy
        self.failure = self._disk = None
        self._has_refused = False
        self._log.ended(self._config.root)
        self._update()

    def closed(self) -> None:
        """Refuse everything from now on."""
        self.is_open = False
        self._update()

    def failed(self, error: StoreError) -> None:
        """Refuse messages until the store is opened again; may be called in the thread of a flush."""
        self.failure = error
        self._update()
        self.log(error)

    def measured(self, disk: DiskSpace) -> None:
        """Refuse messages while the disk is fuller than ``disk_full_ratio``."""
        self._disk = disk
        self._update()
        if (error := self.error()) is not None:
            self.log(error)
        elif not self._has_refused:
            self._log.ended(self._config.root)
        self._has_refused = False

    def log(self, error: StoreError) -> None:
        """Log the reason, until :meth:`measured` finds that no message was refused since its last call."""
        self._has_refused = True
        self._log.occurred(self._config.root, error)

    def append_error(self) -> StoreError | None:
        """Return the reason to refuse an append: that of :meth:`error`, or that the store copies a master's log."""
        error = self.error()
        if error is None and self.is_copy:
            error = StoreError(f"the store {self._config.root} copies the log of a master: it takes no messages")
        return error

    def error(self) -> StoreError | None:
        """Return a new error that says why nothing can be stored; ``None`` if it can."""
        root, disk = self._config.root, self._disk
        if not self.is_open:
            return self.closed_error()
        if self.failure is not None:
            return StoreError(f"the store takes no messages since its disk failed: {self.failure}")
        if disk is not None and disk.used_percent > self._config.disk_full_ratio:
            return StoreFullError(
                f"the disk of {root} is {disk.used_percent} % full, {disk.available_bytes} bytes are free: "
                f"no messages above {self._config.disk_full_ratio} % (disk_full_ratio)"
            )
        return None

    def closed_error(self) -> StoreError:
        """Return a new error for a store that is not open."""
        return StoreClosedError(f"the store {self._config.root} is not open")

    def _update(self) -> None:
        self.is_active = self.append_error() is not None
