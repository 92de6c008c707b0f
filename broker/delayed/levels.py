"""Messages with a delay level, and the task that delivers all delayed messages.

Each level has a queue in which messages wait until they are stored again.  All messages of a level wait equally long,
so only the first one of each level is checked, and nothing is kept for the others.  Delivery is bounded per call, so
that a backlog delays no request.  A delivered record keeps its properties, DELAY included: only sends and returned
messages are delayed because of it.

One task delivers the messages of all levels and the timed ones.  It sleeps until the first one is due or an earlier one
comes.

Source: behaviour.md A.5, store.md 8; ScheduleMessageService.java.
"""

import logging
from collections.abc import Callable, ItemsView
from dataclasses import dataclass
from typing import Any, Final

import trio

from triomq.broker.delayed.delivery import RETRY_MS, UNREADABLE_MS, Delivery, Unit, with_real_place
from triomq.broker.delayed.timer import Timer
from triomq.broker.saved_table import SavedTable
from triomq.broker.services.flush import FlushRuns, TableSaving
from triomq.broker.services.group_commit import GroupCommit
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Signal
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.properties import set_property
from triomq.storage.append import DueTime, Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.files.json_table import JsonTable
from triomq.storage.reading.cold_read import Work

LOGGER: Final = logging.getLogger("triomq.broker.delayed.levels")

_DELAY: Final = b"DELAY"
_MAX_QUEUE_OFFSET: Final = 2**63 - 1
_MAX_MESSAGES: Final = 256  # of one level in one call
_MAX_BYTES: Final = 1024**2  # likewise, of their records
_MIN_DELIVERY_TIME: Final = 2**40  # 2004: above every hash of tags, below the store time of every message
_MAX_DELIVERED: Final = 4096  # in one turn of the loop, some 10 ms: a send that comes meanwhile waits so long
_MAX_CALLS: Final = 16  # likewise, if messages are long: each call copies little more than a mebibyte
_MIN_SLEEP_S: Final = 0.01  # messages that are due within it are delivered together
_MAX_SLEEP_S: Final = 1.0  # the wall clock may be moved meanwhile
_iter_units = UNIT.iter_unpack


class DelayOffsetTable(SavedTable):
    """Delay level, from 1, to the queue offset of its next message; only levels that have delivered messages.

    Source: store.md 6.6.
    """

    _FIELD = "offsetTable"

    def __init__(self, table: JsonTable) -> None:
        super().__init__(table)
        self._offsets: dict[int, int] = {}

    def _take(self, saved: Any) -> None:
        offsets = self._rows(saved, lambda offset: min(max(int(offset), 0), _MAX_QUEUE_OFFSET))
        self._offsets = {int(level): offset for level, offset in offsets.items()}

    def restrict(self, max_offset_of: Callable[[str, int], int]) -> None:
        """Lower offsets beyond the end of their level's queue, as ``ConsumerOffsetTable.restrict`` does."""
        for level, offset in self._offsets.items():
            if offset > (most := max_offset_of(SCHEDULE_TOPIC, level - 1)):
                LOGGER.warning("delay offset lowered level=%d stored=%d end=%d", level, offset, most)
                self._offsets[level] = most
                self.is_dirty = True

    def to_json(self) -> dict[str, object]:
        """Return the table as ``delayOffset.json`` and response 45 hold it."""
        return {self._FIELD: dict(self._offsets)}

    def get(self, level: int) -> int:
        """Return the queue offset of the level's next message."""
        return self._offsets.get(level, 0)

    def items(self) -> ItemsView[int, int]:
        """Return the levels that have delivered messages, each with the queue offset of its next one."""
        return self._offsets.items()

    def set(self, level: int, queue_offset: int) -> None:
        """Record that everything before ``queue_offset`` is delivered."""
        if self._offsets.get(level, 0) != queue_offset:
            self._offsets[level] = queue_offset
            self.is_dirty = True


@dataclass(slots=True, eq=False)
class _Level:
    number: int  # from 1
    delay_ms: int
    queue: ConsumeQueue
    due_time: DueTime
    refusal: StoreError | None = None  # why its messages cannot be read at the moment
    held_to: int = 0  # messages before this queue offset that waited when the clock was found set back,
    held_until_ms: int = 0  # and when they are due


class Schedule:
    """Stores messages with a delay level and delivers those that are due.

    A level whose messages cannot be read does not delay the others.

    Attributes:
        offsets: how far each level is delivered.
    """

    def __init__(self, delivery: Delivery, table: JsonTable, arrived: Signal) -> None:
        """``arrived`` is set when a level without messages gets one."""
        self.offsets: Final = DelayOffsetTable(table)
        self._arrived = arrived
        self._store = delivery.store
        self._delivery = delivery
        self._levels: list[_Level] = []

    def load(self) -> None:
        """Read the saved offsets and restrict them to the range of their queues.

        Raises:
            StoreLayoutError: the table and its previous generation cannot be read, or hold no offsets.
        """
        store = self._store
        self.offsets.load()
        self.offsets.restrict(store.reader.max_offset_in_queue)
        levels = store.config.delay_levels
        self._levels = [
            _Level(number, delay_ms, store.queue(SCHEDULE_TOPIC, number - 1), levels.due_time(number))
            for number, delay_ms in enumerate(levels.delays_ms, 1)
        ]
        for level in self._levels:
            self.offsets.set(level.number, self._next_offset(level))

    def _next_offset(self, level: _Level) -> int:
        """Return the offset to deliver next; the queue may have lost messages at either end."""
        return min(max(self.offsets.get(level.number), level.queue.min_offset), level.queue.max_offset)

    def put(self, level: int, message: Entry) -> tuple[int, int]:
        """Store a message that appears in its queue after the delay of ``level``.

        Args:
            level: at least 1; one above the highest is replaced by the highest, also in the property.
            message: with the queue that it is for.

        Returns:
            Physical offset, and queue offset in the level's queue of the schedule topic.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        waits_in = self._levels[min(level, len(self._levels)) - 1]
        properties = message.properties
        if waits_in.number != level:
            properties = set_property(properties, _DELAY, b"%d" % waits_in.number)
        properties = with_real_place(properties, message.queue)
        waiting = message._replace(queue=waits_in.queue, properties=properties, tags_code=waits_in.due_time)
        (place,) = self._store.append([waiting])
        self._delivery.statistics.put(SCHEDULE_TOPIC, 1, len(message.body))
        if place[1] == self.offsets.get(waits_in.number):
            self._arrived.set()
        return place

    @property
    def refusal(self) -> StoreError | None:
        """Why a level cannot be read at the moment, if there is one."""
        return next((level.refusal for level in self._levels if level.refusal is not None), None)

    def prepare(self, now_ms: int, *, is_retry: bool = True) -> Work[None]:
        """Read the messages that ``deliver`` is about to deliver, if they are on disk only.

        A level whose messages cannot be read (``StoreError``) is skipped, also by ``deliver``, until ``is_retry``.
        """
        cold = self._store.cold_reads
        for level in self._levels:
            if level.refusal is None or is_retry:
                level.refusal = None
                queue, queue_offset = level.queue, self._next_offset(level)
                try:
                    if queue_offset < queue.max_offset:
                        yield from cold.load_units(queue, queue_offset)
                        unit = queue.unit(queue_offset)
                        if unit is not None and not now_ms < unit.tags_code <= now_ms + level.delay_ms:
                            queue_offsets = range(queue_offset, min(queue_offset + _MAX_MESSAGES, queue.max_offset))
                            yield from cold.load_messages(queue, queue_offsets, _MAX_BYTES)
                except StoreError as exc:
                    level.refusal = exc

    def deliver(self, now_ms: int) -> int | None:
        """Deliver messages that are due at ``now_ms``, a bounded number of each level.

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
        units = queue.units_from(queue_offset, _MAX_MESSAGES)
        if units is None:
            # Messages that wait for the disk are nearly always flushed before they are due.
            return None if queue_offset == queue.next_offset else now_ms + RETRY_MS
        due, next_time = self._due_units(level, queue_offset, units, now_ms)
        copies, _ = self._delivery.copies(due)
        done = self._delivery.deliver(copies)
        if done < len(due):
            next_time = now_ms + RETRY_MS
        queue_offset += done
        self.offsets.set(level.number, queue_offset)
        return None if queue_offset == queue.next_offset else next_time

    def _due_units(self, level: _Level, queue_offset: int, units: memoryview, now_ms: int) -> tuple[list[Unit], int]:
        """Return the units to deliver in one call, and the time of the next call, ms."""
        due: list[Unit] = []
        size_bytes = 0
        for unit in _iter_units(units):
            _, size, time_ms = unit
            if not _MIN_DELIVERY_TIME <= time_ms <= now_ms:
                time_ms = self._due(level, queue_offset + len(due), unit, now_ms)
                if time_ms > now_ms:
                    return due, time_ms
            if size_bytes > _MAX_BYTES:
                break
            size_bytes += size
            due.append(unit)
        return due, now_ms

    def _due(self, level: _Level, queue_offset: int, unit: Unit, now_ms: int) -> int:
        """Return when the message of a unit is due, ms.

        One that would wait longer than its level does, because the clock was set back since it came, waits from now
        on, and so do all that have come before now: none is early.  RocketMQ delivers them at once.
        """
        physical_offset, _, due = unit
        if due < _MIN_DELIVERY_TIME:  # a hash of tags: RocketMQ's recovery writes such units
            due = self._store.commit_log.store_time(physical_offset) + level.delay_ms
        latest = now_ms + level.delay_ms
        if due <= latest:
            return due
        if queue_offset >= level.held_to or level.held_until_ms > latest:
            level.held_to, level.held_until_ms = level.queue.next_offset, latest
        return level.held_until_ms


@dataclass(eq=False)
class ScheduledDelivery(BrokerPart):
    """The task of ``Schedule`` and ``Timer``; ``saving`` writes their progress."""

    schedule: Schedule
    timer: Timer
    delivery: Delivery
    arrived: Signal
    group_commit: GroupCommit | None

    def __post_init__(self) -> None:
        flushes = FlushRuns(self.delivery.store, trio.to_thread.run_sync, self.delivery.statistics.flushes)
        self.saving = TableSaving((self.schedule.offsets, self.timer.progress), self.context.worker, Signal(), flushes)
        self._reading_log = EventLog(LOGGER, "delayed messages cannot be read for now: %s")
        self._read_again_at = 0.0  # what could not be read

    async def run(self, save_interval_s: float) -> None:
        """Deliver until cancelled; save the progress at intervals."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.saving.run, save_interval_s)
            while True:
                sleep_s = await self._turn()
                if sleep_s == 0:
                    await trio.lowlevel.checkpoint()
                elif sleep_s is None:
                    await self.arrived.wait()
                else:
                    with trio.move_on_after(min(max(sleep_s, _MIN_SLEEP_S), _MAX_SLEEP_S)):
                        await self.arrived.wait()

    async def _turn(self) -> float | None:
        """Deliver a bounded number of due messages; return how long nothing is due, s; ``None``: until one comes."""
        self.arrived.clear()
        delivered_before = self.delivery.delivered
        delivered = 0
        seconds: float | None = 0.0
        for _ in range(_MAX_CALLS):
            await self._load()
            now_ms = self.clock_ms()
            times = self.schedule.deliver(now_ms), self.timer.deliver(now_ms)
            next_ms = min((time for time in times if time is not None), default=None)
            seconds = None if next_ms is None else max(next_ms - now_ms, 0) / 1000
            delivered = self.delivery.delivered - delivered_before
            if seconds != 0 or delivered >= _MAX_DELIVERED:
                break
        if delivered:
            if self.group_commit is not None:
                self.group_commit.wake()
            self.context.worker.end_step()
        return seconds

    async def _load(self) -> None:
        """Read due messages that are on disk only, in a worker thread; unreadable ones are not delivered."""
        now_ms = self.clock_ms()
        is_retry = trio.current_time() >= self._read_again_at
        for source in (self.schedule, self.timer):
            await self.context.worker.run(source.prepare(now_ms, is_retry=is_retry), urgent=True)
        refusal = self.schedule.refusal or self.timer.refusal
        if refusal is None:
            self._reading_log.ended()
            return
        if is_retry:
            self._read_again_at = trio.current_time() + UNREADABLE_MS / 1000
        self._reading_log.occurred(refusal)
