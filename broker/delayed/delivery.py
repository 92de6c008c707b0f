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
from triomq.broker.topics import HALF_TOPIC
from triomq.protocol.errors import IllegalNameError, MessageIllegalError, ProtocolError, StoreError
from triomq.protocol.record.properties import PropertyName, get_property, set_property
from triomq.protocol.record.record import tags_code_of
from triomq.protocol.record.record_copy import RecordSource, split_record
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.delay_levels import SCHEDULE_TOPIC
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.record_copies import CopyReader, RecordCopy
from triomq.storage.timer_times import TIMER_TOPIC

LOGGER: Final = logging.getLogger("triomq.broker.delayed.delivery")

RETRY_MS: Final = 100
"""How long to wait after the store has refused messages."""

UNREADABLE_MS: Final = 1000
"""How long to wait after messages could not be read."""

_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = PropertyName.REAL_QUEUE_ID.encode()
_NEVER_REAL: Final = frozenset({"", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
_MAX_DIGITS: Final = 11
_LENGTH_BYTES: Final = 2  # before properties
_queue_of = itemgetter(0)


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
        self._reader = CopyReader(self._look_copy)
        self._is_refused = False

    def look(self, physical_offset: int, size: int) -> RecordSource | None:
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

    def copies(self, units: Iterable[tuple[int, int, int]]) -> list[RecordCopy | None]:
        """Return what stores each unit's message in its real queue.

        ``None``, and a line in the log, stand for a message that is gone, damaged or can have no such queue.
        """
        return self._reader.read(self._store.commit_log, units)

    def _look_copy(self, physical_offset: int, size: int) -> RecordCopy | None:
        source = self.look(physical_offset, size)
        if source is None:
            return None
        properties = source[-1][_LENGTH_BYTES:]
        try:
            queue = self._real_queue(properties)
        except (IllegalNameError, MessageIllegalError) as exc:
            LOGGER.error("delayed message dropped: %s", exc)
            return None
        return queue, tags_code_of(properties), *source

    def _real_queue(self, properties: bytes) -> ConsumeQueue:
        topic = (get_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        queue_id = get_property(properties, _REAL_QUEUE_ID) or b""
        if topic in _NEVER_REAL or not queue_id.isdigit():
            raise MessageIllegalError(f"its real place is queue {queue_id!r} of topic {topic!r}")
        return self._store.queue(topic, int(queue_id[:_MAX_DIGITS]))

    def store(self, copies: Sequence[RecordCopy | None]) -> int:
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

    def _store_all(self, copies: Sequence[RecordCopy]) -> int:
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
        counts: Counter[str] = Counter()
        for queue, count in Counter(map(_queue_of, copies)).items():
            counts[queue.topic] += count
        self._statistics.put_run(counts, sum([head[-1] for _, _, head, _, _ in copies]))
        self.delivered += len(copies)
