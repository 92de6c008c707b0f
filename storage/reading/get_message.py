"""Reading messages by queue offset.

Source: DefaultMessageStore.java, getMessage; store.md 7.1, 7.3, 7.4.
"""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from itertools import accumulate
from mmap import mmap
from operator import add
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, HALVED_UNIT, REPEATED, UNIT, UNIT_SIZE
from triomq.protocol.record.intact_record import are_intact
from triomq.protocol.record.layout import MESSAGE_MAGIC, MIN_RECORD_BYTES, head_struct
from triomq.protocol.record.record import find_damage
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

TagCodes: TypeAlias = frozenset[int] | None
"""Hash codes of the tags that a reader wants, ``None`` for all messages."""

_MIN_UNITS_SCANNED: Final = 800  # MAX_FILTER_MESSAGE_COUNT, there as 16000 bytes
_BLANK_PLACE: Final = UNIT.unpack(BLANK_UNIT)[:2]
_NOTHING: Final = -(2**63)  # below all offsets, those of damaged units too
_iter_units = Struct(">qi4xi").iter_unpack  # of the tags code only the low 32 bits: what filters compare
#: Units that are unpacked at once; Java's consumers ask for 32 messages.
_MAX_AT_ONCE: Final = 64
_UNPACK_UNITS: Final = tuple(Struct(">" + "qi8x" * count).unpack_from for count in range(_MAX_AT_ONCE + 1))
_iter_halved_units = HALVED_UNIT.iter_unpack
_REPEATED_BYTES: Final = REPEATED.to_bytes(4)  # upper half of a tags code
_first_offset = Struct(">q").unpack_from
_unpack_identity = head_struct("size", "magic", "physical_offset").unpack_from


class GetMessageStatus(Enum):
    """How a read ended.  Source: GetMessageStatus.java."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetMessageResult(NamedTuple):
    """What one read found.

    Attributes:
        status: how it ended.
        next_begin_offset: queue offset of the next read.
        min_offset, max_offset: of the queue.
        buffers: the records as stored, read-only views of the commit log; records that all lie after one another
            share a view.  A view stays valid, also when its file is deleted.
        message_count, size_bytes: of all buffers.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    buffers: list[memoryview]
    message_count: int
    size_bytes: int


def get_message(
    log: CommitLog,
    config: StoreConfig,
    queue: ConsumeQueue,
    queue_offset: int,
    max_msg_nums: int,
    codes: TagCodes,
    max_bytes: int | None = None,
) -> GetMessageResult:
    """Read messages of ``queue`` from ``queue_offset`` on.

    Args:
        log: where the records are.
        config: for the limits of one read.
        queue: may be empty.
        queue_offset: any number; what to ask for next is in the result.
        max_msg_nums: maximum number of messages; the store's own limits hold too.
        codes: of the wanted tags.
        max_bytes: limit in bytes that the reader asks for; only the first record may exceed it.  The store then
            applies its limits for such readers.
    """
    low, high = queue.min_offset, queue.max_offset
    if not low <= queue_offset < high:
        status, next_offset = _outside(queue_offset, low, high, queue.next_offset)
        return GetMessageResult(status, next_offset, low, high, [], 0, 0)
    units = queue.units_from(queue_offset, max(_MIN_UNITS_SCANNED, max_msg_nums))
    if units is None:
        per_file = queue.files.file_size // UNIT_SIZE
        following = queue_offset - queue_offset % per_file + per_file
        return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, following, low, high, [], 0, 0)
    if codes is None:
        most, room = config.transfer_limits(max_bytes)
        on_disk_below = log.max_offset - config.in_memory_bytes if max_bytes is None else _NOTHING
        run = _read_run(
            log, queue, queue_offset, units, min(max_msg_nums, most, len(units) // UNIT_SIZE), room, on_disk_below
        )
        if run is not None:
            buffers, count, size_bytes = run
            return GetMessageResult(GetMessageStatus.FOUND, queue_offset + count, low, high, buffers, count, size_bytes)
    reader = _RecordReader(log, config, queue, max_msg_nums, max_bytes)
    if reader.may_trust(units, queue_offset, codes):
        scanned, count, size_bytes = reader.scan_trusted(units, codes)
    else:
        scanned, count, size_bytes = reader.scan(units, codes)
        if count == scanned:  # all were looked at, and all are good
            queue.checked.add(queue_offset, queue_offset + scanned)
    return GetMessageResult(reader.status, queue_offset + scanned, low, high, reader.buffers, count, size_bytes)


def _read_run(
    log: CommitLog, queue: ConsumeQueue, queue_offset: int, units: memoryview, count: int, room: int, on_disk_below: int
) -> tuple[list[memoryview], int, int] | None:
    """Return records of the first ``count`` units, their number and bytes, by a short way for the usual read.

    Records that were not checked yet are looked at, all of them at once.

    Args:
        log, queue, queue_offset: as for ``get_message``.
        units: of ``queue`` from ``queue_offset`` on.
        count: how many of them are wanted at most.
        room: bytes of the records at most.
        on_disk_below: offset in the log before which other limits hold.

    Returns:
        ``None`` if the way is too short: some records may be damaged, or count as on disk, or the first is too long, or
        they lie in several files.
    """
    if count < 1:
        return None
    numbers = _unpack_units(units, count)
    offsets, sizes = numbers[::2], numbers[1::2]
    total = sum(sizes)
    if total > room:
        if min(sizes) < MIN_RECORD_BYTES or sizes[0] > room:
            return None
        count = bisect_right(list(accumulate(sizes)), room)
        offsets, sizes = offsets[:count], sizes[:count]
        total = sum(sizes)
    first, last_end = offsets[0], offsets[-1] + sizes[-1]
    file = log.files.file_at(first) if first >= on_disk_below else None
    if file is None or min(offsets) < first or last_end > min(file.end, log.max_offset):
        return None
    view, begin = file.view, file.start
    starts = [offset - begin for offset in offsets] if begin else offsets
    if first < log.checked_from and not queue.checked.covers(queue_offset, queue_offset + count):
        if min(sizes) < MIN_RECORD_BYTES or max(map(add, offsets, sizes)) > last_end:
            return None
        if _REPEATED_BYTES in bytes(units[: count * UNIT_SIZE]):  # a lost message's unit names another message
            return None
        if not are_intact(file.map, starts, sizes, offsets, queue.topic_field, queue.queue_id):
            return None
        queue.checked.add(queue_offset, queue_offset + count)
    if last_end - first == total:
        return [view[first - begin : last_end - begin]], count, total
    return list(map(view.__getitem__, map(slice, starts, map(add, starts, sizes)))), count, total


def _unpack_units(units: memoryview, count: int) -> Sequence[int]:
    """Return offset and size of each of the first units, one after the other."""
    if count <= _MAX_AT_ONCE:
        return _UNPACK_UNITS[count](units)
    numbers: list[int] = []
    for begin in range(0, count, _MAX_AT_ONCE):
        numbers += _UNPACK_UNITS[min(count - begin, _MAX_AT_ONCE)](units, begin * UNIT_SIZE)
    return numbers


def _outside(queue_offset: int, low: int, high: int, end: int) -> tuple[GetMessageStatus, int]:
    """Return status and next offset; messages from ``high`` to ``end`` are stored but not on the disk yet."""
    if high == 0 and not 0 < queue_offset <= end:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < low:
        return GetMessageStatus.OFFSET_TOO_SMALL, low
    if high <= queue_offset <= end:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset
    return GetMessageStatus.OFFSET_OVERFLOW_BADLY, high


class _RecordReader:
    """Iterates over the units of one read and collects the records they name, up to the limits of such a read.

    Records far from the end of the log count as on disk, where a usual read gets less.
    """

    def __init__(
        self, log: CommitLog, config: StoreConfig, queue: ConsumeQueue, max_msg_nums: int, max_bytes: int | None
    ) -> None:
        self._log = log
        self._config = config
        self._queue = queue
        self._max_msg_nums = max_msg_nums
        most, self._memory_bytes = config.transfer_limits(max_bytes)
        self._memory_count = min(max_msg_nums, most)
        self._on_disk_below = log.max_offset - config.in_memory_bytes if max_bytes is None else _NOTHING
        self._view = memoryview(b"")  # of the commit log file that held the last record
        self._map: mmap | bytes = b""  # the same file
        self._begin = self._end = 0  # its start, and the end of its readable part
        self.buffers: list[memoryview] = []
        self.status = GetMessageStatus.NO_MATCHED_MESSAGE

    def may_trust(self, units: memoryview, queue_offset: int, codes: TagCodes) -> bool:
        """Whether no record needs to be looked at: this process wrote or checked them, and they count as in memory.

        ``units`` are those from ``queue_offset`` on.  With ``codes`` any number of them may be read.
        """
        (first,) = _first_offset(units)
        if first < self._on_disk_below:
            return False
        if first >= self._log.checked_from:
            return True
        count = len(units) // UNIT_SIZE
        most = count if codes is not None else min(count, self._memory_count)
        return self._queue.checked.covers(queue_offset, queue_offset + most)

    def scan(self, units: memoryview, codes: TagCodes) -> tuple[int, int, int]:
        """Return the number of units read, and number and bytes of the records found.

        Records of an earlier process, which a disk may have changed, and of a master are checked: a damaged one is
        skipped and noted.
        """
        checked_from = self._log.checked_from
        topic_field, queue_id = self._queue.topic_field, self._queue.queue_id
        on_disk_below = self._on_disk_below
        memory_count, memory_bytes = self._memory_count, self._memory_bytes
        disk_count = min(self._max_msg_nums, self._config.max_transfer_count_in_disk)
        disk_bytes = self._config.max_transfer_bytes_in_disk
        map_, view, begin, end = self._map, self._view, self._begin, self._end
        append = self.buffers.append
        scanned = count = total = 0
        piece_view, piece_at, piece_stop, piece_end = view, 0, 0, -1
        skip_below = -1
        for offset, size, upper, code in _iter_halved_units(units):
            if offset < skip_below or upper == REPEATED:
                scanned += 1
                continue
            if count and (  # the first one is taken whatever its size
                (count >= memory_count or total + size > memory_bytes)
                if offset >= on_disk_below
                else (count >= disk_count or total + size > disk_bytes)
            ):
                break
            scanned += 1
            if codes is not None and code not in codes:
                continue
            at = offset - begin
            if not (
                0 <= at <= end - begin - size
                and size >= MIN_RECORD_BYTES
                and (
                    are_intact(map_, (at,), (size,), (offset,), topic_field, queue_id)
                    if offset < checked_from
                    else _unpack_identity(view, at) == (size, MESSAGE_MAGIC, offset)
                )
            ):
                if not self._find(offset, size):
                    skip_below = self._skip_below(offset, size)
                    continue
                map_, view, begin, end = self._map, self._view, self._begin, self._end
                at = offset - begin
                if offset < checked_from and (reason := find_damage(view, at, size, topic_field[1:], queue_id)):
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                    self._log.note_damage(offset, reason)
                    continue
            if offset != piece_end:
                if count:
                    append(piece_view[piece_at:piece_stop])
                piece_view, piece_at = view, at
            piece_stop = at + size
            piece_end = offset + size
            count += 1
            total += size
        self._add_last(count, piece_view[piece_at:piece_stop])
        return scanned, count, total

    def scan_trusted(self, units: memoryview, codes: TagCodes) -> tuple[int, int, int]:
        """As ``scan`` for units that are known to name intact records, so none of them is looked at."""
        max_count, max_bytes = self._memory_count, self._memory_bytes
        view, begin, end = self._view, self._begin, self._end
        append = self.buffers.append
        scanned = count = total = piece_at = piece_stop = 0
        for offset, size, code in _iter_units(units):
            if count and (count >= max_count or total + size > max_bytes):  # the first is taken whatever its size
                break
            scanned += 1
            if codes is not None and code not in codes:
                continue
            if not begin <= offset < end:
                if not self._find(offset, size):  # its file was deleted
                    if not count:
                        return self.scan(units, codes)  # handles missing records
                    scanned -= 1
                    break
                if count:
                    append(view[piece_at:piece_stop])
                view, begin, end = self._view, self._begin, self._end
                piece_at = piece_stop = offset - begin
            at = offset - begin
            if at != piece_stop:
                if piece_stop:
                    append(view[piece_at:piece_stop])
                piece_at = at
            piece_stop = at + size
            count += 1
            total += size
        self._add_last(count, view[piece_at:piece_stop])
        return scanned, count, total

    def _add_last(self, count: int, records: memoryview) -> None:
        if count:
            self.status = GetMessageStatus.FOUND
            self.buffers.append(records)

    def _find(self, offset: int, size: int) -> bool:
        """Switch to the commit log file of a record; return ``False`` without such a record."""
        log = self._log
        file = log.files.file_at(offset)
        if file is None:
            return False
        end = min(file.end, log.max_offset)
        if offset > end - size or size < MIN_RECORD_BYTES:
            return False
        if _unpack_identity(file.view, offset - file.start) != (size, MESSAGE_MAGIC, offset):
            return False
        self._map, self._view, self._begin, self._end = file.map, file.view, file.start, end
        return True

    def _skip_below(self, offset: int, size: int) -> int:
        """Note that a record cannot be read; return the offset at which to try again.

        If the file was deleted, this is the start of the next file.  A damaged unit may hold any offset, so it skips
        only itself.
        """
        self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
        log = self._log
        if (offset, size) == _BLANK_PLACE:  # a message already known to be lost
            return -1
        if offset >= log.min_offset:
            log.note_damage(offset, f"no record of {size} bytes, as the consume queue has it")
            return -1
        file_size = log.files.file_size
        return offset - offset % file_size + file_size
