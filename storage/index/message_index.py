"""The index of a store: where the messages of a topic with a certain key are.

It is built from the commit log in the background, in steps that the owner schedules: an append does nothing for it,
and a search first indexes up to the end of the log.  Because the log holds everything, a file that is damaged, that may
be damaged after a crash, or that follows a missing file is deleted and rebuilt with all files after it.

Differences from RocketMQ 4.9.7: indexing resumes where the newest file ends, so a crash or a deleted file neither loses
nor duplicates an entry; the name of a new file never goes back when the clock does.
Source: IndexService.java; store.md 4, 5.4, 5.7.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from triomq.protocol.errors import IndexDamagedError, StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.record.index_unit import key_hash, key_hashes
from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.log_state import Checkpoint
from triomq.storage.flush import FlushPlan
from triomq.storage.index.index_file import NO_OFFSET, NO_UNITS, IndexFile
from triomq.storage.index.index_files import IndexFiles
from triomq.storage.index.index_keys import IndexBatch, KeyReader
from triomq.storage.reading.cold_read import PAUSE, ColdReads, Work

LOGGER: Final = logging.getLogger("triomq.storage.index.message_index")

RECORDS_AT_ONCE: Final = 512  # 0.6 ms
MAX_MATCHES: Final = 64  # maxMsgsNumBatch
_CLOSE_LIMIT_S: Final = 5.0
_CATCH_UP_STEPS: Final = 8000  # of a search: some million records behind


class IndexMatches(NamedTuple):
    """What a search has found.

    Attributes:
        offsets: physical offsets in ascending order; a record may be deleted, or have another key of the same hash.
        last_update_timestamp, last_update_offset: store time (ms) and physical offset of the newest indexed message;
            0 if nothing was found.
    """

    offsets: list[int]
    last_update_timestamp: int = 0
    last_update_offset: int = 0


class MessageIndex:
    """The index files of one store, from the oldest to the newest.

    Attributes:
        files: the index files.
        position: records before it are indexed.
    """

    def __init__(
        self,
        config: StoreConfig,
        file_system: FileSystem,
        log: CommitLog,
        cold: ColdReads,
        clock_ms: Callable[[], int],
        clock_s: Callable[[], float],
    ) -> None:
        """Set up the index of ``log``; opens nothing.

        Args:
            config: settings of the store.
            file_system: access to files.
            log: the commit log to index.
            cold: loads parts of it that are not in memory.
            clock_ms: clock for the names of new files.
            clock_s: monotonic clock, seconds.
        """
        self._log = log
        self._cold = cold
        self._is_enabled = config.index  # if not, searches still find entries of before
        self._waits_for_flush = config.durability is Durability.SYNC
        self._reader = KeyReader(log)
        self.files = IndexFiles(config, file_system, clock_ms)
        self._clock_s = clock_s
        self._skip = 0  # keys of the record at ``position`` that are indexed already
        self._is_position_known = True
        self._refusals = EventLog(LOGGER, "messages are not indexed for now: %s", logging.WARNING)
        self._kept_end: int | None = None  # where it ended when files covered by the checkpoint were deleted
        self.position = 0

    def load(self, checkpoint: Checkpoint, *, clean: bool) -> tuple[str, ...]:
        """Load the files of a recovered log; delete those that cannot be trusted and return their names.

        Args:
            checkpoint: after a crash, only full files that it vouches for are known to be on the disk.
            clean: the previous shutdown was clean.

        Raises:
            StoreError: a file cannot be read or deleted.
        """
        removed = self.files.load(lambda file: self._check(file, None if clean else checkpoint))
        return (*self._resume(), *removed)

    def vouched(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint that vouches for those of its full index files that exist."""
        headers = [file.header for file in self.files.all if _is_vouched(file, checkpoint)]
        newest = headers[-1] if headers else NO_UNITS
        end = newest.end_physical_offset + 1 if headers else 0
        return checkpoint._replace(indexes=newest.end_timestamp, index_end=end)

    @property
    def lag_bytes(self) -> int:
        """How much of the commit log is not indexed yet; 0 if indexing is off."""
        return max(self._log.max_offset - self.position, 0) if self._is_enabled else 0

    def follow(self) -> Work[bool]:
        """Like ``catch_up``, but first load pages that are not in memory, as after a start or in a large rebuild."""
        if not self._is_enabled or self.position >= self._log.max_offset:
            return False
        stop = yield from self._cold.load_log(max(self.position, self._log.min_offset))
        if self.files.all:
            yield from self.files.all[-1].load_slots()
        return self.catch_up(stop=stop)

    def catch_up(self, end: int | None = None, stop: int | None = None) -> bool:
        """Index up to a few hundred more records, or a few thousand keys; return whether more are left.

        If writing fails nothing is lost: a later call tries again.

        Args:
            end: index records before it; by default, all that are visible to consumers.
            stop: read no record after the one at this offset.
        """
        log = self._log
        if end is None:
            end = log.flushed_offset if self._waits_for_flush else log.max_offset
        if not self._is_position_known:
            self._resume()
        if not self._is_enabled or self.position >= end:
            return False
        if self.position < log.min_offset:
            self.position, self._skip = log.min_offset, 0
        if stop is not None and stop <= self.position:  # another task indexed this part
            return True
        batch = self._reader.read(self.position, end, RECORDS_AT_ONCE, stop, self._skip)
        if batch.damage:
            LOGGER.error("messages left out of the index, the commit log is damaged reason=%s", batch.damage)
        try:
            self._write(batch)
        except IndexDamagedError as exc:
            self._rebuild(self.files.all[-1], exc)
            return True
        except StoreError as exc:
            self._refusals.occurred(exc)
            self._resume()  # a part of the batch may be in a file that became full
            return False
        self.position, self._skip = batch.end, batch.skip
        self._refusals.ended()
        return self.position < end

    def catch_up_before_close(self) -> None:
        """Index everything, for a few seconds at most; the rest is indexed after the next start."""
        deadline = self._clock_s() + _CLOSE_LIMIT_S
        while self.catch_up(self._log.max_offset):
            if self._clock_s() > deadline:
                LOGGER.warning("index not complete position=%d log_end=%d", self.position, self._log.max_offset)
                return

    def search(
        self, topic: str, key: str, max_matches: int, begin_timestamp: int, end_timestamp: int, before: int = NO_OFFSET
    ) -> Work[IndexMatches]:
        """Find the newest messages with a key that were stored in a time range (ms), both ends included.

        Only those with a physical offset below ``before`` count.

        Each step takes about a millisecond.  Store times count as whole seconds after the start of an index file,
        so a message may count as stored up to a second before it was.  In a file whose store times go back, where
        RocketMQ's index has wrong ones, the times of the records count.  Source: store.md 4.6.

        Raises:
            StoreError: a file cannot be read.
        """
        wanted = self._log.max_offset
        for _ in range(_CATCH_UP_STEPS):
            if self.position >= wanted or not (yield from self.follow()):
                break
            yield PAUSE
        max_matches = min(max_matches, MAX_MATCHES)
        hashed = key_hash(topic, key)
        newest, steps = self.files.newest_header, self._log.clock_steps.all
        is_older_enough = all(step.newest_ms < begin_timestamp for step in steps)  # messages before an old file
        found: list[int] = []
        for file in self.files.all[::-1]:
            header = file.header
            goes_back = any(header.begin_physical_offset < at <= header.end_physical_offset for at, _ in steps)
            if file not in self.files.all:  # expired or deleted since the last step
                return (yield from self.search(topic, key, max_matches, begin_timestamp, end_timestamp, before))
            if goes_back or (begin_timestamp <= header.end_timestamp and end_timestamp >= header.begin_timestamp):
                self.files.keep_mapped(file)
                time_of = self._time_of if goes_back else None
                try:
                    yield from file.select(hashed, begin_timestamp, end_timestamp, max_matches, found, time_of, before)
                except IndexDamagedError as exc:
                    self._rebuild(file, exc)
                    return (yield from self.search(topic, key, max_matches, begin_timestamp, end_timestamp, before))
            if (header.begin_timestamp < begin_timestamp and is_older_enough) or len(found) >= max_matches:
                break
        if not found:
            return IndexMatches([])
        return IndexMatches(sorted(found), newest.end_timestamp, newest.end_physical_offset)

    def _time_of(self, physical_offset: int) -> Work[int]:
        yield from self._cold.load_records((physical_offset,))
        return self._log.store_time(physical_offset)

    def fill_flush_plan(self, plan: FlushPlan, checkpoint: Checkpoint, *, before_close: bool = False) -> Checkpoint:
        """Plan a flush of full files; return the checkpoint for the index once the plan has run.

        This is the end of a full file; a later message must be on the disk and in the index, otherwise another file
        could end with the same one.  Files that are rebuilt count only after the checkpoint went back.

        Args:
            plan: the plan to add to.
            checkpoint: state on the disk once the plan has run, except for the index.
            before_close: also flush files that are not full.
        """
        if self._kept_end is not None:
            if self._kept_end < checkpoint.index_end:
                checkpoint = self.vouched(checkpoint._replace(index_end=self._kept_end))
                if not before_close:
                    return checkpoint
            self._kept_end = None
        passed, vouched = min(checkpoint.log_end, self.files.newest_header.end_physical_offset), checkpoint.index_end
        for file in self.files.all:
            _, end_timestamp, _, end, *_ = file.header
            is_certain = not file.room and vouched <= end < passed
            if is_certain or (before_close and (end >= vouched or file is self.files.all[-1])):
                plan.add_file(file.to_flush, (self.files.directory, self.files.directory.parent))
            if is_certain:
                checkpoint = checkpoint._replace(indexes=end_timestamp, index_end=end + 1)
        return checkpoint

    def _check(self, file: IndexFile, crash_checkpoint: Checkpoint | None) -> None:
        if crash_checkpoint is not None and not _is_vouched(file, crash_checkpoint):
            raise IndexDamagedError(f"{file.path}: may be incomplete after the crash")
        before = self.files.newest_header
        if self.files.all and file.header.begin_physical_offset < before.end_physical_offset:
            raise IndexDamagedError(f"{file.path}: starts before the previous file ends")
        if not self._is_enabled:  # deleted files would not be rebuilt
            return
        indexed_to = before.end_physical_offset if self.files.all else -1
        if self._reader.has_keys_between(indexed_to, file.header.begin_physical_offset, RECORDS_AT_ONCE):
            raise IndexDamagedError(f"{file.path}: messages with keys lie between it and the end of the previous file")

    def _resume(self) -> list[str]:
        """Continue in the log where the newest file ends; return the names of files deleted for it."""
        self._is_position_known = False  # on failure ``catch_up`` retries; otherwise records would be indexed twice
        removed: list[str] = []
        while True:
            try:
                self._find_position()
            except IndexDamagedError as exc:
                removed = self._cut(self.files.all[-1], exc) + removed
            else:
                self._is_position_known = True
                return removed

    def _find_position(self) -> None:
        self.position, self._skip = max(self._log.min_offset, 0), 0
        if not self.files.all:
            return
        newest = self.files.all[-1]
        self.files.keep_mapped(newest)
        newest.check_ends()
        end = newest.header.end_physical_offset  # an empty file has that of the one before
        if end < self.position or (newest.is_empty and len(self.files.all) == 1):
            return
        if self._log.check(end, check_crc=False).kind is not RecordKind.MESSAGE:
            raise IndexDamagedError(f"{newest.path}: no record at its end, {end}")
        self.position, self._skip = end, self._count_newest(end)

    def _count_newest(self, physical_offset: int) -> int:
        """Return the number of units at the end of the index that belong to the record there."""
        found = 0
        for file in reversed(self.files.all):
            for number in range(file.header.index_count - 1, 0, -1):
                if file.unit(number).physical_offset != physical_offset:
                    return found
                found += 1
        return found

    def _write(self, batch: IndexBatch) -> None:
        if batch.last_record < 0:
            return
        file = self.files.writable()
        hashes = key_hashes(batch.keys, batch.shares)
        begin = 0
        while begin < len(hashes):
            file = self.files.writable()
            end = begin + file.room
            file.append(hashes[begin:end], batch.offsets[begin:end], batch.timestamps[begin:end])
            begin = end
        if batch.last_record > file.header.end_physical_offset:
            self.files.writable()  # RocketMQ creates the next file for any record that follows a full one

    def _rebuild(self, file: IndexFile, reason: IndexDamagedError) -> None:
        if file in self.files.all:  # else another search has met the damage too
            self._cut(file, reason)
            self._resume()

    def _cut(self, first: IndexFile, reason: IndexDamagedError) -> list[str]:
        """Delete ``first`` and all after it; return their names."""
        removed = self.files.delete_from(first, reason)
        kept = self.files.newest_header.end_physical_offset + 1 if self.files.all else 0
        self._kept_end = kept if self._kept_end is None else min(self._kept_end, kept)
        return removed


def _is_vouched(file: IndexFile, checkpoint: Checkpoint) -> bool:
    """Whether a file is full and, by the checkpoint, on the disk; RocketMQ's says so by a time."""
    if checkpoint.index_end < 0:
        return not file.room and file.header.end_timestamp <= checkpoint.indexes
    return not file.room and file.header.end_physical_offset < checkpoint.index_end
