"""Stores messages that waited in a system queue again, in the queues they were sent to.

Rules: several messages go into the store with one call, all of it or none, so that a message is either delivered or
tried again; one that never can be delivered is left behind: it must not keep those behind it for ever.

Source: behaviour.md A.5, store.md 8.3, 8.4.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from triomq.broker.statistics import BrokerStatistics
from triomq.broker.topics import HALF_TOPIC
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError, StoreError
from triomq.protocol.properties import PropertyName, get_property, set_property
from triomq.protocol.record import tags_code_of
from triomq.protocol.record_copy import RecordSource, split_record
from triomq.storage.consume_queue import ConsumeQueue
from triomq.storage.delay_levels import SCHEDULE_TOPIC
from triomq.storage.message_store import MessageStore
from triomq.storage.store_writer import RecordCopy
from triomq.storage.timer_times import TIMER_TOPIC

LOGGER: Final = logging.getLogger("triomq.broker.delivery")

RETRY_MS: Final = 100
"""How long to wait after the store has refused messages."""

_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = PropertyName.REAL_QUEUE_ID.encode()
_REAL_PLACE: Final = b"\x02" + _REAL_TOPIC + b"\x01"
_QUEUE_ID_BEHIND: Final = b"\x02" + _REAL_QUEUE_ID + b"\x01"
_NEVER_REAL: Final = frozenset({"", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
_MAX_DIGITS: Final = 11
_MAX_QUEUES: Final = 4096


def with_real_place(properties: bytes, topic: str, queue_id: int) -> bytes:
    """Return the properties of a message that waits, for queue ``queue_id`` of ``topic``."""
    properties = set_property(properties, _REAL_TOPIC, topic.encode())
    return set_property(properties, _REAL_QUEUE_ID, b"%d" % queue_id)


class Delivery:
    """The way from a system queue to the real ones.

    Attributes:
        delivered: messages delivered since the start.
    """

    def __init__(self, store: MessageStore, statistics: BrokerStatistics) -> None:
        self.delivered = 0
        self._store = store
        self._statistics = statistics
        self._queues: dict[bytes, ConsumeQueue] = {}  # by the end of properties that names them
        self._is_refused = False

    def look(self, physical_offset: int, size: int) -> tuple[RecordSource, bytes] | None:
        """Return the message that a unit points to, as ``split_record`` does.

        ``None``, and a line in the log, if it is gone or damaged.
        """
        record = self._store.commit_log.view(physical_offset, size)
        if record is None:
            LOGGER.warning("delayed message is gone physical_offset=%d size=%d", physical_offset, size)
            return None
        try:
            return split_record(record)
        except ProtocolError as exc:
            LOGGER.error("delayed message dropped physical_offset=%d: %s", physical_offset, exc)
            return None

    def copy(self, source: RecordSource, properties: bytes, added: bytes = b"") -> RecordCopy | None:
        """Return what stores a message in its real queue, with ``added`` behind its properties.

        ``None``, and a line in the log, if it can have no such queue.
        """
        try:
            # The real place is the end of the properties if this broker let the message wait: few different ones.
            end = properties[properties.rfind(_REAL_PLACE) :]
            queue = self._queues.get(end) or self._real_queue(properties, end)
        except (IllegalNameError, MessageIllegalError) as exc:
            LOGGER.error("delayed message dropped: %s", exc)
            return None
        return queue, source, properties + added if added else properties, tags_code_of(properties)

    def _real_queue(self, properties: bytes, end: bytes) -> ConsumeQueue:
        topic = (get_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        queue_id = get_property(properties, _REAL_QUEUE_ID) or b""
        if topic in _NEVER_REAL or not queue_id.isdigit():
            raise MessageIllegalError(f"its real place is queue {queue_id!r} of topic {topic!r}")
        queue = self._store.queue(topic, int(queue_id[:_MAX_DIGITS]))
        if end.startswith(_REAL_PLACE) and _QUEUE_ID_BEHIND in end and len(self._queues) < _MAX_QUEUES:
            self._queues[end] = queue
        return queue

    def store(self, copies: Sequence[RecordCopy]) -> int:
        """Store messages in their queues.

        Returns:
            How many are done with, from the first on; fewer than all: the store took no more, try again later.
        """
        done = 0
        while done < len(copies):
            rest = copies[done:]
            try:
                stored = self._store.put_copies(rest)
            except MessageIllegalError as exc:
                LOGGER.error("delayed message for topic %s dropped: %s", rest[0][0].topic, exc)
                done += 1
                continue
            except StoreError as exc:
                if not self._is_refused:
                    LOGGER.error("delayed messages are not delivered for now: %s", exc)
                self._is_refused = True
                return done
            done += stored
            self._count(rest[:stored])
        self._is_refused = False
        return done

    def _count(self, copies: Sequence[RecordCopy]) -> None:
        counts = Counter([copy[0].topic for copy in copies])
        self._statistics.put_run(counts, sum(copy[1][-1] for copy in copies))
        self.delivered += len(copies)
