"""Which records get a unit, and which number, when queues are built from the start of the commit log.

A record's CRC covers its body only, so a flipped bit can give it another number.  Taken as it is, one that is too high
would take the places of all intact records up to it.  Therefore a number that does not follow the one before, as after
lost or expired records, is believed only when the queue's next record has a higher one, or there is none.
"""

from collections.abc import Callable
from typing import Final

from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.protocol.record.layout import MIN_RECORD_BYTES
from triomq.protocol.record.record import RecordCheck
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.recovery.queue_cuts import cut_queue

MAX_QUEUE_OFFSET: Final = 2**58
"""As a position in the queue's files it still fits 64 bits."""

Append = Callable[[ConsumeQueue, RecordCheck], None]
"""Called with a queue and a record whose number is the queue's next one now."""

Ignore = Callable[[RecordCheck, str], None]
"""Called with a record that gets no unit, and why."""


class QueueNumbers:
    """Gives records, which come in the order of the log, to their queues; call ``finish`` after the last one.

    Attributes:
        held: by queue, the record whose number is not yet believed.  While there is none, a record that has its
            queue's next number may be given to it without asking here.
        bridged: queues that continue after missing messages.
    """

    __slots__ = ("_append", "_ignore", "_log_start", "bridged", "held")

    def __init__(self, log_start: int, append: Append, ignore: Ignore) -> None:
        """Expect the records of a log that begins at ``log_start``."""
        self._log_start = log_start
        self._append = append
        self._ignore = ignore
        self.held: dict[ConsumeQueue, RecordCheck] = {}
        self.bridged: set[ConsumeQueue] = set()

    def add(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        """Take the next record of a queue that has no unit yet.

        Raises:
            StoreFullError, StoreError: the units in the place of lost messages cannot be written.
        """
        held = self.held.pop(queue, None)
        number = record.queue_offset
        if held is not None and held.queue_offset < number:
            self._believe(queue, held)
        if not queue.next_offset <= number <= MAX_QUEUE_OFFSET:  # two records cannot have the same
            self._ignore(record, f"number {number} is taken or impossible")
            if held is not None and held.queue_offset >= queue.next_offset:
                self.held[queue] = held
            return
        if held is not None and held.queue_offset >= number:
            self._ignore(held, f"number {held.queue_offset}, but {number} follows it")
        if number == queue.next_offset:
            self._append(queue, record)
        else:
            self.held[queue] = record

    def finish(self) -> None:
        """Believe what no further record contradicts.

        Raises:
            StoreFullError, StoreError: as ``add``.
        """
        for queue, record in self.held.items():
            self._believe(queue, record)
        self.held.clear()

    def _believe(self, queue: ConsumeQueue, record: RecordCheck) -> None:
        """Continue a queue with a record although those before it are missing."""
        physical_offset = record.physical_offset
        missing = record.queue_offset - queue.next_offset
        lost_bytes = physical_offset - queue.max_physical_offset  # no more messages than this can be missing
        had_units = bool(queue.files.files)
        if queue.max_physical_offset <= self._log_start:
            cut_queue(queue, 0)  # nothing of it is left but units of expired records
            queue.start_at(record.queue_offset, physical_offset, record.size)
        elif missing <= max(queue.files.file_size // UNIT_SIZE, lost_bytes // MIN_RECORD_BYTES):
            queue.append_lost(missing, physical_offset, record.size)
        else:
            self._ignore(record, f"no loss explains number {record.queue_offset}")
            return
        if had_units:
            self.bridged.add(queue)
        self._append(queue, record)
