"""Timed messages: which is due next, among millions in 8 bytes each, which was delivered last, which are taken back.

Messages come with increasing queue offsets and any times.  The newest ones are a heap.  When there are enough of them
they become a run: one sorted array, consumed from its front, whose memory is released when half of it is consumed.  The
first messages of all runs are in a second heap.  So adding and taking cost as much as with a heap of a few thousand,
however many messages wait.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

from triomq.broker.saved_table import SavedTable
from triomq.protocol.record.message_id import delete_key
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.storage.delays import RECALL_LEAD_MS, stored_time
from triomq.storage.files.json_table import JsonTable

LOGGER: Final = logging.getLogger("triomq.broker.delayed.timer_index")

MAX_TIME_MS: Final = 2**48  # the year 10889
_OFFSET_BITS: Final = 14
_RUN_LENGTH: Final = 1 << _OFFSET_BITS
_OFFSET_MASK: Final = _RUN_LENGTH - 1
_MIN_FREED: Final = 1024
_NOTHING: Final = (-1, -1)
_END: Final = (MAX_TIME_MS + 1, 0)  # after all messages
_DELETES: Final = PropertyName.TIMER_DELETE_UNIQUE_KEY.encode()
_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()
_REAL_TOPIC: Final = PropertyName.REAL_TOPIC.encode()


Due: TypeAlias = tuple[int, int]
"""When a message is due, ms, and its queue offset; sorts in the order of delivery.  A plain tuple: there are many."""


class _Run:
    """Messages of neighbouring queue offsets; an entry is the time and the distance to ``base`` in one number."""

    __slots__ = ("_at", "_entries", "base")

    def __init__(self, base: int, entries: list[int]) -> None:
        self.base = base
        self._entries = array("q", sorted(entries))
        self._at = 0

    def __len__(self) -> int:
        return len(self._entries) - self._at

    def take(self, bound: Due, limit: int) -> list[Due]:
        """Return up to ``limit`` of the next messages before ``bound``."""
        time_ms, queue_offset = bound
        entry_bound = (time_ms << _OFFSET_BITS) + min(max(queue_offset - self.base, 0), _RUN_LENGTH)
        at, base = self._at, self.base
        end = bisect_left(self._entries, entry_bound, at, min(at + limit, len(self._entries)))
        taken = [(entry >> _OFFSET_BITS, base + (entry & _OFFSET_MASK)) for entry in self._entries[at:end]]
        self._at = end
        if end > _MIN_FREED and 2 * end > len(self._entries):
            del self._entries[:end]
            self._at = 0
        return taken


class TimerIndex:
    """All waiting messages by time, and by queue offset among equal times."""

    def __init__(self) -> None:
        self._base = 0  # of the newest messages
        self._newest: list[int] = []
        self._runs: list[tuple[int, int, _Run]] = []  # with the next message of each, which is no longer in the run

    def __len__(self) -> int:
        return len(self._newest) + sum(len(run) + 1 for _, _, run in self._runs)

    def add(self, time_ms: int, queue_offset: int) -> None:
        """Add a message; its queue offset is above all earlier ones."""
        if not self._newest:
            self._base = queue_offset
        elif queue_offset - self._base >= _RUN_LENGTH:
            self._put_back(_Run(self._base, self._newest))
            self._newest.clear()
            self._base = queue_offset
        heappush(self._newest, min(max(time_ms, 0), MAX_TIME_MS) << _OFFSET_BITS | queue_offset - self._base)

    def _put_back(self, run: _Run) -> None:
        for first in run.take(_END, 1):
            heappush(self._runs, (*first, run))

    def next_time(self) -> int | None:
        """Return when the next message is due, ms; ``None`` if none waits."""
        times = [self._runs[0][0]] if self._runs else []
        if self._newest:
            times.append(self._newest[0] >> _OFFSET_BITS)
        return min(times, default=None)

    def take(self, until_ms: int, limit: int) -> list[Due]:
        """Remove and return up to ``limit`` messages that are due at ``until_ms``."""
        taken: list[Due] = []
        newest, runs = self._newest, self._runs
        while len(taken) < limit:
            if runs and (not newest or runs[0][0] <= newest[0] >> _OFFSET_BITS):
                if runs[0][0] > until_ms:
                    break
                self._take_of_run(taken, until_ms, limit)
            elif newest and newest[0] >> _OFFSET_BITS <= until_ms:
                entry = heappop(newest)
                taken.append((entry >> _OFFSET_BITS, self._base + (entry & _OFFSET_MASK)))
            else:
                break
        return taken

    def _take_of_run(self, taken: list[Due], until_ms: int, limit: int) -> None:
        """Take the first message of all runs, and those that follow it in its run before any other message."""
        time_ms, queue_offset, run = heappop(self._runs)
        taken.append((time_ms, queue_offset))
        bound = until_ms + 1, 0
        if self._runs:
            bound = min(bound, self._runs[0][:2])
        if self._newest:
            bound = min(bound, (self._newest[0] >> _OFFSET_BITS, self._base))
        taken += run.take(bound, limit - len(taken))
        self._put_back(run)

    def first_offset(self) -> int | None:
        """Return a queue offset before which no message waits, at most a run before the first; ``None``: none waits."""
        bases = [run.base for _, _, run in self._runs]
        if self._newest:
            bases.append(self._base)
        return min(bases, default=None)


class TimerProgress(SavedTable):
    """The message that was delivered last: all that were due before it are delivered, too.

    This does not hold across a step back of the clock, so each such step begins a part of the queue that has its last
    delivered message.

    Attributes:
        done: its time, ms, and queue offset, in the newest part.
        earlier: likewise in each older part, with the queue offset at which that part ends.
        first_offset: no message before this queue offset waited when the file was written.
    """

    def __init__(self, table: JsonTable, first_offset: Callable[[], int]) -> None:
        """``first_offset`` returns the value to save."""
        super().__init__(table)
        self._first_offset = first_offset
        self.done: Due = _NOTHING
        self.earlier: list[tuple[int, Due]] = []
        self.first_offset = 0

    def _take(self, saved: Any) -> None:
        self.done = int(saved["timeMs"]), int(saved["queueOffset"])
        self.first_offset = max(int(saved["firstOffset"]), 0)
        self.earlier = [(int(end), (int(time), int(at))) for end, time, at in saved.get("earlier", ())]

    def restrict(self, end: int) -> None:
        """Lower offsets beyond the end of the queue, as ``ConsumerOffsetTable.restrict`` does.

        New messages get these offsets, and wait; so all messages must be read again.
        """
        queue_offset = max(self.done[1], *(at for _, (_, at) in self.earlier), -1)
        if max(queue_offset + 1, self.first_offset) > end:
            LOGGER.warning(
                "timer progress lowered queue_offset=%d first_offset=%d end=%d", queue_offset, self.first_offset, end
            )
            self.done = self.done[0], min(self.done[1], end - 1)
            self.earlier = [(min(to, end), (time, min(at, end - 1))) for to, (time, at) in self.earlier]
            self.first_offset = 0
            self.is_dirty = True

    def begin_part(self, queue_offset: int) -> None:
        """Begin a part with the messages from ``queue_offset`` on, unless one begins there or later."""
        if queue_offset > (self.earlier[-1][0] if self.earlier else 0):
            self.earlier.append((queue_offset, self.done))
            self.done = _NOTHING
            self.is_dirty = True

    def done_of(self, queue_offset: int) -> Due:
        """Return the message delivered last in the part of the queue that holds ``queue_offset``."""
        return next((done for end, done in self.earlier if queue_offset < end), self.done)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        (time_ms, queue_offset), first_offset = self.done, self._first_offset()
        self.earlier = [part for part in self.earlier if part[0] > first_offset or part is self.earlier[-1]]
        earlier = [[end, *done] for end, done in self.earlier]
        return {"timeMs": time_ms, "queueOffset": queue_offset, "firstOffset": first_offset, "earlier": earlier}

    def set(self, delivered: Sequence[Due]) -> None:
        """Record that messages, in the order of delivery, are delivered."""
        for number, (end, _) in enumerate(self.earlier):
            inside = [due for due in delivered if due[1] < end]
            if inside:
                self.earlier[number] = end, inside[-1]
                self.is_dirty = True
                delivered = [due for due in delivered if due[1] >= end]
        if delivered and delivered[-1] > self.done:
            self.done = delivered[-1]
            self.is_dirty = True


class Recalls(dict[tuple[str, bytes], tuple[int, int]]):
    """Messages that were taken back and must not be delivered: topic and key to time and the request's queue offset.

    A request to take a message back is a delayed message too, and waits with the others until shortly before the one
    that it names.  Then it is kept here until that one has been passed over.  Unlike in RocketMQ it must have been sent
    to the topic of that one: a right on one topic must not delete messages of another.

    Source: RocketMQ 5.5.0 TimerMessageStore.java, buildDeleteKey, dequeue.
    """

    def add(self, properties: bytes, queue_offset: int) -> bool:
        """Remember a waiting message if it takes another one back; return whether it does."""
        key = get_property(properties, _DELETES) if _DELETES in properties else None
        if key is None:
            return False
        topic = (get_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
        self[topic, key] = stored_time(properties) + RECALL_LEAD_MS, queue_offset
        return True

    def has(self, topic: str, properties: bytes) -> bool:
        """Whether a message that is due was taken back: one of this id and, within a second, this time.

        RocketMQ before 5.3 names it by its id alone.
        """
        message_id = get_property(properties, _UNIQUE_KEY)
        if message_id is None:
            return False
        keys = delete_key(topic, message_id.decode("utf-8", "replace")).encode(), message_id
        due_ms = stored_time(properties)
        return any(abs(self[topic, key][0] - due_ms) < RECALL_LEAD_MS for key in keys if (topic, key) in self)

    def forget_before(self, done_ms: int) -> None:
        """Forget the requests whose messages were delivered or passed over by now."""
        for key in [key for key, (due_ms, _) in self.items() if due_ms + RECALL_LEAD_MS < done_ms]:
            del self[key]
