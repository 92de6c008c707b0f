"""Read access to an open store: messages by offset, by time or by filter.

A read with a filter on properties is a plain read of which some records are kept.  It looks at a limited number of
messages, so that other clients do not wait for it, whether any message matches or not.

Source: ConsumeQueue.java, getOffsetInQueueByTime; store.md 7.5.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from triomq.protocol.errors import ProtocolError
from triomq.protocol.filters.filter_types import MessageFilter, SqlFilter
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE, ConsumeQueueUnit
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record, iter_properties
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.consume_queue.unit_search import physical_offset_of
from triomq.storage.files.log_state import ClockStep
from triomq.storage.reading.cold_read import ColdReads, Work
from triomq.storage.reading.get_message import GetMessageResult, GetMessageStatus, TagCodes, get_message


class StoreReader:
    """Reads the log and the queues of an open store."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, cold_reads: ColdReads) -> None:
        """Read with these parts; ``cold_reads`` finds ranges that are not in memory."""
        self._config = config
        self._log = log
        self._queues = queues
        self._cold_reads = cold_reads

    def get_message(
        self,
        queue: ConsumeQueue | tuple[str, int],
        queue_offset: int,
        max_msg_nums: int,
        codes: TagCodes = None,
        max_bytes: int | None = None,
    ) -> GetMessageResult:
        """Read messages from ``queue_offset`` on; see ``get_message.get_message``.

        ``queue`` may be given as topic and queue id: one that does not exist is not created, and has no messages.
        """
        found = queue if isinstance(queue, ConsumeQueue) else self._queues.find(*queue)
        if found is None:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, 0)
        return get_message(self._log, self._config, found, queue_offset, max_msg_nums, codes, max_bytes)

    def get_matching(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter,
        max_bytes: int | None,
    ) -> GetMessageResult:
        """Read the messages that a filter may match, by its own stage: the units' tag codes, or the properties.

        ``scan_for`` returns the arguments of the plain read.
        """
        scan = scan_for(message_filter, max_msg_nums, max_bytes)
        found = get_message(self._log, self._config, queue, queue_offset, *scan)
        if isinstance(message_filter, SqlFilter) and found.status is GetMessageStatus.FOUND:
            return self._choose(found, message_filter, max_msg_nums, max_bytes)
        return found

    def _choose(
        self, found: GetMessageResult, sql: SqlFilter, max_msg_nums: int, max_bytes: int | None
    ) -> GetMessageResult:
        """Return of a plain read what matches, up to the limits of a usual read, and of the work for it."""
        most, room = self._config.transfer_limits(max_bytes)
        most = min(max_msg_nums, most)
        next_begin_offset = found.next_begin_offset
        chosen: list[memoryview] = []
        count = total = spent = 0
        matches, parts = sql.matches, sql.size
        records = ((buffer, record) for buffer in found.buffers for record in iter_properties(buffer))
        for buffer, (start, end, queue_offset, properties) in records:
            cost = parts if len(properties) <= _SHORT_PROPERTIES else parts + len(properties) // _BYTES_OF_A_PART
            if spent and spent + cost > _MAX_PARTS_EVALUATED:
                next_begin_offset = queue_offset
                break
            spent += cost
            if not matches(properties):
                continue
            size = end - start
            if count >= most or (count and total + size > room):
                next_begin_offset = queue_offset
                break
            chosen.append(buffer[start:end])
            count += 1
            total += size
        status = GetMessageStatus.FOUND if count else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, next_begin_offset, found.min_offset, found.max_offset, chosen, count, total)

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message; 0 for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message; 0 for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> Work[int]:
        """Return the queue offset of the message stored nearest to ``timestamp`` (ms), 0 without messages.

        With several messages of one millisecond any of them is found, after the last message the last one.

        Where store times go back, each part of the log is searched in which they ascend, from the oldest on: a message
        before the one returned is older than ``timestamp``, or has the same time.  RocketMQ searches all at once.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        log, begin = self._log, queue.min_offset
        skipped_to = 0
        for place, newest_ms in chain(log.clock_steps.all, (ClockStep(2**63 - 1, timestamp),)):
            if newest_ms < timestamp:
                skipped_to = place
                continue
            if skipped_to:
                begin = yield from self._first_unit_at(queue, begin, skipped_to)
            end = yield from self._first_unit_at(queue, begin, place)
            if begin < end:
                found = yield from self._search(queue, begin, end, timestamp)
                if found < end - 1 or log.store_time(physical_offset_of(queue, found)) >= timestamp:
                    return found
            begin, skipped_to = end, 0
        return max(queue.max_offset - 1, queue.min_offset)

    def _first_unit_at(self, queue: ConsumeQueue, begin: int, place: int) -> Work[int]:
        """Return the first unit from ``begin`` on whose record is at or after a place of the log, else the end."""
        low, high = begin, queue.max_offset
        if place >= queue.max_physical_offset:
            return high
        while low < high:
            middle = (low + high) // 2
            yield from self._cold_reads.load_units(queue, middle)
            if physical_offset_of(queue, middle) < place:
                low = middle + 1
            else:
                high = middle
        return low

    def _search(self, queue: ConsumeQueue, first: int, last: int, timestamp: int) -> Work[int]:
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
                yield from self._cold_reads.load_units(queue, end - 1)
                newest = physical_offset_of(queue, end - 1)
                yield from self._cold_reads.load_records((newest,))
                if self._log.store_time(newest) < timestamp:
                    continue
            return (yield from self._nearest(queue, file.start // UNIT_SIZE, range(begin, end), timestamp))
        return first

    def _nearest(self, queue: ConsumeQueue, file_start: int, units: range, timestamp: int) -> Work[int]:
        """Search some units, with the middles RocketMQ takes, as they decide between equal times."""
        low, high = units[0], units[-1]
        left = right = left_time = right_time = -1
        while low <= high:
            middle = file_start + (low + high - 2 * file_start) // 2
            yield from self._cold_reads.load_units(queue, middle)
            physical_offset = physical_offset_of(queue, middle)
            yield from self._cold_reads.load_records((physical_offset,))
            time = self._log.store_time(physical_offset)
            if physical_offset < self._log.min_offset:
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

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> Work[int]:
        """Return the store time (ms) of a message, or of the next one if it is lost; -1 without one."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        yield from self._cold_reads.load_units(queue, queue_offset)
        physical_offset = physical_offset_of(queue, queue_offset)
        yield from self._cold_reads.load_records((physical_offset,))
        return self._log.store_time(physical_offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> Work[int]:
        """Return the store time of the first message of the queue (ms), -1 without messages."""
        return (yield from self.store_time(topic, queue_id, self.min_offset_in_queue(topic, queue_id)))

    def is_durable(self, physical_offset: int) -> bool:
        """Whether a record is as durable as the configuration promises; with durability sync: on the disk."""
        return self._config.durability is not Durability.SYNC or physical_offset < self._log.flushed_offset

    def is_shown(self, message: MessageExt) -> Work[bool]:
        """Whether consumers can get a stored record: the unit at its place in its queue names it, and is visible."""
        queue, queue_offset = self._queues.find(message.topic, message.queue_id), message.queue_offset
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return False
        yield from self._cold_reads.load_units(queue, queue_offset)
        unit = queue.unit(queue_offset)
        return unit is not None and unit[:2] == (message.physical_offset, message.store_size)

    def recent_message(self, physical_offset: int) -> MessageExt | None:
        """Return the message at ``physical_offset`` if it was written lately, so that it is in memory; else ``None``.

        Any offset is allowed, and the message may not be on the disk yet, as in ``look_up``.
        """
        log = self._log
        if not self._cold_reads.hot_from() <= physical_offset < log.max_offset:
            return None
        file = log.files.file_at(physical_offset)
        try:
            message = None if file is None else decode_record(file.map, physical_offset - file.start)
        except ProtocolError:
            return None
        return message if message is not None and message.physical_offset == physical_offset else None

    def look_up(self, physical_offsets: Sequence[int]) -> Work[list[memoryview | None]]:
        """Return the record at each physical offset, ``None`` where no good one begins; any offset is allowed.

        A client may know a place before the record is on the disk, from a send that does not wait or a check of a
        transaction: with durability sync, answer after the flush unless ``is_durable``.
        """
        yield from self._cold_reads.load_records(physical_offsets)
        return [self._log.look_message(physical_offset) for physical_offset in physical_offsets]

    def queue_units(self, topic: str, queue_id: int, index: int, count: int) -> list[ConsumeQueueUnit]:
        """Return up to ``count`` visible units of a queue from queue offset ``index`` on."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        begin, end = max(index, queue.min_offset), min(index + count, queue.max_offset)
        units = map(queue.unit, range(begin, end))
        return [unit for unit in units if unit is not None]


_MAX_UNITS_LOOKED_AT: Final = 4_000  # about 1 ms
_MAX_LOOKED_AT: Final = 400
_MAX_PARTS_EVALUATED: Final = 4_000  # about 2 ms
_SHORT_PROPERTIES: Final = 256  # bytes; to read more of them takes as long as to evaluate a part for each 8
_BYTES_OF_A_PART: Final = 8
_MAX_BYTES_LOOKED_AT: Final = 4 * 1024 * 1024

Scan = tuple[int, TagCodes, int | None]


def scan_for(message_filter: MessageFilter, max_msg_nums: int, max_bytes: int | None) -> Scan:
    """Return the arguments of the plain read: number of messages, tag codes and bytes.

    Where no tag matches, a read ends after as many units as messages are wanted, but at least some hundred.
    """
    if isinstance(message_filter, SqlFilter):
        return max(min(_MAX_LOOKED_AT, _MAX_PARTS_EVALUATED // message_filter.size), 1), None, _MAX_BYTES_LOOKED_AT
    return min(max_msg_nums, _MAX_UNITS_LOOKED_AT), message_filter.codes, max_bytes
