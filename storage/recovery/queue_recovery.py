"""Finding out which units of a consume queue are good after a restart.

Source: ConsumeQueue.java, recover, truncateDirtyLogicFiles, correctMinOffset; store.md 3.6, 3.7, 5.5.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from triomq.protocol.record.consume_queue_unit import BLANK_SIZE, BLANK_UNIT, UNIT, UNIT_SIZE, ConsumeQueueUnit
from triomq.protocol.record.intact_record import LEAST_RECORD_BYTES, are_intact
from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.file_system import FileSystem, OpenFile, translated
from triomq.storage.files.mapped_file import MappedFile

_FILES_CHECKED: Final = 3
_COMPARED_AT_ONCE: Final = 1024
_BLANKS: Final = BLANK_UNIT * _COMPARED_AT_ONCE
_BEHIND_ALL: Final = 2**63 - 1
_COUNTED_AT_ONCE: Final = 512
_SEARCHED_AT_ONCE: Final = 64 * 1024 // UNIT_SIZE  # so much is reserved ahead, and may have been read by somebody
_ZEROS: Final = bytes(_SEARCHED_AT_ONCE * UNIT_SIZE)
_SIZE_AT: Final = 8
_SIZE_END: Final = 12
_TOP_BIT: Final = re.compile(rb"[\x80-\xff]")
_SECTOR: Final = 512  # of a disk: no power cut leaves one by half

ACROSS_SECTORS: Final = frozenset((25, 51, 76, 102))
"""Of each 128 units of a file, which are five sectors long, those that lie across a border of sectors."""


class QueueEnds(NamedTuple):
    """First and last unit of a queue; neither is that of a lost message."""

    first: ConsumeQueueUnit
    last: ConsumeQueueUnit


class LastUnit(NamedTuple):
    """The last unit of a file.

    Attributes:
        number: of the units up to it.
        first, last: of these units; ``None`` if ``first`` was not read together with ``last``.
        is_end: nothing but zeros is behind it.
    """

    number: int
    first: ConsumeQueueUnit | None
    last: ConsumeQueueUnit
    is_end: bool


def resume_queue(queue: ConsumeQueue, file_system: FileSystem) -> tuple[QueueEnds | None, bool]:
    """After a clean exit: continue behind the last unit; files behind it, and files without a unit, are deleted.

    Everything was on the disk then, so nothing but both ends is looked at: 300,000 units of each queue would have to be
    read from the disk for a start.  A damaged one between them is found by whoever reads it.  No file is mapped: of ten
    thousand queues most rest.

    Returns:
        Both ends, ``None`` if the queue is empty, had to be cut, or begins or ends with a lost message; and whether
        something had to be cut, which may have been units of messages that are there.

    Raises:
        StoreError: a file cannot be read or deleted.
    """
    files = queue.files.files
    for file in reversed(files):
        if (found := find_last_unit(file, file_system)) is None:
            continue
        next_offset = file.start // UNIT_SIZE + found.number
        is_whole = file is files[-1] and found.is_end
        if is_whole and not found.last.is_lost:
            queue.resume(next_offset, found.last.physical_offset + found.last.size)
            first = found.first if file is files[0] and found.first else _first_unit(files[0], file_system)
            return QueueEnds(first, found.last) if _is_unit(first) and not first.is_lost else None, False
        cut_queue(queue, next_offset)
        return None, not is_whole
    was_there = bool(files)
    cut_queue(queue, 0)
    return None, was_there


def recover_queue(queue: ConsumeQueue, file_system: FileSystem, checked_from: int) -> None:
    """After a crash: continue before the first unit that is none; files behind it, and files without one, are deleted.

    The last three files are looked at, and those before as long as they begin with a record at or behind
    ``checked_from``, a physical offset.

    Raises:
        StoreError: a file cannot be read or deleted.
    """
    files = queue.files.files
    number = max(len(files) - _FILES_CHECKED, 0)
    while number > 0 and not _begins_before(files[number], checked_from):
        number -= 1
    end = files[number].start if files else 0
    for file in files[number:]:
        end = file.start + count_good_units(file, file_system) * UNIT_SIZE
        if end < file.end:
            break
    cut_queue(queue, end // UNIT_SIZE)


def ends_intact(queue: ConsumeQueue, log: CommitLog, last: ConsumeQueueUnit) -> bool:
    """Whether the record that the last unit names is certainly whole; ``False`` tells nothing."""
    offset, size, _ = last
    file = log.files.file_at(offset)
    if file is None or not LEAST_RECORD_BYTES <= size <= file.end - offset:
        return False
    return are_intact(file.map, (offset - file.start,), (size,), (offset,), queue.topic_field, queue.queue_id)


def drop_dangling_units(queue: ConsumeQueue, log: CommitLog, *, check_crc: bool) -> list[ConsumeQueueUnit]:
    """Cut units off the end until one points to a record that is there, and not one of the next queue; return them.

    Raises:
        StoreError: a file cannot be changed.
    """
    end = queue.next_offset
    dropped = []
    while end > first_offset(queue):
        unit = queue.unit(end - 1)
        if unit is None or unit.is_lost or 0 <= unit.physical_offset < log.min_offset:
            break
        record = log.check(unit.physical_offset, check_crc=check_crc)
        is_of_sibling = record.topic == queue.topic and record.queue_id != queue.queue_id
        if record.kind is RecordKind.MESSAGE and record.size == unit.size and not is_of_sibling:
            break
        end -= 1
        dropped.append(unit)
    _cut_if_shorter(queue, end)
    return dropped


def mend_torn_unit(queue: ConsumeQueue, queue_offset: int, wanted: bytes) -> bool:
    """Write a unit again if a power cut has left only the part of it on one side of a border of sectors.

    The other part is zero, which may make no bad unit of it, but one with another tags code or physical offset.

    Args:
        queue: whose unit it is.
        queue_offset: of a message whose unit is one of those ``ACROSS_SECTORS``; any number.
        wanted: the unit as the record says, whatever stands there.

    Returns:
        Whether it was torn.

    Raises:
        StoreError: the file cannot be mapped.
    """
    file = queue.files.file_at(queue_offset * UNIT_SIZE)
    if file is None or queue_offset >= queue.next_offset:
        return False
    at = queue_offset * UNIT_SIZE - file.start
    found = file.map[at : at + UNIT_SIZE]
    border = _SECTOR - at % _SECTOR
    if border < _SIZE_END:  # its begin is missing: of what is there the tags code tells the time best
        wanted = wanted[:_SIZE_END] + found[_SIZE_END:]
        is_torn = not any(found[:border]) and found[border:] == wanted[border:]
    else:
        is_torn = not any(found[border:]) and found[:border] == wanted[:border]
    if not is_torn or found == wanted:
        return False
    file.map[at : at + UNIT_SIZE] = wanted
    if queue_offset == queue.next_offset - 1:
        unit = ConsumeQueueUnit._make(UNIT.unpack(wanted))
        queue.max_physical_offset = unit.physical_offset + unit.size
    return True


def truncate_queue(queue: ConsumeQueue, log_end: int) -> int:
    """Cut off the units of records that end behind ``log_end``; return how many were cut.

    Raises:
        StoreError: a file cannot be changed.
    """
    if queue.max_physical_offset <= log_end:  # as of nearly all queues
        return 0
    end = queue.next_offset
    while end > first_offset(queue):
        unit = queue.unit(end - 1)
        if unit is None or unit.is_lost or unit.physical_offset + unit.size <= log_end:
            break
        end -= 1
    return _cut_if_shorter(queue, end)


def cut_queue(queue: ConsumeQueue, next_offset: int) -> None:
    """Let the queue end before unit ``next_offset`` and clear on disk what lies behind.

    RocketMQ leaves it there, and units of lost messages can come back to life at the start after the next.

    Raises:
        StoreError: a file cannot be changed.
    """
    position = next_offset * UNIT_SIZE
    files = queue.files
    kept = sum(file.start < position for file in files.files)
    files.remove_from(kept)
    if not kept:
        queue.resume(0, 0)
        return
    last = files.files[-1]
    last.zero_from(position - last.start)
    queue.resume(next_offset, 0)
    newest = newest_unit(queue)
    queue.max_physical_offset = newest.physical_offset + newest.size if newest is not None else 0


def parts_with_units(queue: ConsumeQueue, begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return which parts of the log hold records of a queue by its units, as their numbers.

    There may be a thousand parts and ten thousand queues: so neither each part is looked for, nor each unit.

    Args:
        queue: any queue.
        begins, ends: physical offsets of the parts, which are in the order of the log and do not overlap.

    Raises:
        StoreError: a file cannot be mapped.
    """
    found: list[int] = []
    if queue.max_physical_offset <= begins[0]:
        return found
    part, number = 0, first_offset(queue)
    while part < len(begins):
        units = range(number, queue.next_offset)
        number += bisect_left(units, begins[part], key=lambda number: physical_offset_of(queue, number))
        packed = queue.units_from(number, _COMPARED_AT_ONCE)
        if packed is None:
            break
        offsets = [offset for offset, size, _ in UNIT.iter_unpack(packed) if size != BLANK_SIZE]
        at = 0
        while at < len(offsets) and (part := bisect_right(ends, offsets[at], part)) < len(begins):
            if begins[part] <= offsets[at]:
                found.append(part)
                at = bisect_left(offsets, ends[part], at)
                part += 1
            else:
                at = bisect_left(offsets, begins[part], at)
        number += len(packed) // UNIT_SIZE
    return found


def lose_parts(queue: ConsumeQueue, begins: Sequence[int], ends: Sequence[int]) -> int:
    """Note that the messages in parts of the log are lost, as ``parts_with_units`` takes them; return how many.

    Raises:
        StoreError: a file cannot be mapped.
    """
    return sum(lose_units(queue, begins[number], ends[number]) for number in parts_with_units(queue, begins, ends))


def lose_units(queue: ConsumeQueue, begin: int, end: int) -> int:
    """Note that the messages between two physical offsets are lost; return how many these were.

    At the end of the queue their units are cut, as RocketMQ takes a blank one there for the end of a record.

    Raises:
        StoreError: a file cannot be changed.
    """
    first = first_offset(queue)
    units = range(first, queue.next_offset)
    start = number = first + bisect_left(units, begin, key=lambda number: physical_offset_of(queue, number))
    lost = 0
    while (unit := queue.unit(number)) is not None and (unit.is_lost or unit.physical_offset < end):
        lost += not unit.is_lost
        number += 1
    if lost and number < queue.next_offset:
        queue.lose(start, number)
    elif lost:
        _cut_if_shorter(queue, start)
    return lost


def record_before(queue: ConsumeQueue, log: CommitLog, physical_offset: int) -> int:
    """Return where the queue's last record before ``physical_offset`` begins, or -1."""
    first = first_offset(queue)
    units = range(first, queue.max_offset)
    behind = bisect_left(units, physical_offset, key=lambda number: physical_offset_of(queue, number))
    if not behind:
        return -1
    found = physical_offset_of(queue, units[behind - 1])
    return found if log.check(found, check_crc=False).kind is RecordKind.MESSAGE else -1


def correct_min_offset(queue: ConsumeQueue, log_begin: int) -> None:
    """Set ``min_offset`` to the first message whose record is at or behind ``log_begin``."""
    number = find_begin(first_offset(queue), queue.max_offset, log_begin, partial(physical_offset_of, queue))
    queue.min_offset = _behind_lost(queue, number)


def find_begin(first: int, end: int, log_begin: int, physical_offset: Callable[[int], int]) -> int:
    """Return the first unit of [first, end) whose record is at or behind ``log_begin``, else ``end``."""
    if physical_offset(first) >= log_begin:  # nothing has expired, and no other unit need be looked at
        return first
    return first + bisect_left(range(first, end), log_begin, key=physical_offset)


def last_stored_before(queue: ConsumeQueue, log: CommitLog, timestamp: int) -> int:
    """Return the physical offset of the queue's last record with a store time up to ``timestamp``, or -1."""
    units = range(first_offset(queue), queue.max_offset)
    behind = bisect_right(units, timestamp, key=lambda n: log.store_time(physical_offset_of(queue, n)))
    if not behind:
        return -1
    physical_offset = physical_offset_of(queue, units[behind - 1])
    return physical_offset if log.store_time(physical_offset) >= 0 else -1


def newest_unit(queue: ConsumeQueue) -> ConsumeQueueUnit | None:
    """Return the last unit that is not lost."""
    for number in range(queue.next_offset - 1, first_offset(queue) - 1, -1):
        unit = queue.unit(number)
        if unit is not None and not unit.is_lost:
            return unit
    return None


def oldest_unit(queue: ConsumeQueue) -> ConsumeQueueUnit | None:
    """Return the first unit that is not lost."""
    return queue.unit(_behind_lost(queue, first_offset(queue)))


def first_offset(queue: ConsumeQueue) -> int:
    """Return the queue offset of the first unit on disk."""
    return queue.files.start // UNIT_SIZE


def count_good_units(file: MappedFile, file_system: FileSystem) -> int:
    """Return how many units with a size above 0 and an offset not below 0 the file begins with.

    All these units are looked at, 300,000 in a full file; one by one that would take ten times as long.

    Raises:
        StoreError: the file cannot be read.
    """
    with translated("read", file.path):
        end = _end_of_data(file.file, file.size, file_system)
    count = 0
    for begin in range(0, end, _COUNTED_AT_ONCE * UNIT_SIZE):  # behind the last unit nothing need be read
        units = bytes(file.view[begin : begin + _COUNTED_AT_ONCE * UNIT_SIZE])
        good = _count_good(units)
        count += good
        if good * UNIT_SIZE < len(units):
            break
    return min(count, -(-end // UNIT_SIZE))


def find_last_unit(file: MappedFile, file_system: FileSystem) -> LastUnit | None:
    """Return the last unit with a size above 0 and an offset not below 0, if there is one.

    Raises:
        StoreError: the file cannot be read.
    """
    is_end, at_once = True, _COUNTED_AT_ONCE
    with translated("read", file.path):
        open_file = file.file
        end_of_data = _end_of_data(open_file, file.size, file_system)
        end = -(-end_of_data // UNIT_SIZE)
        while end > 0:
            begin = max(end - at_once, 0)
            units = file_system.read(open_file, begin * UNIT_SIZE, end_of_data - begin * UNIT_SIZE)
            units = units.ljust((end - begin) * UNIT_SIZE, b"\0")
            for number in range(_count_to_data(units), 0, -1):
                last = ConsumeQueueUnit._make(UNIT.unpack_from(units, (number - 1) * UNIT_SIZE))
                if _is_unit(last):
                    first = None if begin else ConsumeQueueUnit._make(UNIT.unpack_from(units))
                    return LastUnit(begin + number, first, last, is_end)
                is_end = False
            end, end_of_data = begin, begin * UNIT_SIZE
            at_once = _SEARCHED_AT_ONCE
    return None


def _is_unit(unit: ConsumeQueueUnit) -> bool:
    return unit.size > 0 and unit.physical_offset >= 0


def _first_unit(file: MappedFile, file_system: FileSystem) -> ConsumeQueueUnit:
    with translated("read", file.path):
        return ConsumeQueueUnit._make(UNIT.unpack(file_system.read(file.file, 0, UNIT_SIZE)))


def _count_to_data(units: bytes) -> int:
    """Return how many units there are up to the last that is not all zeros.

    Halving with a comparison is 20 times as fast as stripping zeros.
    """
    begin, end = 0, len(units) // UNIT_SIZE
    while begin < end:
        middle = (begin + end) // 2
        if units[middle * UNIT_SIZE : end * UNIT_SIZE] == _ZEROS[: (end - middle) * UNIT_SIZE]:
            end = middle
        else:
            begin = middle + 1
    return end


def _end_of_data(file: OpenFile, size: int, file_system: FileSystem) -> int:
    return max((stop for _, stop in file_system.data_ranges(file, 0, size)), default=0)


def _count_good(units: bytes) -> int:
    count = len(units) // UNIT_SIZE
    sizes = [int.from_bytes(units[at::UNIT_SIZE]) for at in range(_SIZE_AT, _SIZE_END)]
    not_zero = (sizes[0] | sizes[1] | sizes[2] | sizes[3]).to_bytes(count)
    signs = (sizes[0] | int.from_bytes(units[::UNIT_SIZE])).to_bytes(count)
    if (zero := not_zero.find(0)) >= 0:
        count = zero
    negative = _TOP_BIT.search(signs, 0, count)
    return negative.start() if negative is not None else count


def _cut_if_shorter(queue: ConsumeQueue, end: int) -> int:
    """Let the queue end at ``end``, or earlier, so that it does not end with lost messages."""
    cut = queue.next_offset - end
    if cut:
        first = first_offset(queue)
        while end > first and (unit := queue.unit(end - 1)) is not None and unit.is_lost:
            end -= 1
        cut_queue(queue, end if end > first else 0)
    return cut


def _begins_before(file: MappedFile, physical_offset: int) -> bool:
    first = ConsumeQueueUnit._make(UNIT.unpack_from(file.map))
    return _is_unit(first) and not first.is_lost and first.physical_offset < physical_offset


def physical_offset_of(queue: ConsumeQueue, number: int) -> int:
    """Return where the record of a unit begins; a lost one counts as the next that is not, so that all of them ascend.

    Behind lost units without any other it is behind every record.
    """
    unit = queue.unit(number)
    if unit is not None and unit.is_lost:
        unit = queue.unit(_behind_lost(queue, number))
    return _BEHIND_ALL if unit is None else unit.physical_offset


def _behind_lost(queue: ConsumeQueue, number: int) -> int:
    """Return the first unit from ``number`` on that is not lost; the end of the queue if there is none."""
    while (units := queue.units_from(number, _COMPARED_AT_ONCE)) is not None:
        if bytes(units) != _BLANKS[: len(units)]:  # a view is compared one by one
            while (unit := queue.unit(number)) is not None and unit.is_lost:
                number += 1
            break
        number += len(units) // UNIT_SIZE
    return number
