"""Delayed messages: they wait in one queue for each delay level, and are stored again when they are due.

Rules: all messages of a level wait equally long, so only the first one of each level has to be looked at; nothing is
kept for the others.  Delivery is bounded per call, so that a backlog holds nobody up.  A delivered record keeps its
properties, DELAY among them: only who stores a message for somebody else decides that it is delayed.

Source: behaviour.md A.5, store.md 8; ScheduleMessageService.java.
"""

from dataclasses import dataclass
from typing import Final

import trio

from triomq.broker.delayed.delay_offsets import DelayOffsetTable
from triomq.broker.delayed.delivery import RETRY_MS, UNREADABLE_MS, Delivery, with_real_place
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.errors import StoreError
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.properties import set_property
from triomq.storage.append import DueTime, Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import Lookup

_DELAY: Final = b"DELAY"
_MOST_MESSAGES: Final = 256  # of one level in one call
_MOST_BYTES: Final = 1024**2  # likewise, of their records
_LEAST_DELIVERY_TIME: Final = 2**40  # 2004: above every hash of tags, below every time a message was stored at
_iter_units = UNIT.iter_unpack


@dataclass(slots=True, eq=False)
class _Level:
    number: int  # from 1
    delay_ms: int
    queue: ConsumeQueue
    due_time: DueTime
    refusal: StoreError | None = None  # why its messages cannot be read for now


class Schedule:
    """Takes delayed messages and delivers those that are due.

    A level whose messages cannot be read holds up no other.

    Attributes:
        offsets: how far each level is delivered.
        arrived: set when a level without messages gets one; who waits for it puts a new one in its place first.
    """

    def __init__(self, store: MessageStore, table: JsonTable, statistics: BrokerStatistics, delivery: Delivery) -> None:
        self.offsets: Final = DelayOffsetTable(table)
        self.arrived = trio.Event()
        self._store = store
        self._statistics = statistics
        self._delivery = delivery
        self._levels: list[_Level] = []

    def load(self) -> None:
        """Read the saved offsets and bring them into the range of their queues.

        Raises:
            StoreLayoutError: the table and its previous generation cannot be read, or hold no offsets.
        """
        store = self._store
        self.offsets.load()
        self.offsets.restrict(store.reader.max_offset_in_queue)  # tells of each
        self._levels = [
            _Level(
                number, delay_ms, store.queue(SCHEDULE_TOPIC, number - 1), store.config.delay_levels.due_time(number)
            )
            for number, delay_ms in enumerate(store.config.delay_levels.delays_ms, 1)
        ]
        for level in self._levels:
            self.offsets.set(level.number, self._next_offset(level))

    def _next_offset(self, level: _Level) -> int:
        """Return the offset to deliver next; the queue may have lost messages at either end."""
        return min(max(self.offsets.get(level.number), level.queue.min_offset), level.queue.max_offset)

    def put(self, level: int, message: Entry) -> tuple[int, int]:
        """Store a message that shall appear in its queue after the delay of ``level``.

        Args:
            level: at least 1; above the highest it is the highest, and the property says so too.
            message: with the queue that it is for.

        Returns:
            Physical offset, and queue offset in the level's queue of the schedule topic.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        waits_in = self._levels[min(level, len(self._levels)) - 1]
        queue, body, properties = message[:3]
        if waits_in.number != level:
            properties = set_property(properties, _DELAY, b"%d" % waits_in.number)
        properties = with_real_place(properties, queue)
        (place,) = self._store.append([(waits_in.queue, body, properties, waits_in.due_time, *message[4:])])
        self._statistics.put(SCHEDULE_TOPIC, 1, len(body))
        if place[1] == self.offsets.get(waits_in.number):
            self.wake()
        return place

    def wake(self) -> None:
        """Let who waits for :attr:`arrived` look again."""
        self.arrived.set()

    @property
    def refusal(self) -> StoreError | None:
        """Why a level cannot be read for now, if one cannot."""
        return next((level.refusal for level in self._levels if level.refusal is not None), None)

    def prepare(self, now_ms: int, *, is_retry: bool = True) -> Lookup[None]:
        """Let the messages that ``deliver`` is about to deliver be read, if they are on the disk only.

        Whoever runs it throws into it the ``StoreError`` of what cannot be read.  Levels of which that was so are left
        alone, also by ``deliver``, unless ``is_retry``.
        """
        for level in self._levels:
            if level.refusal is None or is_retry:
                level.refusal = None
                try:
                    yield from self._prepare_level(level, now_ms)
                except StoreError as exc:
                    level.refusal = exc

    def _prepare_level(self, level: _Level, now_ms: int) -> Lookup[None]:
        cold = self._store.cold_reads
        queue, queue_offset = level.queue, self._next_offset(level)
        if queue_offset < queue.max_offset:
            yield from cold.load_units(queue, queue_offset)
            unit = queue.unit(queue_offset)
            if unit is not None and not now_ms < unit.tags_code <= now_ms + level.delay_ms:
                queue_offsets = range(queue_offset, min(queue_offset + _MOST_MESSAGES, queue.max_offset))
                yield from cold.load_messages(queue, queue_offsets, _MOST_BYTES)

    def deliver(self, now_ms: int) -> int | None:
        """Deliver messages that are due at ``now_ms``, of each level a bounded number.

        Returns:
            When to call again, ms: ``now_ms`` if more is due already; ``None`` if nothing waits.
        """
        times = [
            self._deliver_level(level, now_ms) if level.refusal is None else now_ms + UNREADABLE_MS
            for level in self._levels
        ]
        return min((time for time in times if time is not None), default=None)

    def _deliver_level(self, level: _Level, now_ms: int) -> int | None:
        queue = level.queue
        queue_offset = self._next_offset(level)
        self.offsets.set(level.number, queue_offset)
        units = queue.units_from(queue_offset, _MOST_MESSAGES)
        if units is None:
            # What waits for the disk is nearly always there before it is due.
            return None if queue_offset == queue.next_offset else now_ms + RETRY_MS
        due, next_time = self._due_units(level, units, now_ms)
        done = self._delivery.store(self._delivery.copies(due)[0])
        if done < len(due):
            next_time = now_ms + RETRY_MS
        queue_offset += done
        self.offsets.set(level.number, queue_offset)
        return None if queue_offset == queue.next_offset else next_time

    def _due_units(self, level: _Level, units: memoryview, now_ms: int) -> tuple[list[tuple[int, int, int]], int]:
        """Return the units to deliver in one call, and when to make the next one, ms."""
        due: list[tuple[int, int, int]] = []
        size_bytes = 0
        for unit in _iter_units(units):
            physical_offset, size, time_ms = unit
            if not _LEAST_DELIVERY_TIME <= time_ms <= now_ms:
                time_ms = self._due(level, physical_offset, time_ms, now_ms)
                if time_ms > now_ms:
                    return due, time_ms
            if size_bytes > _MOST_BYTES:
                break
            size_bytes += size
            due.append(unit)
        return due, now_ms

    def _due(self, level: _Level, physical_offset: int, tags_code: int, now_ms: int) -> int:
        """Return when the message of a unit is due, ms; now if it should wait longer than its level does."""
        due = tags_code
        if due < _LEAST_DELIVERY_TIME:  # a hash: RocketMQ's recovery leaves such units
            due = self._store.commit_log.store_time(physical_offset) + level.delay_ms
        return due if due <= now_ms + level.delay_ms else now_ms
