"""Timed messages: they wait in one queue, and are stored again at a time of any distance.

The problem
    A million messages may wait, each for a time that its producer chooses.  They must be delivered on time,
    and not be lost by a restart.  RocketMQ 5.x must be able to read the queue.

What was rejected
    - RocketMQ 5.x's timer wheel and its log: two more files with a recovery, and delivery up to a second late.
      RocketMQ 4.9 does not deliver from this queue at all.
    - A flag for each delivered message: a write for each, and a file that grows.

What it is
    Only the consume queue of the timer topic is on the disk; its units hold the time instead of the hash of tags.
    ``TimerIndex`` is built from them at the start.  Messages are delivered in the order of (time, queue offset), so one
    such pair, ``TimerProgress``, says for each message whether it was delivered.

The invariant
    No message may be added before the pair.  After a small step back of the wall clock, a new message is due no earlier
    than the one delivered last.  After a larger step, which the store remembers in its ``ClockSteps``, a new part of
    the queue begins, with a pair for that part alone.

Source: RocketMQ 5.5.0 HookUtils.java, TimerMessageStore.java.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import RETRY_MS, UNREADABLE_MS, Delivery, decode, with_real_place
from triomq.broker.delayed.timer_index import MAX_TIME_MS, Due, Recalls, TimerIndex, TimerProgress
from triomq.broker.work import Signal
from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.names import TIMER_TOPIC
from triomq.protocol.record.consume_queue_unit import UNIT
from triomq.protocol.record.properties import MAX_PROPERTIES_BYTES, PropertyName, get_property, set_property
from triomq.storage.append import HELD_STEP_MS, DueTime, Entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.consume_queue.unit_search import find_start, first_offset, physical_offset_of
from triomq.storage.delays import OUT_MS, RECALL_LEAD_MS, ROLL_AFTER_MS, ROLL_WINDOW_MS, stored_time, wake_time
from triomq.storage.files.json_table import JsonTable
from triomq.storage.files.log_state import ClockStep
from triomq.storage.reading.cold_read import Work

LOGGER: Final = logging.getLogger("triomq.broker.delayed.timer")

_ROLL_TIMES: Final = PropertyName.TIMER_ROLL_TIMES.encode()
_MAX_MESSAGES: Final = 256  # in one call
_MAX_BYTES: Final = 1024**2  # likewise, of their records
_MAX_UNITS: Final = 4096
_HOUR_MS: Final = 3_600_000
_MAX_DIGITS: Final = 9  # of a count that the sender may have made up
_MIN_TIME: Final = 2**40  # 2004: above every hash of tags
_iter_units = UNIT.iter_unpack


def _wake_time_of(due_ms: int) -> DueTime:
    """Return a function that computes the tags code of a message due at ``due_ms`` when it is appended."""
    return lambda store_timestamp, now_ms: wake_time(due_ms, store_timestamp)


class Timer:
    """Stores timed messages and delivers those that are due.

    Attributes:
        progress: which message was delivered last.
        refusal: why messages cannot be read at the moment.
    """

    def __init__(self, delivery: Delivery, table: JsonTable, arrived: Signal, config: BrokerConfig) -> None:
        """``arrived`` is set when a message comes that is due before all others."""
        self.progress: Final = TimerProgress(table, self._first_offset)
        self._store = delivery.store
        self._delivery = delivery
        self._config = config
        self._arrived = arrived
        self._index = TimerIndex()
        self._batch: list[Due] = []  # taken from the index, not delivered yet
        self._recalls = Recalls()
        self._taken_ms = 0  # the time of the message taken last, since the last step of the clock
        self._steps: tuple[ClockStep, ...] = ()
        self._next_ms: int | None = None
        self._queue: ConsumeQueue
        self.refusal: StoreError | None = None

    def __len__(self) -> int:
        return len(self._index) + len(self._batch)

    def load(self) -> None:
        """Read the saved progress, and all units since the first message that may still wait.

        Raises:
            StoreLayoutError: the table and its previous generation cannot be read, or hold something else.
        """
        longest_ms = min(self._config.timer_max_delay_ms, ROLL_WINDOW_MS)
        if longest_ms > self._store.config.retention_hours * _HOUR_MS:
            LOGGER.warning(
                "messages may be deleted while they wait retention_hours=%s hours=%.1f: lower timer_max_delay_s",
                self._store.config.retention_hours,
                longest_ms / _HOUR_MS,
            )
        self.progress.load()
        self._queue = self._store.queue(TIMER_TOPIC, 0)
        self.progress.restrict(self._queue.max_offset)
        self._steps = self._store.commit_log.clock_steps.all
        for step in self._steps:
            physical_offset_at = partial(physical_offset_of, self._queue)
            ends = first_offset(self._queue), self._queue.max_offset
            self.progress.begin_part(find_start(*ends, step.offset, physical_offset_at))
        self._taken_ms = max(self.progress.done[0], 0)
        for due in self._waiting():
            self._index.add(*due)
        self._next_ms = self._index.next_time()

    def _waiting(self) -> Iterator[Due]:
        queue = self._queue
        queue_offset = max(self.progress.first_offset, queue.min_offset)
        while (units := queue.units_from(queue_offset, _MAX_UNITS)) is not None:
            for physical_offset, size, tags_code in _iter_units(units):
                done = self.progress.done_of(queue_offset)
                time_ms = tags_code if tags_code >= _MIN_TIME else self._time_of_record(physical_offset, size)
                if (time_ms, queue_offset) > done:
                    yield time_ms, queue_offset
                elif time_ms >= done[0] - RECALL_LEAD_MS:  # it may take back a message that waits
                    found = decode(self._store, physical_offset, size)
                    if found is not None:
                        self._recalls.add(found.encoded_properties, queue_offset)
                queue_offset += 1

    def _time_of_record(self, physical_offset: int, size: int) -> int:
        """Return when a message is due whose unit has no time, as RocketMQ's recovery writes it."""
        found = decode(self._store, physical_offset, size)
        if found is None:
            return 0
        time_ms = wake_time(stored_time(found.encoded_properties), found.store_timestamp)
        return min(max(time_ms, 0), MAX_TIME_MS)

    def _first_offset(self) -> int:
        if self._config.is_slave:  # its master reads the queue
            return self.progress.first_offset
        waiting = [queue_offset for _, queue_offset in self._batch]
        waiting += [queue_offset for _, queue_offset in self._recalls.values()]
        first = self._index.first_offset()
        if first is not None:
            waiting.append(first)
        return min(waiting, default=self._queue.next_offset)

    def check(self, due_ms: int, now_ms: int) -> None:
        """Check the time that a message requests.

        Raises:
            MessageIllegalError: it is too far away.
        """
        if due_ms - now_ms > self._config.timer_max_delay_ms:
            raise MessageIllegalError(
                "timer message illegal, the delay time should not be bigger than the max delay"
                f" {self._config.timer_max_delay_ms}ms; or if set del msg, the delay time should be bigger than the"
                " current time (triomq broker: --timer-max-delay SECONDS)"
            )

    def put(self, due_ms: int, message: Entry) -> tuple[int, int]:
        """Store a message that appears in its queue at ``due_ms``.

        Args:
            due_ms: in the future, and accepted by ``check``.
            message: with the queue that it is for.

        Returns:
            Physical offset, and queue offset in the timer topic.

        Raises:
            MessageIllegalError, StoreFullError, StoreClosedError, StoreError: as ``MessageStore.append``.
        """
        least_ms = self._least_ms(self._store.now_ms())
        properties = set_property(message.properties, OUT_MS, b"%d" % max(due_ms, least_ms))
        due_ms = max(stored_time(properties), least_ms)
        properties = with_real_place(properties, message.queue)
        waiting = message._replace(queue=self._queue, properties=properties, tags_code=_wake_time_of(due_ms))
        (place,) = self._store.append([waiting])
        self._follow_clock(place[1])
        self._delivery.statistics.put(TIMER_TOPIC, 1, len(message.body))
        time_ms = wake_time(due_ms, self._store.commit_log.store_timestamp)
        self._index.add(time_ms, place[1])
        if self._next_ms is None or time_ms < self._next_ms:
            self._next_ms = time_ms
            self._arrived.set()
        return place

    def _least_ms(self, now_ms: int) -> int:
        """Return the earliest time at which a message may be due that is added now."""
        self._follow_clock(self._queue.next_offset)
        if self._taken_ms - now_ms > HELD_STEP_MS:
            log = self._store.commit_log
            log.clock_steps.add(log.max_offset, log.store_timestamp)
            self._follow_clock(self._queue.next_offset)
        return self._taken_ms

    def _follow_clock(self, queue_offset: int) -> None:
        """Begin a part at ``queue_offset`` if the clock was set back before the message there was stored."""
        steps = self._store.commit_log.clock_steps.all
        if steps is not self._steps:
            self._steps = steps
            self._taken_ms = 0
            self.progress.begin_part(queue_offset)

    def prepare(self, now_ms: int, *, is_retry: bool = True) -> Work[None]:
        """Read the messages that ``deliver`` is about to deliver, as ``Schedule.prepare`` does."""
        if self.refusal is not None and not is_retry:
            return
        self.refusal = None
        self._take(now_ms)
        if self._batch:
            queue_offsets = [queue_offset for _, queue_offset in self._batch]
            try:
                yield from self._store.cold_reads.load_messages(self._queue, queue_offsets, _MAX_BYTES)
            except StoreError as exc:
                self.refusal = exc

    def deliver(self, now_ms: int) -> int | None:
        """Deliver a bounded number of messages that are due at ``now_ms``.

        Returns:
            When to call again, ms: ``now_ms`` if more is due already; ``None`` if nothing waits.
        """
        self._take(now_ms)
        if self.refusal is not None:
            next_ms: int | None = now_ms + UNREADABLE_MS
        else:
            next_ms = self._deliver_batch(now_ms) if self._batch else self._index.next_time()
        if next_ms is not None:
            next_ms = max(next_ms, now_ms)
        self._next_ms = next_ms
        return next_ms

    def _take(self, now_ms: int) -> None:
        if not self._batch:
            self._batch = self._index.take(now_ms, _MAX_MESSAGES)
            if self._batch:
                self._taken_ms = max(self._taken_ms, self._batch[-1][0])

    def _deliver_batch(self, now_ms: int) -> int | None:
        units = self._queue.units_at([queue_offset for _, queue_offset in self._batch])
        sizes = [size for _, size, _ in units]
        while sum(sizes[:-1]) > _MAX_BYTES:
            sizes.pop()
        due = units[: len(sizes)]  # as many as one call may copy
        rolled_from = self._queue.next_offset
        done = self._delivery.deliver(self._changed(*self._delivery.copies(due), now_ms))
        if self._queue.next_offset > rolled_from:
            self._follow_clock(rolled_from)
        if done:
            self.progress.set(self._batch[:done])
            del self._batch[:done]
            self._recalls.forget_before(self.progress.done[0])
        for queue_offset in range(rolled_from, self._queue.next_offset):
            rolled = self._queue.unit(queue_offset)
            if rolled is not None:
                self._index.add(rolled.tags_code, queue_offset)
        if done < len(due):
            return now_ms + RETRY_MS
        return now_ms if self._batch else self._index.next_time()

    def _changed(self, copies: list[Entry | None], stored_ms: list[int], now_ms: int) -> list[Entry | None]:
        """Return entries that deliver the first messages of the batch, or that keep one in this queue for longer."""
        changed: list[Entry | None] = []
        added, added_for = b"", -1
        for (time_ms, queue_offset), copy, store_timestamp in zip(self._batch, copies, stored_ms, strict=False):
            if copy is None:
                changed.append(None)
                continue
            if time_ms - store_timestamp in ROLL_AFTER_MS:
                rolled = self._rolled(copy, now_ms)
                if rolled is not None:
                    changed.append(rolled)
                    continue
            properties = copy.properties
            if self._recalls.add(properties, queue_offset) or (
                self._recalls and self._recalls.has(copy.queue.topic, properties)
            ):
                changed.append(None)
                continue
            if store_timestamp != added_for:
                added_for = store_timestamp
                added = b"\x02TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d" % (store_timestamp, now_ms)
            if len(properties) + len(added) <= MAX_PROPERTIES_BYTES:
                copy = copy._replace(properties=properties + added)
            changed.append(copy)
        return changed

    def _rolled(self, copy: Entry, now_ms: int) -> Entry | None:
        """Return an entry that keeps a message in this queue for longer; ``None`` if it is due."""
        properties = copy.properties
        due_ms = stored_time(properties)
        if due_ms <= max(now_ms, self._least_ms(now_ms)):
            return None
        rolls = get_property(properties, _ROLL_TIMES) or b""
        rolls = b"%d" % (1 + int(rolls if rolls.isdigit() and len(rolls) <= _MAX_DIGITS else 0))
        counted = set_property(properties, _ROLL_TIMES, rolls)
        if len(counted) <= MAX_PROPERTIES_BYTES:
            properties = counted
        return copy._replace(queue=self._queue, properties=properties, tags_code=_wake_time_of(due_ms))
