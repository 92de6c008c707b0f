"""Cut, mark or mend the units of a consume queue that do not agree with the log.

Source: ConsumeQueue.java, truncateDirtyLogicFiles; store.md 3.6, 5.5.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from triomq.protocol.record.consume_queue_unit import UNIT, UNIT_SIZE, ConsumeQueueUnit
from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import first_offset, newest_unit, parts_with_units, physical_offset_of

_SIZE_END: Final = 12  # in a unit
_SECTOR: Final = 512  # of a disk: a power cut leaves all of it or nothing

ACROSS_SECTORS: Final = frozenset((25, 51, 76, 102))
"""Of each 128 units of a file, which are five sectors long, those that lie across a border of sectors."""


def drop_dangling_units(queue: ConsumeQueue, log: CommitLog, *, check_crc: bool) -> list[ConsumeQueueUnit]:
    """Cut units off the end until one points to an existing record of this queue; return them.

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
    end = queue.next_offset
    while end > first_offset(queue):
        unit = queue.unit(end - 1)
        if unit is None or unit.is_lost or unit.physical_offset + unit.size <= log_end:
            break
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


def lose_parts(queue: ConsumeQueue, starts: Sequence[int], ends: Sequence[int]) -> int:
    """Note that the messages in parts of the log are lost, as ``parts_with_units`` takes them; return how many.

    Raises:
        StoreError: a file cannot be mapped.
    """
    return sum(lose_units(queue, starts[number], ends[number]) for number in parts_with_units(queue, starts, ends))


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
        cut_queue(queue, end if end > first else 0)
    return cut
