"""Rebuild consume queue units from the records that recovery reads.

Problem: a record's CRC covers its body only, so a flipped bit can give the record another queue offset.  Taken as it
is, an offset that is too high would take the places of all intact records up to it.  Rejected: to trust no record
without a unit, which loses messages after each crash; to end the queue at the first strange offset, as RocketMQ does.

Rule: an offset that does not follow the previous one, as after lost or expired records, is held back.  It is accepted
if the queue's next record has a higher one, or if no record follows.  Only a walk from the start of the log can decide
that; any other walk notes the queue in ``gaps``, and recovery reads the log again for it.

Source: DefaultMessageStore.java, doDispatch; ConsumeQueue.java, putMessagePositionInfoWrapper; store.md 3.2-3.4, 5.7.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from triomq.protocol.codes import HIDDEN_BIT
from triomq.protocol.errors import IllegalNameError
from triomq.protocol.record.consume_queue_unit import UNIT, UNIT_SIZE
from triomq.protocol.record.layout import MIN_RECORD_BYTES
from triomq.protocol.record.record import RecordCheck
from triomq.storage.commit_log.commit_log import CommitLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.queue_table import QueueTable
from triomq.storage.delays import TagsCodeOf
from triomq.storage.files.log_state import DeletedTopics
from triomq.storage.recovery.queue_recovery import ACROSS_SECTORS, cut_queue, mend_torn_unit

LOGGER: Final = logging.getLogger("triomq.storage.recovery.redispatch")

MAX_QUEUE_OFFSET: Final = 2**58
"""As a position in the queue's files it still fits 64 bits."""

_MAX_LOGGED: Final = 100


@dataclass(eq=False)
class Redispatcher:
    """Builds missing units from records in the order of the log; records that have their unit change nothing.

    Attributes:
        log, queues, deleted, tags_code_of: those of the store.
        is_replica: its records come from a master, which may have deleted their topics.
        units_added: how many units were written.
        ignored_records: how many records got none: an impossible topic, queue id or queue offset.
        gaps: queues with a record after missing units, and its queue offset; nothing was appended to them since.
        bridged: queues that continue after missing messages.
        mended: queues of which a torn unit was completed.
        headless: queues that have lost their first file: a record came with a lower queue offset than theirs.
    """

    log: CommitLog
    queues: QueueTable
    deleted: DeletedTopics
    tags_code_of: TagsCodeOf
    is_replica: bool = False

    def __post_init__(self) -> None:
        self._log_start: int | None = None
        self._held: dict[ConsumeQueue, RecordCheck] = {}  # records whose queue offset is not accepted yet
        self.units_added = 0
        self.ignored_records = 0
        self.gaps: dict[ConsumeQueue, int] = {}
        self.headless: set[ConsumeQueue] = set()
        self.bridged: set[ConsumeQueue] = set()
        self.mended: set[ConsumeQueue] = set()

    def start(self, log_start: int | None) -> None:
        """Begin a walk over records; call ``finish`` after the last one.

        ``log_start`` is given if they come from the start of the log: then messages missing before a record are lost.
        """
        self.gaps.clear()
        self._log_start = log_start

    def dispatch(self, records: Iterable[RecordCheck]) -> None:
        """Write the units of records if they are missing.

        Raises:
            StoreFullError, StoreError: one cannot be written.
        """
        find_queue, deleted_end = self.queues.find, self.deleted.end_of
        held = self._held
        for record in records:
            _, size, _, queue_id, queue_offset, physical_offset, sys_flag, _, _, _, topic, _ = record
            if sys_flag & HIDDEN_BIT or physical_offset < deleted_end(topic):
                continue
            queue = None
            if 0 <= queue_offset <= MAX_QUEUE_OFFSET:
                queue = find_queue(topic, queue_id) or self._new_queue(record)
            if queue is None:
                self._ignore(record, "no queue can have it")
            elif physical_offset + size <= queue.max_physical_offset:
                if queue_offset * UNIT_SIZE < queue.files.start:
                    self.headless.add(queue)
            elif queue_offset == queue.next_offset and not held:
                self._append(queue, record)
            else:
                self._append_out_of_order(queue, record)

    def mend(self, records: Iterable[RecordCheck]) -> None:
        """Complete the units of which a power cut left the part in one sector; they count as added.

        Raises:
            StoreError: a file cannot be mapped.
        """
        units_in_file = self.queues.units_in_file
        for record in records:
            if record.queue_offset % units_in_file & 127 in ACROSS_SECTORS:
                queue = self.queues.find(record.topic, record.queue_id)
                if queue is not None and record.physical_offset >= self.deleted.end_of(record.topic):
                    unit = UNIT.pack(record.physical_offset, record.size, self.tags_code_of(record))
                    if mend_torn_unit(queue, record.queue_offset, unit):
                        self.units_added += 1
                        self.mended.add(queue)

    def finish(self) -> None:
        """Write the units of records that no later one contradicts.

        Raises:
            StoreFullError, StoreError: one cannot be written.
        """
        for queue, record in self._held.items():
            self._accept(queue, record)
        self._held.clear()

    def _append_out_of_order(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        number = record.queue_offset
        if self.is_replica and not number and queue.next_offset:
            self._start_again(queue, record)
        elif self._log_start is not None:
            self._compare(queue, record)
        elif number > queue.next_offset:
            self.gaps.setdefault(queue, number)
        else:
            self._ignore(record, f"number {number} is taken")

    def _start_again(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        """Empty a queue: its topic was deleted at the master, and has messages again."""
        LOGGER.warning("consume queue starts again topic=%r queue_id=%d", queue.topic, queue.queue_id)
        self._held.pop(queue, None)
        queue.destroy()
        self._append(queue, record)

    def _compare(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        """Decide about the record held back for this queue, now that the queue's next one is known."""
        held = self._held.pop(queue, None)
        number = record.queue_offset
        if held is not None and held.queue_offset < number:
            self._accept(queue, held)
        if number < queue.next_offset:  # two records cannot have the same
            self._ignore(record, f"number {number} is taken")
            if held is not None and held.queue_offset >= queue.next_offset:
                self._held[queue] = held
            return
        if held is not None and held.queue_offset >= number:
            self._ignore(held, f"number {held.queue_offset}, but {number} follows it")
        if number == queue.next_offset:
            self._append(queue, record)
        else:
            self._held[queue] = record

    def _accept(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        """Continue a queue with a record although those before it are missing."""
        assert self._log_start is not None, "only then records are held back"
        physical_offset = record.physical_offset
        missing = record.queue_offset - queue.next_offset
        lost_bytes = physical_offset - queue.max_physical_offset  # no more messages than this can be missing
        had_units = bool(queue.files.files)
        if queue.max_physical_offset <= self._log_start:
            cut_queue(queue, 0)  # only units of expired records are left
            queue.start_at(record.queue_offset, physical_offset, record.size)
        elif missing <= max(queue.files.file_size // UNIT_SIZE, lost_bytes // MIN_RECORD_BYTES):
            queue.append_lost(missing, physical_offset, record.size)
        else:
            self._ignore(record, f"no loss explains number {record.queue_offset}")
            return
        if had_units:
            self.bridged.add(queue)
        self._append(queue, record)

    def _append(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        queue.append_visible(record.physical_offset, record.size, self.tags_code_of(record))
        self.units_added += 1

    def _ignore(self, record: RecordCheck, reason: str) -> None:
        self.ignored_records += 1
        if self.ignored_records <= _MAX_LOGGED:
            file = self.log.files.file_at(record.physical_offset)
            LOGGER.warning(
                "record left out of its consume queue file=%s offset=%d topic=%r queue_id=%d reason=%s",
                file.path if file is not None else None, record.physical_offset, record.topic, record.queue_id, reason,
            )  # fmt: skip

    def _new_queue(self, record: RecordCheck) -> ConsumeQueue | None:
        try:
            return self.queues.get(record.topic, record.queue_id)
        except IllegalNameError:
            return None
