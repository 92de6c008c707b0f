"""Stores messages that waited in a system queue again, in the queues they were sent to.

Rules: several messages go into the store with one call, all of it or none, so that a message is either delivered or
tried again; one that never can be delivered is left behind: it must not keep those behind it for ever.

Source: behaviour.md A.5, store.md 8.3, 8.4.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError, StoreError
from triomq.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
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

_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = PropertyName.REAL_QUEUE_ID.encode()
_NEVER_REAL: Final = frozenset({"", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
_MAX_DIGITS: Final = 11
_queue_of = itemgetter(0)


def with_real_place(properties: bytes, queue: ConsumeQueue) -> bytes:
    """Return the properties of a message that waits, for ``queue``."""
    properties = set_property(properties, _REAL_TOPIC, queue.topic.encode())
    return set_property(properties, _REAL_QUEUE_ID, b"%d" % queue.queue_id)


class Delivery:
    """The way from a system queue to the real ones.

    Attributes:
        delivered: messages delivered since the start.
    """

    def __init__(self, store: MessageStore, statistics: BrokerStatistics) -> None:
        self.delivered = 0
        self._store = store
        self._statistics = statistics
        self._reader = CopyReader(self._find_copy)
        self._is_refused = False

    def look(self, physical_offset: int, size: int) -> MessageExt | None:
        """Return the message that a unit points to; ``None``, and a line in the log, if it is gone or damaged."""
        record = self._store.commit_log.view(physical_offset, size)
        if record is None:
            LOGGER.warning("delayed message is gone physical_offset=%d size=%d", physical_offset, size)
            return None
        try:
            message = decode_record(record)
        except ProtocolError as exc:
            LOGGER.error("delayed message dropped physical_offset=%d: %s", physical_offset, exc)
            return None
        if message.store_size != size:
            LOGGER.error(
                "delayed message dropped physical_offset=%d: %d bytes, its unit says %d",
                physical_offset,
                message.store_size,
                size,
            )
            return None
        return message

    def copies(self, units: Iterable[tuple[int, int, int]]) -> Copies:
        """Return what stores each unit's message in its real queue, and when each was stored as waiting, ms.

        ``None``, and a line in the log, stand for a message that is gone, damaged or can have no such queue.
        """
        return self._reader.read(self._store.commit_log, units)

    def _find_copy(self, physical_offset: int, size: int) -> tuple[MessageExt, ConsumeQueue, int] | None:
        message = self.look(physical_offset, size)
        if message is None:
            return None
        properties = message.encoded_properties
        try:
            queue = self._real_queue(properties)
        except (IllegalNameError, MessageIllegalError) as exc:
            LOGGER.error("delayed message dropped: %s", exc)
            return None
        return message, queue, tags_code_of(properties)

    def _real_queue(self, properties: bytes) -> ConsumeQueue:
        topic = (get_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        queue_id = get_property(properties, _REAL_QUEUE_ID) or b""
        if topic in _NEVER_REAL or not queue_id.isdigit():
            raise MessageIllegalError(f"its real place is queue {queue_id!r} of topic {topic!r}")
        return self._store.queue(topic, int(queue_id[:_MAX_DIGITS]))

    def store(self, copies: Sequence[Entry | None]) -> int:
        """Store messages in their queues; ``None`` is nothing to store.

        A topic whose deletion has failed halfway takes no messages: those for it are dropped, and hold up no other.

        Returns:
            How many are done with, from the first on; fewer than all: the store took no more, try again later.
        """
        good = [copy for copy in copies if copy is not None and copy[0].refusal is None]
        done = self._store_all(good)
        if len(good) == len(copies):
            return done
        places = [place for place, copy in enumerate(copies) if copy is not None and copy[0].refusal is None]
        passed = places[done] if done < len(good) else len(copies)
        for copy in copies[:passed]:
            if copy is not None and copy[0].refusal is not None:
                LOGGER.error("delayed message for topic %s dropped: the topic is being deleted", copy[0].topic)
        return passed

    def _store_all(self, entries: Sequence[Entry]) -> int:
        """Store entries with as few appends as possible; return how many are done with, from the first on."""
        try:
            self._store.append(entries, are_copies=True)
        except MessageIllegalError as exc:
            if len(entries) > 1:  # too many for one append, or one of them fits nowhere
                half = len(entries) // 2
                done = self._store_all(entries[:half])
                return done if done < half else done + self._store_all(entries[half:])
            LOGGER.error("delayed message for topic %s dropped: %s", entries[0][0].topic, exc)
        except StoreError as exc:
            if not self._is_refused:
                LOGGER.error("delayed messages are not delivered for now: %s", exc)
            self._is_refused = True
            return 0
        else:
            self._count(entries)
        self._is_refused = False
        return len(entries)

    def _count(self, entries: Sequence[Entry]) -> None:
        counts: Counter[str] = Counter()
        for queue, count in Counter(map(_queue_of, entries)).items():
            counts[queue.topic] += count
        self._statistics.put_run(counts, sum([len(each[1]) for each in entries]))
        self.delivered += len(entries)
