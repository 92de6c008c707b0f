"""Find where a consume queue ends after a restart; cut, mark or mend the units that do not agree with the log.

Source: ConsumeQueue.java, recover, truncateDirtyLogicFiles; store.md 3.6, 5.5.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

from triomq.protocol.record.consume_queue_unit import UNIT, UNIT_SIZE, ConsumeQueueUnit
from triomq.protocol.record.intact_record import are_intact
from triomq.protocol.record.layout import MIN_RECORD_BYTES
from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import first_offset, newest_unit, physical_offset_of
from triomq.storage.files.file_system import FileSystem, OpenFile, translated
from triomq.storage.files.mapped_file import MappedFile

ACROSS_SECTORS: Final = frozenset((25, 51, 76, 102))
"""Of each 128 units of a file, which are five sectors long, those that lie across a border of sectors."""

_SECTOR: Final = 512  # of a disk: a power cut leaves all of it or nothing
_FILES_CHECKED: Final = 3
_COUNTED_AT_ONCE: Final = 512
_READ_AT_ONCE: Final = 64 * 1024 // UNIT_SIZE  # so much is reserved ahead, and may be in memory
_ZEROS: Final = bytes(_READ_AT_ONCE * UNIT_SIZE)
_SIZE_AT: Final = 8
_SIZE_END: Final = 12  # in a unit
_TOP_BIT: Final = re.compile(rb"[\x80-\xff]")


class QueueEnds(NamedTuple):
    """First and last unit of a queue; neither is that of a lost message."""

    first: ConsumeQueueUnit
    last: ConsumeQueueUnit


class LastUnit(NamedTuple):
    """The last unit of a file.

    Attributes:
        number: of the units up to it.
        first, last: of these units; ``None`` if ``first`` was not read together with ``last``.
        is_end: nothing but zeros is after it.
    """

    number: int
    first: ConsumeQueueUnit | None
    last: ConsumeQueueUnit
    is_end: bool


def resume_queue(queue: ConsumeQueue, file_system: FileSystem) -> tuple[QueueEnds | None, bool]:
    """After a clean exit: continue after the last unit; files after it, and files without a unit, are deleted.

    Everything was on the disk then, so nothing but both ends is looked at: 300,000 units of each queue would have to be
    read from the disk for a start.  A read finds a damaged one between them.  No file is mapped: of ten
    thousand queues most rest.

    Returns:
        Both ends, ``None`` if the queue is empty, had to be cut, or begins or ends with a lost message; and whether
        something had to be cut, perhaps units of messages that exist.

    Raises:
        StoreError: a file cannot be read or deleted.
    """
    for file in reversed(queue.files.files):
        if (found := find_last_unit(file, file_system)) is not None:
            return _resume_after(queue, file, found, file_system)
    was_there = bool(queue.files.files)
    cut_queue(queue, 0)
    return None, was_there


def recover_queue(queue: ConsumeQueue, file_system: FileSystem, checked_from: int) -> tuple[QueueEnds | None, bool]:
    """After a crash: continue at the first invalid unit; later files, and files without a unit, are deleted.

    The last three files are checked, and earlier ones that start with a record at or after
    ``checked_from``, a physical offset.  No file is mapped, as in ``resume_queue``, which returns the same.

    Raises:
        StoreError: a file cannot be read or deleted.
    """
    files = queue.files.files
    number = max(len(files) - _FILES_CHECKED, 0)
    while number > 0:
        first = _first_unit(files[number], file_system)
        if _is_unit(first) and not first.is_lost and first.physical_offset < checked_from:
            break
        number -= 1
    newest = None
    for file in files[number:]:
        found = find_good_units(file, file_system)
        if found is None:
            break
        newest = file, found
        if found.number * UNIT_SIZE < file.size:
            break
    if newest is not None:
        return _resume_after(queue, *newest, file_system)
    was_there = bool(files)
    cut_queue(queue, files[number].start // UNIT_SIZE if files else 0)
    return None, was_there


def _resume_after(
    queue: ConsumeQueue, file: MappedFile, found: LastUnit, file_system: FileSystem
) -> tuple[QueueEnds | None, bool]:
    """Continue after a unit of a file and return what ``resume_queue`` does."""
    files = queue.files.files
    next_offset = file.start // UNIT_SIZE + found.number
    is_whole = file is files[-1] and found.is_end
    if not is_whole or found.last.is_lost:
        cut_queue(queue, next_offset)
        return None, not is_whole
    queue.resume(next_offset, found.last.physical_offset + found.last.size)
    first = found.first if file is files[0] and found.first else _first_unit(files[0], file_system)
    return QueueEnds(first, found.last) if _is_unit(first) and not first.is_lost else None, False


def ends_intact(queue: ConsumeQueue, log: CommitLog, last: ConsumeQueueUnit) -> bool:
    """Whether the record that the last unit names is definitely whole; ``False`` proves nothing."""
    offset, size, _ = last
    file = log.files.file_at(offset)
    if file is None or not MIN_RECORD_BYTES <= size <= file.end - offset:
        return False
    return are_intact(file.map, (offset - file.start,), (size,), (offset,), queue.topic_field, queue.queue_id)


def find_good_units(file: MappedFile, file_system: FileSystem) -> LastUnit | None:
    """Return the last of the units with a size above 0 and an offset not below 0 that the file begins with.

    All these units are looked at, 300,000 in a full file; one by one that would take ten times as long.  Its
    ``is_end`` may be ``False`` although only zeros are after it.

    Raises:
        StoreError: the file cannot be read.
    """
    count, first, last, rest = 0, None, None, b""
    with translated("read", file.path):
        open_file = file.file
        end = _end_of_data(open_file, file.size, file_system)
        for begin in range(0, end, _READ_AT_ONCE * UNIT_SIZE):  # nothing after the last unit needs reading
            units = file_system.read(open_file, begin, min(_READ_AT_ONCE * UNIT_SIZE, end - begin))
            units = units.ljust(-(-len(units) // UNIT_SIZE) * UNIT_SIZE, b"\0")
            good = _count_good(units)
            if good:
                count += good
                first = first or _unit_at(units, 0)
                last = _unit_at(units, good - 1)
            rest = units[good * UNIT_SIZE :]
            if rest:
                break
    if first is None or last is None:
        return None
    is_end = end <= count * UNIT_SIZE + len(rest) and _ZEROS.startswith(rest)
    return LastUnit(count, first, last, is_end)


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
            with_data = -(-len(units.rstrip(b"\0")) // UNIT_SIZE)
            for number in range(with_data, 0, -1):
                last = _unit_at(units, number - 1)
                if _is_unit(last):
                    first = None if begin else _unit_at(units, 0)
                    return LastUnit(begin + number, first, last, is_end)
                is_end = False
            end, end_of_data = begin, begin * UNIT_SIZE
            at_once = _READ_AT_ONCE
    return None


def _is_unit(unit: ConsumeQueueUnit) -> bool:
    return unit.size > 0 and unit.physical_offset >= 0


def _unit_at(units: bytes, number: int) -> ConsumeQueueUnit:
    return ConsumeQueueUnit._make(UNIT.unpack_from(units, number * UNIT_SIZE))


def _first_unit(file: MappedFile, file_system: FileSystem) -> ConsumeQueueUnit:
    with translated("read", file.path):
        return _unit_at(file_system.read(file.file, 0, UNIT_SIZE), 0)


def _end_of_data(file: OpenFile, size: int, file_system: FileSystem) -> int:
    return max((end for _, end in file_system.data_ranges(file, 0, size)), default=0)


def _count_good(units: bytes) -> int:
    count = len(units) // UNIT_SIZE
    sizes = [int.from_bytes(units[at::UNIT_SIZE]) for at in range(_SIZE_AT, _SIZE_END)]
    not_zero = (sizes[0] | sizes[1] | sizes[2] | sizes[3]).to_bytes(count)
    signs = (sizes[0] | int.from_bytes(units[::UNIT_SIZE])).to_bytes(count)
    if (zero := not_zero.find(0)) >= 0:
        count = zero
    negative = _TOP_BIT.search(signs, 0, count)
    return negative.start() if negative is not None else count


def drop_dangling_units(queue: ConsumeQueue, log: CommitLog, *, check_crc: bool) -> int:
    """Cut units off the end until one points to an existing record of this queue; return how many were cut.

    Raises:
        StoreError: a file cannot be changed.
    """

    def is_good(unit: ConsumeQueueUnit) -> bool:
        if 0 <= unit.physical_offset < log.min_offset:
            return True
        record = log.check(unit.physical_offset, check_crc=check_crc)
        is_of_sibling = record.topic == queue.topic and record.queue_id != queue.queue_id
        return record.kind is RecordKind.MESSAGE and record.size == unit.size and not is_of_sibling

    return _cut_down_to(queue, is_good)


def mend_torn_unit(queue: ConsumeQueue, queue_offset: int, wanted: bytes) -> bool:
    """Rewrite a unit of which a power cut left only the part on one side of a sector border.

    The other part is zero, which may make no bad unit of it, but one with another tags code or physical offset.

    Args:
        queue: whose unit it is.
        queue_offset: of a message whose unit is one of those ``ACROSS_SECTORS``; any number.
        wanted: the unit that the record implies.

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
    if border < _SIZE_END:  # its start is missing: of the rest, the tags code identifies it best
        wanted = wanted[:_SIZE_END] + found[_SIZE_END:]
        torn = bytes(border) + wanted[border:]
    else:
        torn = wanted[:border] + bytes(UNIT_SIZE - border)
    if found == wanted or found != torn:
        return False
    file.map[at : at + UNIT_SIZE] = wanted
    if queue_offset == queue.next_offset - 1:
        unit = ConsumeQueueUnit._make(UNIT.unpack(wanted))
        queue.max_physical_offset = unit.physical_offset + unit.size
    return True


def truncate_queue(queue: ConsumeQueue, log_end: int) -> int:
    """Cut off the units of records that end after ``log_end``; return how many were cut.

    Raises:
        StoreError: a file cannot be changed.
    """
    if queue.max_physical_offset <= log_end:  # as of nearly all queues
        return 0
    return _cut_down_to(queue, lambda unit: unit.physical_offset + unit.size <= log_end)


def _cut_down_to(queue: ConsumeQueue, is_good: Callable[[ConsumeQueueUnit], bool]) -> int:
    """Cut units off the end until one is good or lost; return how many were cut."""
    end, first = queue.next_offset, first_offset(queue)
    while end > first and (unit := queue.unit(end - 1)) is not None and not (unit.is_lost or is_good(unit)):
        end -= 1
    return _cut_if_shorter(queue, end)


def cut_queue(queue: ConsumeQueue, next_offset: int) -> None:
    """End the queue before unit ``next_offset`` and clear on disk what follows.

    RocketMQ leaves it there, so units of lost messages can reappear at a later start.

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


def lose_units(queue: ConsumeQueue, begin: int, end: int) -> int:
    """Note that the messages between two physical offsets are lost; return how many these were.

    At the end of the queue their units are cut, because RocketMQ reads a blank one there as the end of a record.

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


def _cut_if_shorter(queue: ConsumeQueue, end: int) -> int:
    """End the queue at ``end``, or earlier, so that it does not end with lost messages."""
    cut = queue.next_offset - end
    if cut:
        first = first_offset(queue)
        while end > first and (unit := queue.unit(end - 1)) is not None and unit.is_lost:
            end -= 1
        cut_queue(queue, end)
    return cut
