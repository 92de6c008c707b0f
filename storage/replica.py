"""The store of a slave: the bytes of the master's commit log are appended as they come, cut anywhere.

Problem: a record whose end is still to come must not be read, and after a kill it must not pass for a whole one: a cut
in its last properties would not show.

Rejected: to keep its beginning in memory, as a record may be as long as a file.  A second dispatcher: the records that
recovery finds without units are given to the same code.

Invariant: the first 8 bytes of a record, with its magic number, are written last.  So a killed slave leaves the same
as a killed master, and recovery ends its log at the last whole record.  ``max_offset`` of the log is the end of the
records that have their units.

The first reader of a message checks its body, not the copy: for a large message the CRC would cost more than the rest
of its dispatch.  Readers skip a damaged one, as those of the master do.  Where no record can begin, bytes are taken as
they are up to the end of the file.  Then the records in them that prove themselves are given to consumers, see
``log_scan``.  A start of the store before that treats them as any damage.

Source: HAService.java, HAClient; CommitLog.java, appendData; store.md 9.3.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from triomq.protocol.errors import StoreError, StoreLayoutError
from triomq.protocol.record.layout import BLANK_HEAD, BLANK_MAGIC, MESSAGE_MAGIC, MIN_RECORD_BYTES
from triomq.protocol.record.record import RecordCheck
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.commit_log.log_scan import LogScan
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.flush import Refusal
from triomq.storage.reading.cold_read import PAUSE, Work
from triomq.storage.recovery.redispatch import Redispatcher

_START_BYTES: Final = BLANK_HEAD.size  # size and magic number of a record
_unpack_start: Final = BLANK_HEAD.unpack_from
_queue_of = itemgetter(RecordCheck._fields.index("queue_id"), RecordCheck._fields.index("topic"))
_OTHER_SIZES: Final = "the commit log files of master and slave must have one size (commit_log_file_size_bytes)"


class Replica:
    """Appends to the log and the queues of an open store; in the store's thread.

    Attributes:
        end: where the log ends, an incomplete record included; 0 without a log.  A slave's first report on a connection
            is this, as the master continues there.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, dispatcher: Redispatcher, refusal: Refusal) -> None:
        """Continue the log; ``dispatcher`` writes the units, ``refusal`` knows why nothing is taken."""
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._refusal = refusal
        self.end = self._whole_end = log.max_offset  # a record that is not complete begins at the whole end
        self._start = bytearray()  # of that record, not written yet

    @property
    def durable_end(self) -> int:
        """Where the log ends on the disk.  All of an incomplete record counts: it acknowledges no message."""
        flushed = self._log.flushed_offset
        return self.end if flushed == self._whole_end else flushed

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes of the master's log; ``dispatching`` shows the records that are complete.

        Args:
            offset: where they begin in the master's log: at the end of this one, or at the start of a file if this one
                is empty.
            data: any number of bytes of one file.

        Raises:
            StoreLayoutError: the bytes do not continue the log, or the files of the master's log have another size.
            StoreFullError: the disk is full.
            StoreError: a write failed, now or earlier.
        """
        if (error := self._refusal.error()) is not None:
            raise error
        rest = memoryview(data)
        if rest:
            file = self._file_for(offset, len(rest))
            self._log.prepare(file, offset + len(rest) - file.start)
            while rest:
                taken = 0 if self._start else self._take_whole(file, rest)
                rest = rest[taken or self._take(file, rest) :]

    def dispatching(self) -> Work[int]:
        """Give the records that are complete now to consumers and return how many they were.  One call at a time.

        Raises:
            StoreFullError, StoreError: a unit cannot be written; the next call begins with its record.
        """
        log, count, stop = self._log, 0, self._whole_end
        scan = LogScan(log, log.max_offset, stop=stop, check_crc=False)
        for run in scan.runs():
            self._dispatch(run, scan.end)
            count += len(run)
            yield PAUSE
        log.max_offset = stop
        for part in scan.damage:
            log.note_damage(part.start, part.reason)
        if scan.end < stop:
            log.note_damage(scan.end, scan.stopped_by)
        return count

    def drop_incomplete(self) -> None:
        """Forget the record that is not complete: before a stop, and before a master sends that may not have it.

        Raises:
            StoreError: the disk reports an error.
        """
        file = self._log.files.file_at(self._whole_end)
        if file is not None and self.end > self._whole_end:
            file.zero_from(self._whole_end - file.start)
        self._start.clear()
        self.end = self._whole_end

    def _file_for(self, offset: int, length: int) -> MappedFile:
        """Return the file that takes ``length`` bytes from ``offset`` on."""
        files = self._log.files
        is_empty = self.end == files.start and len(files.files) <= 1
        if offset != self.end and not is_empty:
            raise StoreLayoutError(f"the master sends its log from {offset}, but this log ends at {self.end}")
        if offset % files.file_size + length > files.file_size:
            raise StoreLayoutError(f"{length} bytes at {offset} of the master's log cross a file's end: {_OTHER_SIZES}")
        if is_empty and not (files.files and offset == self.end):
            if offset < 0 or offset % files.file_size:
                raise StoreLayoutError(f"the master's log begins at {offset}, where no file begins: {_OTHER_SIZES}")
            files.remove_from(0)
            files.create_next(offset)
            self._log.resume(offset)
            self.end = self._whole_end = offset
        return files.file_at(offset) or files.create_next(offset)

    def _take_whole(self, file: MappedFile, data: memoryview) -> int:
        """Append the records that bytes begin with and hold whole; return how many bytes these are.

        Nearly all records come this way, in a fraction of the time of ``_take``.
        """
        map_, at, done = file.map, self.end - file.start, 0
        most = min(len(data), file.size - at)
        while most - done >= MIN_RECORD_BYTES:
            size, magic = _unpack_start(data, done)
            stop = done + size
            if magic != MESSAGE_MAGIC or size < MIN_RECORD_BYTES or stop > most:
                break
            body_at = done + _START_BYTES
            map_[at + _START_BYTES : at + size] = data[body_at:stop]
            map_[at : at + _START_BYTES] = data[done:body_at]
            at += size
            done = stop
        self.end += done
        self._whole_end = self.end
        return done

    def _take(self, file: MappedFile, data: memoryview) -> int:
        """Append some bytes, at most to the end of the record that they continue; return how many."""
        start, begin = self._start, self._whole_end
        start_bytes = min(_START_BYTES, file.end - begin)
        if len(start) < start_bytes:
            part = data[: start_bytes - len(start)]
            start += part
        else:
            part = data[: self._stop_of(file) - self.end]
            at = self.end - file.start
            file.map[at : at + len(part)] = part
        self.end += len(part)
        if len(start) == start_bytes and self.end == (stop := self._stop_of(file)):
            at = begin - file.start
            file.map[at : at + start_bytes] = bytes(start)
            start.clear()
            self._whole_end = stop
        return len(part)

    def _stop_of(self, file: MappedFile) -> int:
        """Return where the record ends of which the start is known; the end of the file if it is none."""
        begin = self._whole_end
        left = file.end - begin
        if left < _START_BYTES:
            return file.end
        size, magic = BLANK_HEAD.unpack(self._start)
        if magic == BLANK_MAGIC and size != left:
            raise StoreLayoutError(f"a file of the master's log ends at {begin + size}: {_OTHER_SIZES}")
        return begin + size if magic == MESSAGE_MAGIC and MIN_RECORD_BYTES <= size <= left else file.end

    def _dispatch(self, run: Sequence[RecordCheck], end: int) -> None:
        """Write the units of records, show them, and note the ``end`` of the last one."""
        dispatcher = self._dispatcher
        dispatcher.start(self._log.min_offset)  # the master has lost the messages before a gap
        try:
            dispatcher.dispatch(run)
            dispatcher.finish()
        except StoreError:
            queues = [self._queues.find(record.topic, record.queue_id) for record in run]
            shown_to = max((queue.max_physical_offset for queue in queues if queue is not None), default=0)
            if shown := [record for record in run if record.physical_offset < shown_to]:
                self._show(shown, shown_to)
            raise
        self._show(run, end)

    def _show(self, run: Sequence[RecordCheck], end: int) -> None:
        """Let readers have records whose units are written, up to ``end``."""
        log, dispatcher = self._log, self._dispatcher
        newest_ms = log.store_timestamp
        for record in run:
            if record.store_timestamp < newest_ms:
                log.clock_steps.add(record.physical_offset, newest_ms)
            newest_ms = record.store_timestamp
        log.max_offset = log.checked_from = end
        log.store_timestamp = newest_ms
        dispatcher.bridged.clear()
        for queue_id, topic in set(map(_queue_of, run)):
            queue = self._queues.find(topic, queue_id)
            if queue is not None and queue.on_arrival is not None:
                queue.on_arrival(queue)
