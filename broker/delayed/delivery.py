"""Delivery of messages that waited in a system queue: they are stored again in the queues they were sent to.

Rules: one append stores several messages, all or none, so that each is either delivered or tried again; a message that
can never be delivered is dropped, because it must not block those after it for ever.

Source: behaviour.md A.5, store.md 8.3, 8.4.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError, StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, get_property, set_property
from triomq.protocol.record.record import decode_record, tags_code_of
from triomq.storage.append import Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.record_copies import Copies, CopyReader

LOGGER: Final = logging.getLogger("triomq.broker.delayed.delivery")

RETRY_MS: Final = 100
"""How long to wait after the store has refused messages."""

UNREADABLE_MS: Final = 1000
"""How long to wait after messages could not be read."""

Unit: TypeAlias = tuple[int, int, int]
"""Physical offset, size and tags code of a waiting message, as a consume queue holds them."""

REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
REAL_QUEUE_ID: Final = PropertyName.REAL_QUEUE_ID.encode()
_NEVER_REAL: Final = frozenset({"", HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
_MAX_DIGITS: Final = 11


def with_real_place(properties: bytes, queue: ConsumeQueue) -> bytes:
    """Return the properties of a waiting message, with the queue that it is for."""
    properties = set_property(properties, REAL_TOPIC, queue.topic.encode())
    return set_property(properties, REAL_QUEUE_ID, b"%d" % queue.queue_id)


def real_queue(store: MessageStore, properties: bytes) -> ConsumeQueue:
    """Return the queue that a waiting message is for.

    Raises:
        IllegalNameError, MessageIllegalError: the properties do not name one.
    """
    topic = (get_property(properties, REAL_TOPIC) or b"").decode("utf-8", "replace")
    queue_id = get_property(properties, REAL_QUEUE_ID) or b""
    if topic in _NEVER_REAL or not queue_id.isdigit():
        raise MessageIllegalError(f"its real queue is {queue_id!r} of topic {topic!r}")
    return store.queue(topic, int(queue_id[:_MAX_DIGITS]))


def decode(store: MessageStore, physical_offset: int, size: int) -> MessageExt | None:
    """Return the waiting message that a unit points to; ``None``, and a log line, if it is deleted or damaged."""
    record = store.commit_log.view(physical_offset, size)
    if record is None:
        LOGGER.warning("delayed message is missing physical_offset=%d size=%d", physical_offset, size)
        return None
    try:
        message = decode_record(record)
    except ProtocolError as exc:
        LOGGER.error("delayed message dropped physical_offset=%d: %s", physical_offset, exc)
        return None
    if message.store_size != size:
        LOGGER.error(
            "delayed message dropped physical_offset=%d: %d bytes, its unit says %d",
            physical_offset, message.store_size, size,
        )  # fmt: skip
        return None
    return message


def _find(store: MessageStore, physical_offset: int, size: int) -> tuple[MessageExt, ConsumeQueue, int] | None:
    """Return a message, its real queue and its tags code; ``None``, and a log line, if it cannot be delivered."""
    message = decode(store, physical_offset, size)
    if message is None:
        return None
    properties = message.encoded_properties
    try:
        queue = real_queue(store, properties)
    except (IllegalNameError, MessageIllegalError) as exc:
        LOGGER.error("delayed message dropped: %s", exc)
        return None
    return message, queue, tags_code_of(properties)


class Delivery:
    """Moves messages from a system queue to the real ones.

    Attributes:
        delivered: messages delivered since the start.
        store, statistics: those of the broker.
    """

    def __init__(self, store: MessageStore, statistics: BrokerStatistics) -> None:
        self.delivered = 0
        self.store: Final = store
        self.statistics: Final = statistics
        self._reader = CopyReader(partial(_find, store))
        self._log = EventLog(LOGGER, "delayed messages are not delivered for now: %s")

    def copies(self, units: Sequence[Unit]) -> Copies:
        """Return an entry that stores each unit's message in its real queue, and when each began to wait, ms.

        The entry is ``None``, and the reason is logged, for a message that cannot be delivered.  Unlike in
        RocketMQ, one whose topic was deleted since is not: it would bring the topic back, or get into a new one.
        """
        entries, times = self._reader.read(self.store.commit_log, units)
        deleted = self.store.deleted
        if deleted:
            for place, (entry, unit) in enumerate(zip(entries, units, strict=True)):
                if entry is not None and unit[0] < deleted.end_of(topic := entry.queue.topic):
                    LOGGER.warning("delayed message dropped topic=%s: the topic was deleted", topic)
                    entries[place] = None
        return entries, times

    def deliver(self, copies: Sequence[Entry | None]) -> int:
        """Store messages in their queues; ``None`` is skipped.

        A topic whose deletion has failed halfway accepts no messages: those for it are dropped.

        Returns:
            How many are done with, from the first on; fewer than all: the store refuses more, try again later.
        """
        good = [(place, copy) for place, copy in enumerate(copies) if copy is not None and copy.queue.refusal is None]
        done = self._append_all([copy for _, copy in good])
        passed = good[done][0] if done < len(good) else len(copies)
        for copy in copies[:passed]:
            if copy is not None and copy.queue.refusal is not None:
                LOGGER.error("delayed message dropped topic=%s: the topic is being deleted", copy.queue.topic)
        return passed

    def _append_all(self, entries: Sequence[Entry]) -> int:
        """Store entries with as few appends as possible; return how many are done with, from the first on."""
        try:
            self.store.append(entries, are_copies=True)
        except MessageIllegalError as exc:
            if len(entries) > 1:  # too many for one append, or one of them fits nowhere
                half = len(entries) // 2
                done = self._append_all(entries[:half])
                return done if done < half else done + self._append_all(entries[half:])
            LOGGER.error("delayed message dropped topic=%s: %s", entries[0].queue.topic, exc)
        except StoreError as exc:
            self._log.occurred(exc)
            return 0
        else:
            sizes_bytes: defaultdict[str, list[int]] = defaultdict(list)
            for each in entries:
                sizes_bytes[each.queue.topic].append(len(each.body))
            self.statistics.put_run(sizes_bytes)
            self.delivered += len(entries)
        self._log.ended()
        return len(entries)
