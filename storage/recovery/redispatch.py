"""Rebuild consume queue units from the records that recovery reads.

Source: DefaultMessageStore.java, doDispatch; ConsumeQueue.java, putMessagePositionInfoWrapper; store.md 3.2-3.4, 5.7.
"""

from collections.abc import Iterable
from typing import Final

from triomq.protocol.codes import TRANSACTION_MASK
from triomq.protocol.errors import IllegalNameError
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.protocol.record.record import RecordCheck
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.delays import TagsCodeOf
from triomq.storage.dispatch import WITHOUT_UNIT
from triomq.storage.files.deleted_topics import DeletedTopics
from triomq.storage.recovery.queue_numbers import MAX_QUEUE_OFFSET, Ignore, QueueNumbers

_MAX_LOGGED: Final = 100


class Redispatcher:
    """Builds missing units from records; records that have their unit already change nothing.

    Attributes:
        units_added: how many units were written.
        ignored_records: how many records got none: an impossible topic, queue id or queue offset.
        gaps: queues of which a record came with units missing before it, and the queue offset of the first such
            record; nothing was appended to them since.
        bridged: queues that continue after missing messages.
        headless: queues that have lost their first file: a record came with a lower number than theirs.
    """

    __slots__ = (
        "_deleted",
        "_ignore",
        "_numbers",
        "_queues",
        "_tags_code_of",
        "bridged",
        "gaps",
        "headless",
        "ignored_records",
        "units_added",
    )

    def __init__(self, queues: QueueTable, deleted: DeletedTopics, tags_code_of: TagsCodeOf, ignore: Ignore) -> None:
        """Build units in ``queues``; ``ignore`` is told of the first records that get none."""
        self._queues = queues
        self._deleted = deleted
        self._tags_code_of = tags_code_of
        self._ignore = ignore
        self._numbers: QueueNumbers | None = None
        self.units_added = 0
        self.ignored_records = 0
        self.gaps: dict[ConsumeQueue, int] = {}
        self.headless: set[ConsumeQueue] = set()
        self.bridged: set[ConsumeQueue] = set()

    def start(self, log_start: int | None) -> None:
        """Expect records, in the order of the log; call ``finish`` after them.

        ``log_start`` is given if they come from the start of the log: then messages missing before a record are lost.
        """
        self.gaps.clear()
        self._numbers = None if log_start is None else QueueNumbers(log_start, self._append, self._pass_over)

    def dispatch(self, records: Iterable[RecordCheck]) -> None:
        """Write the units of records if they are missing.

        Raises:
            StoreFullError, StoreError: one cannot be written.
        """
        find_queue, deleted_end = self._queues.find, self._deleted.end_of
        numbers = self._numbers
        held = numbers.held if numbers is not None else ()
        for record in records:
            _, size, _, queue_id, queue_offset, physical_offset, sys_flag, _, _, _, topic, _ = record
            if sys_flag & TRANSACTION_MASK in WITHOUT_UNIT or physical_offset < deleted_end(topic):
                continue
            queue = None
            if 0 <= queue_offset <= MAX_QUEUE_OFFSET:
                queue = find_queue(topic, queue_id) or self._new_queue(record)
            if queue is None:
                self._pass_over(record, "no queue can have it")
            elif physical_offset + size <= queue.max_physical_offset:
                if queue_offset * UNIT_SIZE < queue.files.start:
                    self.headless.add(queue)
            elif queue_offset == queue.next_offset and not held:
                self._append(queue, record)
            elif numbers is not None:
                numbers.add(queue, record)
            elif queue_offset > queue.next_offset:
                self.gaps.setdefault(queue, queue_offset)
            else:
                self._pass_over(record, f"number {queue_offset} is taken")

    def finish(self) -> None:
        """Write the units still held back after the last record.

        Raises:
            StoreFullError, StoreError: it cannot be written.
        """
        if self._numbers is not None:
            self._numbers.finish()
            self.bridged |= self._numbers.bridged
            self._numbers = None  # which knows this object: nothing else would end that before garbage is collected

    def _append(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        queue.append_visible(record.physical_offset, record.size, self._tags_code_of(record))
        self.units_added += 1

    def _pass_over(self, record: RecordCheck, reason: str) -> None:
        self.ignored_records += 1
        if self.ignored_records <= _MAX_LOGGED:
            self._ignore(record, reason)

    def _new_queue(self, record: RecordCheck) -> ConsumeQueue | None:
        try:
            return self._queues.get(record.topic, record.queue_id)
        except IllegalNameError:
            return None
