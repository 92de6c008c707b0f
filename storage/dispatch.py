"""From the commit log to the consume queues: what is built of each record besides the record itself.

``Dispatcher`` makes appended messages visible; ``Redispatcher`` builds units again from records that recovery reads.
The index of keys follows the log by itself: ``message_index``.
Source: DefaultMessageStore.java, doDispatch; ConsumeQueue.java, putMessagePositionInfoWrapper; store.md 3.2-3.4, 5.7.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from triomq.protocol.consume_queue_unit import UNIT, UNIT_SIZE
from triomq.protocol.errors import IllegalNameError, MessageIllegalError
from triomq.protocol.record import RecordCheck
from triomq.storage.consume_queue import ConsumeQueue
from triomq.storage.delay_levels import SCHEDULE_TOPIC, DelayLevels, requested_level
from triomq.storage.deleted_topics import DeletedTopics
from triomq.storage.queue_table import QueueTable
from triomq.storage.timer_times import TIMER_TOPIC, stored_time, wake_time

TagsCodeOf = Callable[[RecordCheck], int]

WITHOUT_UNIT: Final = frozenset({int(MessageSysFlag.TRANSACTION_PREPARED), int(MessageSysFlag.TRANSACTION_ROLLBACK)})
"""Transaction bits of records that no consumer ever sees.  Source: store.md 3.3."""

_MAX_QUEUE_OFFSET: Final = 2**58  # as a position in the queue's files it still fits 64 bits
_pack_unit = UNIT.pack


class Dispatcher:
    """Shows appended messages to consumers: at once, or when they are on the disk."""

    __slots__ = ("_pending", "_wait_for_flush")

    def __init__(self, *, wait_for_flush: bool) -> None:
        self._wait_for_flush = wait_for_flush
        self._pending: deque[tuple[int, ConsumeQueue, int]] = deque()

    def appended(self, queue: ConsumeQueue, physical_end: int) -> None:
        """Note that all units of ``queue`` are written, of records before ``physical_end``."""
        if self._wait_for_flush:
            self._pending.append((physical_end, queue, queue.next_offset))
            return
        queue.max_offset = queue.next_offset
        if queue.on_arrival is not None:
            queue.on_arrival(queue)

    def flushed(self, flushed_offset: int) -> None:
        """Show the messages before ``flushed_offset``; each queue's ``on_arrival`` is called once."""
        pending = self._pending
        arrived: dict[ConsumeQueue, None] = {}
        while pending and pending[0][0] <= flushed_offset:
            _, queue, max_offset = pending.popleft()
            queue.max_offset = max_offset
            arrived[queue] = None
        for queue in arrived:
            if queue.on_arrival is not None:
                queue.on_arrival(queue)

    def forget(self, topic: str) -> None:
        """Drop what waits in queues that were deleted."""
        self._pending = deque(entry for entry in self._pending if entry[1].topic != topic)


class Redispatcher:
    """Builds missing units from records; records that have their unit already change nothing.

    Attributes:
        from_log_begin: the records come from the begin of the log, so what an empty queue misses before its first
            one is gone.
        units_added: how many units were written.
        ignored_records: how many records cannot have one: an impossible topic, queue id or queue offset.
        gaps: queues of which a record came with units missing before it, and the queue offset of the first such
            record; nothing was appended to them since.
        headless: queues that have lost their first file: a record came with a lower number than theirs.
    """

    __slots__ = (
        "_deleted",
        "_queues",
        "_tags_code_of",
        "from_log_begin",
        "gaps",
        "headless",
        "ignored_records",
        "units_added",
    )

    def __init__(self, queues: QueueTable, deleted: DeletedTopics, tags_code_of: TagsCodeOf) -> None:
        self._queues = queues
        self._deleted = deleted
        self._tags_code_of = tags_code_of
        self.from_log_begin = False
        self.units_added = 0
        self.ignored_records = 0
        self.gaps: dict[ConsumeQueue, int] = {}
        self.headless: set[ConsumeQueue] = set()

    def dispatch(self, record: RecordCheck, physical_offset: int) -> None:
        """Write the unit of one record if it is missing.

        Raises:
            StoreFullError, StoreError: it cannot be written.
        """
        if record.sys_flag & TRANSACTION_MASK in WITHOUT_UNIT:
            return
        topic, queue_offset = record.topic, record.queue_offset
        if physical_offset < self._deleted.end_of(topic):
            return
        queue = None
        if 0 <= queue_offset <= _MAX_QUEUE_OFFSET:
            queue = self._queues.find(topic, record.queue_id) or self._new_queue(record)
        if queue is None:
            self.ignored_records += 1
            return
        physical_end = physical_offset + record.size
        if physical_end <= queue.max_physical_offset:
            if queue_offset * UNIT_SIZE < queue.files.start:
                self.headless.add(queue)
            return
        if self.from_log_begin and queue_offset > 0 and not queue.files.files:
            queue.begin_at(queue_offset, physical_offset, record.size)
        if queue_offset == queue.next_offset:
            queue.reserve(1)
            queue.append_packed(_pack_unit(physical_offset, record.size, self._tags_code_of(record)), physical_end)
            queue.max_offset = queue.next_offset
            self.units_added += 1
        elif queue_offset > queue.next_offset:
            self.gaps.setdefault(queue, queue_offset)
        else:
            self.ignored_records += 1  # its number is taken: two records cannot have the same

    def _new_queue(self, record: RecordCheck) -> ConsumeQueue | None:
        try:
            return self._queues.get(record.topic, record.queue_id)
        except IllegalNameError:
            return None


def stored_tags_code(levels: DelayLevels) -> TagsCodeOf:
    """Return the function that gives the tags code of a stored record.

    It is the hash of the tags, but the delivery time for a delayed message.  Source: store.md 3.2.
    """

    def tags_code_of(record: RecordCheck) -> int:
        if record.topic == SCHEDULE_TOPIC:
            try:
                level = requested_level(record.properties)
            except MessageIllegalError:
                level = 0
            if level > 0:
                return levels.delivery_time(level, record.store_timestamp)
        elif record.topic == TIMER_TOPIC:
            return wake_time(stored_time(record.properties), record.store_timestamp)
        return record.tags_code

    return tags_code_of
