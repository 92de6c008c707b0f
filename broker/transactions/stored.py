"""What the store holds of transactions: reads messages, and finds appends that a power cut has torn.

Source: store.md 5.8, 5.11.
"""

import logging
from collections.abc import Iterator
from typing import Final

from triomq.broker.delayed.delivery import real_queue
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC
from triomq.protocol.record.consume_queue_unit import UNIT, UNIT_SIZE
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.record import decode_record
from triomq.protocol.transactions import has_own_key, is_behind_copy
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import record_before
from triomq.storage.message_store import MessageStore

LOGGER: Final = logging.getLogger("triomq.broker.transactions.stored")


def messages_from(store: MessageStore, queue: ConsumeQueue, begin: int) -> Iterator[MessageExt]:
    """Read the messages of a queue from an offset on; what cannot be read is skipped."""
    while begin < queue.max_offset and (units := queue.units_from(begin, 1024)) is not None:
        for physical_offset, size, _ in UNIT.iter_unpack(units):
            message = message_at(store, physical_offset, size)
            if message is not None:
                yield message
        begin += len(units) // UNIT_SIZE


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

    Both are of one append and so of one file, but a power cut may leave its end and not its beginning.  What the start
    of the store did not walk over was on the disk.
    """
    recovery = store.recovery
    end = operation.physical_offset
    if recovery is None or recovery.clean or end < recovery.scan_start or not is_behind_copy(operation):
        return False
    queues = [store.queue(CHECK_MAX_TOPIC, 0)]
    try:
        queues.append(real_queue(store, half.encoded_properties))
    except (IllegalNameError, MessageIllegalError):
        LOGGER.error("half message cannot be committed queue_offset=%d", half.queue_offset)
    log = store.commit_log
    for queue in queues:
        begin = record_before(queue, log, end)
        if end < store.deleted.end_of(queue.topic) or (
            begin >= 0 and begin + log.check(begin, check_crc=False).size == end
        ):
            return False
    return True
