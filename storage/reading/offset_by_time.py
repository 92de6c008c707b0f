"""Find the message that was stored at, or nearest to, a time.

Source: ConsumeQueue.java, getOffsetInQueueByTime; store.md 7.5.
"""

from itertools import chain

from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.storage.commit_log.clock_steps import ClockStep
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import physical_offset_of
from triomq.storage.reading.cold_read import ColdReads, Work


def offset_by_time(log: CommitLog, queue: ConsumeQueue, timestamp: int, cold: ColdReads) -> Work[int]:
    """Return the queue offset of the message stored nearest to ``timestamp`` (ms), 0 for an empty queue.

    With several messages of one millisecond any of them is found, after the last message the last one.

    Where store times go back, each part of the log is searched in which they ascend, from the oldest on: a message
    before the one returned is older than ``timestamp``, or has the same time.  RocketMQ searches as if they ascended.
    """
    begin = queue.min_offset
    skipped_to = 0
    for place, newest_ms in chain(log.clock_steps.all, (ClockStep(2**63 - 1, timestamp),)):
        if newest_ms < timestamp:
            skipped_to = place
            continue
        if skipped_to:
            begin = yield from _first_unit_at(queue, begin, skipped_to, cold)
        end = yield from _first_unit_at(queue, begin, place, cold)
        if begin < end:
            found = yield from _search(log, queue, begin, end, timestamp, cold)
            if found < end - 1 or log.store_time(physical_offset_of(queue, found)) >= timestamp:
                return found
        begin, skipped_to = end, 0
    return max(queue.max_offset - 1, queue.min_offset)


def _first_unit_at(queue: ConsumeQueue, begin: int, place: int, cold: ColdReads) -> Work[int]:
    """Return the first unit from ``begin`` on whose record is at or after a place of the log, else the queue's end."""
    low, high = begin, queue.max_offset
    if place >= queue.max_physical_offset:
        return high
    while low < high:
        middle = (low + high) // 2
        yield from cold.load_units(queue, middle)
        if physical_offset_of(queue, middle) < place:
            low = middle + 1
        else:
            high = middle
    return low


def _search(log: CommitLog, queue: ConsumeQueue, first: int, last: int, timestamp: int, cold: ColdReads) -> Work[int]:
    """Search the units of [first, last), whose times ascend; only the file that covers the time.

    RocketMQ picks it by modification time, which a copied directory does not keep; here it is the first whose last
    message is not older than ``timestamp``, or the last.
    """
    for file in tuple(queue.files.files):  # retention may delete some meanwhile
        end = min(file.end // UNIT_SIZE, last)
        if end <= first:
            continue
        begin = max(file.start // UNIT_SIZE, first)
        if end < last:
            yield from cold.load_units(queue, end - 1)
            newest = physical_offset_of(queue, end - 1)
            yield from cold.load_records((newest,))
            if log.store_time(newest) < timestamp:
                continue
        return (yield from _nearest(log, queue, file.start // UNIT_SIZE, range(begin, end), timestamp, cold))
    return first


def _nearest(
    log: CommitLog, queue: ConsumeQueue, file_start: int, units: range, timestamp: int, cold: ColdReads
) -> Work[int]:
    """Search some units, with the middles RocketMQ takes, as they decide between equal times."""
    low, high = units[0], units[-1]
    left = right = left_time = right_time = -1
    while low <= high:
        middle = file_start + (low + high - 2 * file_start) // 2
        yield from cold.load_units(queue, middle)
        physical_offset = physical_offset_of(queue, middle)
        yield from cold.load_records((physical_offset,))
        time = log.store_time(physical_offset)
        if physical_offset < log.min_offset:
            low, left = middle + 1, middle
        elif time < 0:
            return queue.min_offset
        elif time == timestamp:
            return middle
        elif time > timestamp:
            high, right, right_time = middle - 1, middle, time
        else:
            low, left, left_time = middle + 1, middle, time
    if left_time < 0:
        return max(right, queue.min_offset)
    if right_time < 0 or timestamp - left_time <= right_time - timestamp:
        return left
    return right
