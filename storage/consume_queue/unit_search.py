"""Find units of a consume queue: by the offsets of their records, by time, and the first and last that are not lost.

Source: ConsumeQueue.java, correctMinOffset; store.md 3.7.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from triomq.protocol.record.consume_queue_unit import BLANK_UNIT, UNIT_SIZE, ConsumeQueueUnit
from triomq.protocol.record.record import RecordKind
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue

_COMPARED_AT_ONCE: Final = 1024
_BLANKS: Final = BLANK_UNIT * _COMPARED_AT_ONCE
_AFTER_ALL: Final = 2**63 - 1


def first_offset(queue: ConsumeQueue) -> int:
    """Return the queue offset of the first unit on disk."""
    return queue.files.start // UNIT_SIZE


def newest_unit(queue: ConsumeQueue) -> ConsumeQueueUnit | None:
    """Return the last unit that is not lost."""
    for number in range(queue.next_offset - 1, first_offset(queue) - 1, -1):
        unit = queue.unit(number)
        if unit is not None and not unit.is_lost:
            return unit
    return None


def oldest_unit(queue: ConsumeQueue) -> ConsumeQueueUnit | None:
    """Return the first unit that is not lost."""
    return queue.unit(after_lost(queue, first_offset(queue)))


def physical_offset_of(queue: ConsumeQueue, number: int) -> int:
    """Return where the record of a unit begins; a lost one counts as the next that is not, so that all of them ascend.

    After lost units without any other it is after every record.
    """
    unit = queue.unit(number)
    if unit is not None and unit.is_lost:
        unit = queue.unit(after_lost(queue, number))
    return _AFTER_ALL if unit is None else unit.physical_offset


def after_lost(queue: ConsumeQueue, number: int) -> int:
    """Return the first unit from ``number`` on that is not lost, else the end of the queue."""
    while (units := queue.units_from(number, _COMPARED_AT_ONCE)) is not None:
        if bytes(units) != _BLANKS[: len(units)]:  # a view is compared one by one
            while (unit := queue.unit(number)) is not None and unit.is_lost:
                number += 1
            break
        number += len(units) // UNIT_SIZE
    return number


def find_start(first: int, end: int, log_start: int, physical_offset: Callable[[int], int]) -> int:
    """Return the first unit of [first, end) whose record is at or after ``log_start``, else ``end``."""
    if physical_offset(first) >= log_start:  # nothing has expired, so no other unit needs a look
        return first
    return first + bisect_left(range(first, end), log_start, key=physical_offset)


def correct_min_offset(queue: ConsumeQueue, log_start: int) -> None:
    """Set ``min_offset`` to the first message whose record is at or after ``log_start``."""
    number = find_start(first_offset(queue), queue.max_offset, log_start, partial(physical_offset_of, queue))
    queue.min_offset = after_lost(queue, number)


def parts_with_units(queue: ConsumeQueue, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return which parts of the log hold records of a queue by its units, as their numbers.

    There may be a thousand parts and ten thousand queues: so neither each part is looked for, nor each unit.

    Lost units do not count: those of a start that was interrupted may be in front of others that it left as they were.

    Args:
        queue: any queue.
        starts, ends: physical offsets of the parts, which are in the order of the log and do not overlap.

    Raises:
        StoreError: a file cannot be mapped.
    """
    found: list[int] = []
    if queue.max_physical_offset <= starts[0]:
        return found
    part, number = 0, first_offset(queue)
    while part < len(starts):
        units = range(number, queue.next_offset)
        number += bisect_left(units, starts[part], key=lambda number: physical_offset_of(queue, number))
        if number >= queue.next_offset:
            break
        physical_offset = physical_offset_of(queue, number)
        part = bisect_right(ends, physical_offset, part)
        if part < len(starts) and starts[part] <= physical_offset:
            found.append(part)
            part += 1
    return found


def record_before(queue: ConsumeQueue, log: CommitLog, physical_offset: int) -> int:
    """Return where the queue's last record before ``physical_offset`` begins, or -1."""
    first = first_offset(queue)
    units = range(first, queue.max_offset)
    after = bisect_left(units, physical_offset, key=lambda number: physical_offset_of(queue, number))
    if not after:
        return -1
    found = physical_offset_of(queue, units[after - 1])
    return found if log.check(found, check_crc=False).kind is RecordKind.MESSAGE else -1
