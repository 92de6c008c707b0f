"""The commit log: every record of the store, one after the other, in files of one size.

A record never crosses a file border: what does not fit is preceded by a blank record that ends the file.  At least
8 bytes, a blank record, stay free after every message.  Source: CommitLog.java; store.md 2.
"""

import logging
from mmap import mmap
from threading import Lock
from typing import Final

from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.record.layout import BLANK_HEAD, BLANK_MAGIC
from triomq.protocol.record.record import RecordCheck, RecordKind, check_record
from triomq.storage.files.log_state import ClockSteps
from triomq.storage.files.mapped_file import MappedFile
from triomq.storage.files.mapped_file_queue import MappedFileQueue

MIN_BLANK_BYTES: Final = 8
"""Room that must stay free after a message for the blank record."""

NOT_NEEDED: Final = 2**63
"""``CommitLog.needed_from`` without slaves."""

LOGGER: Final = logging.getLogger("triomq.storage.commit_log.commit_log")

_MAX_DAMAGED_REMEMBERED: Final = 1000
_EMPTY: Final = memoryview(b"")
_JOINED_PART_BYTES: Final = 1024  # longer ones go straight into the map: joining would copy them twice
_FILL_STEP_BYTES: Final = 256 * 1024
FILL_PIECE_BYTES: Final = 64 * 1024
SYNCED_FILL_PIECE_BYTES: Final = 16 * 1024
"""What ``fill_piece_bytes`` is best for the two kinds of durability: of 4 KiB to 1 MiB."""


class CommitLog:
    """Appends and reads records.  One thread owns it.

    Attributes:
        clock_steps: where store times go back.
        damaged_records: how many turned out to be damaged while messages were read; after the first thousand one may
            be counted again.
        files: the mapped files.
        max_offset: end of the last record; where the next one is written.
        flushed_offset: everything before it is on the disk.
        own_from: records from here on were written by this process.
        checked_from: records before it are checked when they are read: those of an earlier process, or of a master.
        store_timestamp: time of the newest record, ms; the next one gets a smaller one if the clock was set back.
        needed_from: slaves read from here on: retention keeps the files that end after it, unless the disk is too full.
        syncing: held, in any thread, while files of the log are synced.
        sync_failure: why that failed; it is never tried again then.
    """

    def __init__(
        self, files: MappedFileQueue, clock_steps: ClockSteps, fill_piece_bytes: int = FILL_PIECE_BYTES
    ) -> None:
        """Describe an empty log of mapped files; nothing is opened.

        ``fill_piece_bytes``: see ``MappedFile.fill``; the less, the less a flush of a short record writes.
        """
        self.files = files
        self.clock_steps = clock_steps
        self._fill_piece_bytes = fill_piece_bytes
        self._damaged: set[int] = set()
        self.damaged_records = 0
        self.max_offset = 0
        self.own_from = self.checked_from = 0
        self.flushed_offset = 0
        self.store_timestamp = 0
        self.needed_from = NOT_NEEDED
        self.syncing = Lock()
        self.sync_failure: StoreError | None = None
        self._message_limit = files.file_size - MIN_BLANK_BYTES  # no message ends after it
        self._map: mmap
        self._current: MappedFile | None = None
        self._at = self._limit = 0

    @property
    def min_offset(self) -> int:
        """Start of the oldest file, -1 without files.  Source: store.md 7.6."""
        return self.files.start if self.files.files else -1

    def resume(self, offset: int) -> None:
        """Continue after the records that were found and checked; all of them count as flushed.

        Raises:
            StoreError: the steps of the clock cannot be saved.
        """
        self.clock_steps.restrict(self.min_offset, offset)
        self.max_offset = self.own_from = self.checked_from = self.flushed_offset = offset
        self._current = None
        self._at = self._limit = 0
        if self.files.files:
            file = self.files.file_at(offset) or self.files.files[-1]
            file.assume_reserved(offset - file.start)
            self._enter(file, offset - file.start)

    def reserve(self, size: int) -> None:
        """Make sure that ``size`` bytes can be appended to one file without the disk refusing them.

        Raises:
            MessageIllegalError: no file can hold that many bytes.
            StoreFullError, StoreError: no space, or the file system reports an error; no byte was written.
        """
        if self._at + size > self._limit:
            self._make_room(size)

    def begin(self, size: int) -> int:
        """Close the current file if ``size`` bytes do not fit, and return the offset where they go.

        ``reserve`` must have made room for them.
        """
        file = self._current
        if file is not None and self._at + size > self._message_limit:
            if self._at < file.size:
                BLANK_HEAD.pack_into(self._map, self._at, file.size - self._at, BLANK_MAGIC)
            following = self.files.file_at(file.end)
            assert following is not None, "reserve() has made the next file"
            self._enter(following, 0)
            self.max_offset = following.start
        return self.max_offset

    def write(self, parts: list[bytes], size: int) -> None:
        """Append packed records of ``size`` bytes at the end, where ``begin`` has made sure that they fit.

        The first part, a head, goes last: a process killed before leaves no magic number in front of torn records.
        """
        map_, head, begin = self._map, parts[0], self._at
        at = head_end = begin + len(head)
        self._at = end = begin + size
        if size <= _JOINED_PART_BYTES * len(parts):
            map_[head_end:end] = b"".join(parts[1:])
        else:
            for part in parts[1:]:
                map_[at : at + len(part)] = part
                at += len(part)
        map_[begin:head_end] = head
        self.max_offset += size

    def check(self, physical_offset: int, *, check_crc: bool) -> RecordCheck:
        """Look at a place of the log, also past its end: recovery finds the end with this.  Never fails.

        A record that names another place as its own is what an older, longer log left there: not a record.
        """
        file = self.files.file_at(physical_offset)
        if file is None:
            return RecordCheck(RecordKind.END, 0, "past the last file")
        found = check_record(file.map, physical_offset - file.start, file.size, check_crc=check_crc)
        if found.kind is RecordKind.MESSAGE and found.physical_offset != physical_offset:
            return RecordCheck(RecordKind.BAD, 0, f"record of position {found.physical_offset}")
        return found

    def look_message(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        """Return the record at an offset that anybody may have made up, ``None`` if no good one begins there.

        Args:
            physical_offset: where; any number.
            size: if given, the record must have this length.

        Source: store.md 7.6.
        """
        found = self._find(physical_offset)
        if found is None or (size is not None and size != found.size):
            return None
        return self.view(physical_offset, found.size)

    def view(self, physical_offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes of the log for a unit that points there, ``None`` if they are not in it.

        What a unit says may be wrong, so the bytes need not be a record.
        """
        file = self.files.file_at(physical_offset)
        if file is None or size <= 0 or physical_offset + size > self.max_offset:
            return None
        at = physical_offset - file.start
        return file.view[at : at + size] if at + size <= file.size else None

    def piece(self, offset: int, most_bytes: int) -> memoryview:
        """Return bytes of the log from any place on, as slaves get them; records may be cut.

        The view ends with the file, with blank record and all, or with the log; at the log's end and after it the view
        is empty.  Load the place with ``ColdReads.load_log`` first.

        Raises:
            StoreError: the file of this place was deleted.
        """
        if offset >= self.max_offset:
            return _EMPTY
        file = self.files.file_at(offset)
        if file is None:
            raise StoreError(f"the commit log begins at {self.min_offset}, offset {offset} was deleted")
        at = offset - file.start
        return file.view[at : min(at + most_bytes, file.size, self.max_offset - file.start)]

    def store_time(self, physical_offset: int) -> int:
        """Return the store time (ms) of the record at ``physical_offset``, -1 without one."""
        found = self._find(physical_offset)
        return found.store_timestamp if found is not None else -1

    def _find(self, physical_offset: int) -> RecordCheck | None:
        """Return the good record that begins at an offset, any number, if there is one."""
        if not self.min_offset <= physical_offset < self.max_offset:
            return None
        found = self.check(physical_offset, check_crc=physical_offset < self.checked_from)
        is_whole = found.kind is RecordKind.MESSAGE and physical_offset + found.size <= self.max_offset
        return found if is_whole else None

    def note_damage(self, physical_offset: int, reason: str) -> None:
        """Count and log, once, a record that cannot be read: its message is skipped."""
        if physical_offset in self._damaged:
            return
        if len(self._damaged) < _MAX_DAMAGED_REMEMBERED:
            self._damaged.add(physical_offset)
        self.damaged_records += 1
        file = self.files.file_at(physical_offset)
        path = file.path if file is not None else None
        LOGGER.warning(
            "message skipped, its record is damaged file=%s offset=%d reason=%s", path, physical_offset, reason
        )

    def prepare(self, file: MappedFile, end: int) -> None:
        """Make a file of the log safe and cheap to write up to its byte ``end``.

        Raises:
            StoreFullError, StoreError: see ``MappedFile.reserve``.
        """
        self.files.reserve(file, end)
        file.fill(end, _FILL_STEP_BYTES, self._fill_piece_bytes)
        if file is self._current:
            self._limit = min(file.filled, self._message_limit)

    def _enter(self, file: MappedFile, at: int) -> None:
        self._current = file
        self._map = file.map
        self._at = at
        self._limit = min(file.filled, self._message_limit)

    def _make_room(self, size: int) -> None:
        if size > self._message_limit:
            raise MessageIllegalError(
                f"messages of {size} bytes: more than a commit log file"
                f" ({self.files.file_size}, commit_log_file_size_bytes) holds"
            )
        file = self._current
        if file is None:
            file = self.files.create_next(0)
            self._enter(file, 0)
        if self._at + size <= self._message_limit:
            self.prepare(file, self._at + size)
            return
        following = self.files.file_at(file.end) or self.files.create_next(file.end)
        self.prepare(following, size)
        self.files.reserve(file, min(self._at + MIN_BLANK_BYTES, file.size))
