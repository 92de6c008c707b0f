"""Undecided transactions: half messages that wait for the decision of their producer.

The problem
    A producer sends a half message, runs its local transaction and sends the decision, commit or rollback.  It may die
    in between, so the broker asks the producers of its group from time to time, and gives up after some checks.  A
    decision must count once, also if it is repeated or comes with a power cut.  An Apache broker that takes over the
    store must find the same undecided transactions.

What was rejected
    - RocketMQ's way, to read both queues of transactions from the saved offsets at each check: one transaction without
      a decision makes every check read all later ones.
    - A file of undecided transactions: Apache's brokers do not know it, and a power cut may leave it and the log in
      different states.
    - Objects with all of a half message: some KiB for each of a million.  The table has a few numbers for each, and
      the half message is read when it is due.

What is stored
    A check stores the half message again, so a transaction is a chain of half messages of which the last one counts.
    An operation message names a half message that needs no decision any more.  ``protocol/transactions.py`` has the
    formats, ``recovery.py`` finds the transactions of a store.

The invariant
    - A transaction is undecided as long as its last half message is in ``Undecided``.  Each decision looks here first,
      so a late or repeated one finds nothing to do.
    - A decision or a check is one append: the committed message or the copy, and behind it the operation message.
    - The operation messages about the half messages from one on come after that one's ``op_end``.  So the oldest half
      message and its ``op_end`` are the two offsets from which the next start reads.
    - No offset on the disk is ahead of the log on the disk.

Source: behaviour.md A.6, store.md 5.8.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from triomq.broker.config import BrokerConfig
from triomq.broker.groups.tables import ConsumerOffsetTable
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.transactions.recovery import find_transactions, half_at
from triomq.protocol.codes import TRANSACTION_MASK
from triomq.protocol.java import tags_code
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.protocol.transactions import (
    COPIED_OP_PROPERTIES,
    MOVED_OP_PROPERTIES,
    OP_PROPERTIES,
    checks_of,
    is_stored_again,
    properties_of_copy,
    transaction_key,
)
from triomq.storage.append import Entry, copy_of, entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore

LOGGER: Final = logging.getLogger("triomq.broker.transactions.undecided")

_IMMUNITY: Final = PropertyName.CHECK_IMMUNITY_TIME_IN_SECONDS.encode()
_ROOT: Final = PropertyName.TRANSACTION_PREPARED_QUEUE_OFFSET.encode()
_OP_TAGS_CODE: Final = tags_code("d")
_MAX_DIGITS: Final = 9
_MAX_REMEMBERED: Final = 65_536  # decisions, for answers to repeated requests


class Decision(NamedTuple):
    """A decision on a transaction.

    Attributes:
        half: the half message that the producer names.
        live: queue offset of the transaction's last half message.
        bits: transaction bits, commit or rollback.
        queue: for a commit, the queue that gets the message.
    """

    half: MessageExt
    live: int
    bits: int
    queue: ConsumeQueue | None


@dataclass(eq=False)
class Undecided:
    """The undecided transactions of a broker.

    Attributes:
        store, offsets: hold the half messages, and the offsets of ``CID_RMQ_SYS_TRANS``.
        statistics: counts stored messages.
        config, now_ms: determine when a half message is due; the clock is never set.
        halves: the queue of the half messages.
    """

    store: MessageStore
    offsets: ConsumerOffsetTable
    statistics: BrokerStatistics
    config: BrokerConfig
    now_ms: Callable[[], int]

    def __post_init__(self) -> None:
        # Half messages are named by their queue offsets.
        self._op_ends: dict[int, int] = {}  # last half message to the end of the operation queue when it was stored
        self._copies: dict[bytes, int] = {}  # key to last half message, of transactions with several
        self._due: list[tuple[int, int]] = []  # a heap of times (ms) and half messages, which may be decided
        self._decisions: OrderedDict[int, int] = OrderedDict()  # half message decided recently to transaction bits
        # How far both queues are settled, when the log is on the disk up to the third number.
        self._unsaved: tuple[int, int, int] | None = None
        self.halves: ConsumeQueue
        self._ops: ConsumeQueue

    def __len__(self) -> int:
        return len(self._op_ends)

    def load(self) -> set[tuple[str, int]]:
        """Find the undecided transactions in the store, and settle those that a crash has left committed.

        Returns:
            After a crash the topics and queue ids that half messages are for: their topics may not have been saved.
        """
        self.halves = self.store.queue(HALF_TOPIC, 0)
        self._ops = self.store.queue(OP_HALF_TOPIC, 0)
        op_begin = self._saved_offset(self._ops)
        found = find_transactions(self.store, self.halves, self._ops, self._saved_offset(self.halves), op_begin)
        for half in found.halves:
            self._op_ends[half.queue_offset] = op_begin
            if is_stored_again(half):
                self._copies[transaction_key(half)] = half.queue_offset
            self.postpone(half.queue_offset, self._first_check_ms(half))
        for half, live in found.committed:
            self.store.append([self._operation(half, live, OP_PROPERTIES)], are_copies=True)
            self._forget(half, live)
        for half in found.torn:
            if half.queue_offset in self._op_ends:  # a later start must not believe the operation message
                self.copy(half, 0)
        if found.halves:
            LOGGER.info("undecided transactions found count=%d", len(self))
        return found.places

    def _saved_offset(self, queue: ConsumeQueue) -> int:
        saved = self.offsets.query(TRANSACTION_GROUP, queue.topic, 0)
        return min(max(saved or 0, queue.min_offset), queue.max_offset)

    def read(self, queue_offset: int) -> MessageExt | None:
        """Return the half message at a queue offset, ``None`` if it is deleted or damaged."""
        return half_at(self.store, self.halves, queue_offset)

    def put(self, message: Entry) -> tuple[int, int]:
        """Store a half message.

        Args:
            message: with the queue that it is for, and its place in the properties.

        Returns:
            Physical offset and queue offset.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        (place,) = self.store.append([message._replace(queue=self.halves)])
        self.statistics.put(HALF_TOPIC, 1, len(message.body))
        self.added(place[1], message.properties)
        return place

    def added(self, queue_offset: int, properties: bytes) -> None:
        """Add a half message that was stored."""
        self._add(queue_offset, self.now_ms() + self._immunity_ms(properties))

    def _add(self, queue_offset: int, due_ms: int) -> None:
        self._op_ends[queue_offset] = self._ops.next_offset
        self.postpone(queue_offset, due_ms)

    def postpone(self, queue_offset: int, due_ms: int) -> None:
        """Let a half message be due at a time."""
        heappush(self._due, (due_ms, queue_offset))

    def _immunity_ms(self, properties: bytes) -> int:
        seconds = get_property(properties, _IMMUNITY)
        if seconds is None or not seconds.isdigit() or len(seconds) > _MAX_DIGITS:
            return self.config.transaction_timeout_ms
        return min(int(seconds) * 1000, self.config.transaction_max_age_ms)

    def _first_check_ms(self, half: MessageExt) -> int:
        """Return when a half message found in the store is due."""
        if checks_of(half):  # it may be of the future: the clock was ahead then
            return min(half.store_timestamp, self.now_ms()) + self.config.transaction_check_interval_ms
        # The time of a copy says nothing; that of a client may be wrong.
        is_copy = get_property(half.encoded_properties, _ROOT) is not None
        since_ms = min(half.born_timestamp, half.store_timestamp) if is_copy else half.store_timestamp
        return min(max(since_ms, 0), self.now_ms()) + self._immunity_ms(half.encoded_properties)

    def find(self, half: MessageExt) -> int | None:
        """Return the last half message of the transaction of any of its half messages, ``None`` if it is settled."""
        if half.queue_offset in self._op_ends and half.topic == HALF_TOPIC:
            return half.queue_offset
        return self._copies.get(transaction_key(half)) if self._copies else None

    def decision(self, half: MessageExt) -> int | None:
        """Return the recent decision on a transaction, as transaction bits; ``None`` if it is not known."""
        return self._decisions.get(half.queue_offset)

    def decide(self, decision: Decision) -> None:
        """Settle a transaction.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        self.store.append(self.entries(decision), are_copies=True)
        self.decided(decision)

    def entries(self, decision: Decision) -> list[Entry]:
        """Return the entries that settle a transaction, in one append: the committed message, the operation message."""
        half, live, bits, queue = decision
        if queue is None:
            return [self._operation(half, live, OP_PROPERTIES)]
        operation = self._operation(half, live, COPIED_OP_PROPERTIES)
        sys_flag = half.sys_flag & ~TRANSACTION_MASK | bits
        copy = copy_of(half, queue, half.encoded_properties)
        return [copy._replace(sys_flag=sys_flag, prepared_transaction_offset=half.physical_offset), operation]

    def decided(self, decision: Decision) -> None:
        """Forget a transaction whose decision was stored."""
        half, live, bits, queue = decision
        if queue is None:
            self.statistics.rolled_back += 1
        else:
            self.statistics.committed += 1
            self.statistics.put(queue.topic, 1, len(half.stored_body))
        self._forget(half, live)
        if len(self._decisions) >= _MAX_REMEMBERED:
            self._decisions.popitem(last=False)  # a plain dict would walk over deleted entries
        self._decisions[half.queue_offset] = bits

    def _forget(self, half: MessageExt, live: int) -> None:
        del self._op_ends[live]
        if self._copies:
            self._copies.pop(transaction_key(half), None)

    def drop(self, queue_offset: int) -> None:
        """Forget a half message that cannot be read any more."""
        if self._op_ends.pop(queue_offset, None) is not None:
            LOGGER.error("half message is deleted or damaged, transaction dropped queue_offset=%d", queue_offset)

    def give_up(self, half: MessageExt) -> None:
        """Move the last half message of a transaction to ``TRANS_CHECK_MAX_TIME_TOPIC``, which settles it.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        checks = checks_of(half)
        copy = copy_of(half, self.store.queue(CHECK_MAX_TOPIC, 0), properties_of_copy(half, checks))
        self.store.append([copy, self._operation(half, half.queue_offset, COPIED_OP_PROPERTIES)], are_copies=True)
        LOGGER.warning("transaction given up checks=%d message_id=%s", checks, half.message_id)
        self._forget(half, half.queue_offset)

    def copy(self, half: MessageExt, checks: int | None, due_ms: int | None = None) -> tuple[int, int]:
        """Store a half message again; return its new physical and queue offset.

        Args:
            half: the last half message of its transaction, or one of a transaction to resume.
            checks: its new number of checks; ``None``: as before.
            due_ms: when it is due; ``None``: as before.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        entries = [copy_of(half, self.halves, properties_of_copy(half, checks))]
        live = self.find(half)
        if live is not None:
            entries.append(self._operation(half, live, MOVED_OP_PROPERTIES))
        place = self.store.append(entries, are_copies=True)[0]
        if live is not None:
            del self._op_ends[live]
        self._copies[transaction_key(half)] = place[1]
        self._add(place[1], self._first_check_ms(half) if due_ms is None else due_ms)
        return place

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """Remove and return half messages that are due; the caller decides, postpones or copies each."""
        taken: list[int] = []
        due = self._due
        while due and due[0][0] <= now_ms and len(taken) < limit:
            _, queue_offset = heappop(due)
            if queue_offset in self._op_ends:
                taken.append(queue_offset)
        return taken

    def next_due_ms(self) -> int | None:
        """Return when the next half message is due, ms; it may be decided by then."""
        return self._due[0][0] if self._due else None

    def oldest(self, limit: int) -> list[int]:
        """Return the oldest half messages if they are far behind the end of the queue, else nothing."""
        first = next(iter(self._op_ends), None)
        if first is None or self.halves.next_offset - first < max(_MAX_REMEMBERED, 4 * len(self)):
            return []
        return [queue_offset for queue_offset, _ in zip(self._op_ends, range(limit), strict=False)]

    def is_undecided(self, queue_offset: int) -> bool:
        """Whether a half message is the last one of an undecided transaction."""
        return queue_offset in self._op_ends

    def save_offsets(self) -> None:
        """Commit how far both queues are settled, once the disk holds the messages that say so."""
        log = self.store.commit_log
        if self._unsaved is not None:
            half_offset, op_offset, log_end = self._unsaved
            if log_end <= log.flushed_offset:
                self.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, half_offset)
                self.offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, op_offset)
                self._unsaved = None
        if self._unsaved is None and self.halves.next_offset:
            oldest = next(iter(self._op_ends.items()), (self.halves.next_offset, self._ops.next_offset))
            self._unsaved = *oldest, log.max_offset

    def _operation(self, half: MessageExt, queue_offset: int, properties: bytes) -> Entry:
        """Return an operation message about the half message at a queue offset."""
        return entry(
            self._ops,
            b"%d" % queue_offset,
            properties,
            tags_code=_OP_TAGS_CODE,
            born_timestamp=self.store.now_ms(),
            born_host=half.encoded_store_host,
            store_host=half.encoded_store_host,
        )
