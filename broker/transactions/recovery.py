"""Finds the undecided transactions in a store when the broker starts.

The two queues of transactions are enough after a clean shutdown: half messages, and operation messages that name half
messages.  After a crash there are two more cases.  A power cut may leave an operation message, but not the committed
message in front of it in the same append: then nothing was decided.  Or it may leave the committed message, but not the
operation message behind it: then the transaction is committed, and the operation message must be stored again.

Source: store.md 5.8, 5.11.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from triomq.broker.delayed.delivery import real_queue
from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC
from triomq.protocol.record.consume_queue_unit import UNIT, UNIT_SIZE
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record
from triomq.protocol.transactions import (
    Replay,
    checks_of,
    has_own_key,
    is_behind_copy,
    settled_offsets,
    transaction_key,
)
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import record_before
from triomq.storage.message_store import MessageStore

LOGGER: Final = logging.getLogger("triomq.broker.transactions.recovery")

_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_MAX_MISSED_OPS: Final = 10_000  # before the saved offset that an Apache broker may have ignored
_MAX_TAIL_UNITS: Final = 1024  # of each queue that are compared with undecided transactions after a crash


class FoundTransactions(NamedTuple):
    """The undecided transactions of a store.

    Attributes:
        halves: the last half message of each, in the order of their queue.
        torn: those of ``halves`` that have an operation message of a decision that does not count.
        committed: after a crash, transactions in ``halves`` that are committed without an operation message: the half
            message that the committed message names, and the queue offset of the last half message.
        places: after a crash, topic and queue id of all messages that were undecided.
    """

    halves: list[MessageExt]
    torn: list[MessageExt]
    committed: list[tuple[MessageExt, int]]
    places: set[tuple[str, int]]


def find_transactions(
    store: MessageStore, half_queue: ConsumeQueue, op_queue: ConsumeQueue, begin: int, op_begin: int
) -> FoundTransactions:
    """Return the undecided transactions among the half messages from ``begin`` on.

    Operation messages that name half messages before ``begin`` count, too: Apache's brokers ignore them, and ask again
    about transactions that are decided.

    Args:
        store: is open.
        half_queue, op_queue: the queues of half messages and operation messages.
        begin, op_begin: queue offsets up to which both queues are settled.
    """
    replay = Replay()
    halves: dict[int, MessageExt] = {}
    for half in messages_from(store, half_queue, begin):
        replay.add_half(half)
        halves[half.queue_offset] = half
    if not halves:
        return FoundTransactions([], [], [], set())
    was_checked = any(map(checks_of, halves.values()))
    op_begin = max(op_begin - _MAX_MISSED_OPS * was_checked, op_queue.min_offset)
    torn: dict[bytes, int] = {}  # physical offset of an operation message by transaction
    for operation in messages_from(store, op_queue, op_begin):
        for queue_offset in settled_offsets(operation):
            named = halves.get(queue_offset) or half_at(store, half_queue, queue_offset)
            if named is not None and is_torn(store, operation, named):
                torn[transaction_key(named)] = operation.physical_offset
            elif named is not None:
                replay.add_operation(named, operation)
    undecided = [halves[queue_offset] for queue_offset in replay.undecided()]
    is_crashed = store.recovery is not None and not store.recovery.clean
    queues = {queue for half in undecided if is_crashed and (queue := _queue_of(store, half)) is not None}
    return FoundTransactions(
        undecided,
        [half for half in undecided if half.physical_offset < torn.get(transaction_key(half), 0)],
        list(_committed(store, undecided, queues)),
        {(queue.topic, queue.queue_id) for queue in queues},
    )


def _queue_of(store: MessageStore, half: MessageExt) -> ConsumeQueue | None:
    """Return the queue that a half message is for; ``None``, and a log line, if it names none."""
    try:
        return real_queue(store, half.encoded_properties)
    except (IllegalNameError, MessageIllegalError) as exc:
        LOGGER.error("half message cannot be committed queue_offset=%d: %s", half.queue_offset, exc)
        return None


def _committed(
    store: MessageStore, undecided: Iterable[MessageExt], queues: Iterable[ConsumeQueue]
) -> Iterator[tuple[MessageExt, int]]:
    """Yield ``FoundTransactions.committed``, from the committed messages near the ends of ``queues``.

    A message in front of the half message is of another transaction, whose half messages a power cut has removed.
    """
    last_halves = {transaction_key(half): half for half in undecided}
    for queue in queues:
        for message in messages_from(store, queue, max(queue.max_offset - _MAX_TAIL_UNITS, queue.min_offset)):
            if message.sys_flag & TRANSACTION_MASK == _COMMIT and (half := half_of(store, message)) is not None:
                last = last_halves.get(key := transaction_key(half))
                if last is not None and last.physical_offset < message.physical_offset:
                    del last_halves[key]
                    yield half, last.queue_offset


def messages_from(store: MessageStore, queue: ConsumeQueue, begin: int) -> Iterator[MessageExt]:
    """Yield the messages of a queue from an offset on; unreadable ones are skipped."""
    while begin < queue.max_offset and (units := queue.units_from(begin, 1024)) is not None:
        for physical_offset, size, _ in UNIT.iter_unpack(units):
            message = message_at(store, physical_offset, size)
            if message is not None:
                yield message
        begin += len(units) // UNIT_SIZE


def half_at(store: MessageStore, half_queue: ConsumeQueue, queue_offset: int) -> MessageExt | None:
    """Return the half message at a queue offset, ``None`` if it is deleted or damaged."""
    unit = half_queue.unit(queue_offset) if queue_offset >= half_queue.min_offset else None
    return None if unit is None or unit.is_lost else message_at(store, unit.physical_offset, unit.size)


def message_at(store: MessageStore, physical_offset: int, size: int | None = None) -> MessageExt | None:
    """Return the message at a physical offset, ``None`` if it is deleted or damaged."""
    record = store.commit_log.look_message(physical_offset, size)
    try:
        return None if record is None else decode_record(record)
    except ProtocolError as exc:
        LOGGER.error("message of a transaction is damaged physical_offset=%d: %s", physical_offset, exc)
        return None


def half_of(store: MessageStore, message: MessageExt) -> MessageExt | None:
    """Return the half message of a committed message, or itself as one if a power cut has left only that."""
    half = message_at(store, message.prepared_transaction_offset)
    if half is not None and half.topic == HALF_TOPIC:
        return half
    return message if has_own_key(message) else None


def is_torn(store: MessageStore, operation: MessageExt, half: MessageExt) -> bool:
    """Whether an operation message has survived a crash without the copy of the half message in front of it.

    Both are of one append and so of one file, but a power cut may leave its end and not its beginning.  This looks also
    at what the start of the store did not walk over: the start before may have ended before it copied the half message.
    """
    recovery = store.recovery
    end = operation.physical_offset
    if recovery is None or recovery.clean or not is_behind_copy(operation):
        return False
    log = store.commit_log
    for queue in filter(None, (store.queue(CHECK_MAX_TOPIC, 0), _queue_of(store, half))):
        begin = record_before(queue, log, end)
        if end < store.deleted.end_of(queue.topic) or (
            begin >= 0 and begin + log.check(begin, check_crc=False).size == end
        ):
            return False
    return True
