"""Messages of one queue between pull and commit.

At-least-once delivery depends on this rule: the offset to commit is the first one not consumed.  With 10,
11 and 12 cached and 11 and 12 done it is 10; only when 10 is done it becomes 13.

Consuming a message is the hot path, so removing it is one dictionary operation; the first offset is
computed on request, at an amortised cost of one step per message.

Source: behaviour.md B.11, ProcessQueue.java.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from math import inf
from operator import attrgetter, lt
from typing import Final

from triomq.client.consumer.topics import TopicCounters
from triomq.protocol.bodies.client import ProcessQueueInfo
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.record.message import MessageExt

_offset_of: Final = attrgetter("queue_offset")
_size_of: Final = attrgetter("store_size")


@dataclass(slots=True, eq=False)
class QueueLock:
    """The broker's lock on a queue, in the owner's clock.

    Attributes:
        locked_at: when it was last requested successfully.
        ends: from this time on no message may be handled.
    """

    locked_at: float
    ends: float


#: For queues that need no lock.
NO_LOCK: Final = QueueLock(0.0, inf)


@dataclass(slots=True, eq=False, repr=False)
class ProcessQueue:
    """Cached messages by offset, in order; one object for each time the queue is taken.

    Attributes:
        queue: which queue.
        counters: where its topic's messages are counted.
        dropped: given up; results of handlers that still run must not move an offset.
        cached_bytes: size of the records that are cached or taken.
        last_offset: highest offset ever put, ``None`` before the first message.
        closing: orderly consumption is giving it up: the running handler may end, no other begins.
        consuming: for orderly consumption: it has a worker, or waits for one.
        lock: for orderly consumption: until when no other member can have the queue.
        last_pulled_at: when the pull loop last ran, in the owner's clock.
        last_consumed_at: when a handler last ended, in the same clock; 0.0 if none did.
        on_removal: called after each removal while set, by a pull loop that waits for room.
    """

    queue: MessageQueue
    counters: TopicCounters = field(default_factory=TopicCounters)
    last_pulled_at: float = 0.0
    lock: QueueLock = NO_LOCK
    dropped: bool = False
    cached_bytes: int = 0
    last_offset: QueueOffset | None = None
    closing: bool = False
    consuming: bool = False
    last_consumed_at: float = field(default=0.0, init=False)
    on_removal: Callable[[], None] | None = None
    _cache: dict[QueueOffset, MessageExt] = field(default_factory=dict)
    _taken: dict[QueueOffset, MessageExt] = field(default_factory=dict)
    #: Offsets in order, including removed ones until they reach an end.
    _order: deque[QueueOffset] = field(default_factory=deque)

    @property
    def cached_messages(self) -> int:
        """Messages that are cached or taken."""
        return len(self._cache) + len(self._taken)

    @property
    def first_offset(self) -> QueueOffset | None:
        """Lowest offset in the cache."""
        order, cache = self._order, self._cache
        while order:
            if order[0] in cache:
                return order[0]
            order.popleft()
        return None

    @property
    def span(self) -> int:
        """Highest offset ever put minus first offset of the cache; 0 if that is empty.

        This is what a crash would repeat.  Java measures to the last offset that is still cached, so its limit
        has no effect as long as the messages behind a slow one are consumed quickly.
        """
        first = self.first_offset
        return 0 if first is None or self.last_offset is None else self.last_offset - first

    def consumed_offset(self) -> QueueOffset | None:
        """Return the offset to commit: the next one to consume; ``None`` if nothing is known.

        Messages taken by orderly consumption count as not consumed.
        """
        first = self.first_offset
        if self._taken:
            first_taken = min(self._taken)
            return first_taken if first is None else min(first, first_taken)
        if first is not None:
            return first
        return None if self.last_offset is None else QueueOffset(self.last_offset + 1)

    def last_begun(self, waiting: Container[int]) -> int:
        """Return the highest offset that does not wait for a handler; -1: none."""
        return next((queue_offset for queue_offset in reversed(self._order) if queue_offset not in waiting), -1)

    def running_info(self, committed_offset: QueueOffset, now: float, wall_clock_ms: int) -> ProcessQueueInfo:
        """Return the state for brokers and tools (request 307); both times are the present.

        Source: behaviour.md B.17, wire.md 9.9.
        """

        def in_wall_clock(at: float) -> int:
            return wall_clock_ms + round((at - now) * 1000) if at else 0  # 0.0: never

        first, taken, lock = self.first_offset, self._taken, self.lock
        return ProcessQueueInfo(
            commit_offset=committed_offset,
            cached_msg_min_offset=first or 0,
            cached_msg_max_offset=0 if first is None else first + self.span,
            cached_msg_count=self.cached_messages,
            cached_msg_size_in_mib=self.cached_bytes // 1024**2,
            transaction_msg_min_offset=min(taken, default=0),
            transaction_msg_max_offset=max(taken, default=0),
            transaction_msg_count=len(taken),
            locked=lock is not NO_LOCK and lock.ends > now,
            last_lock_timestamp=in_wall_clock(lock.locked_at),
            dropped=self.dropped,
            last_pull_timestamp=in_wall_clock(self.last_pulled_at),
            last_consume_timestamp=in_wall_clock(self.last_consumed_at),
        )

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add pulled messages."""
        if messages:
            offsets = list(map(_offset_of, messages))
            last = self.last_offset
            is_ascending = all(map(lt, offsets, islice(offsets, 1, None)))
            if (last is not None and offsets[0] <= last) or not is_ascending:
                self._put_out_of_order(offsets, messages)
            else:
                self._cache.update(zip(offsets, messages, strict=True))
                self._order.extend(offsets)
                self.cached_bytes += sum(map(_size_of, messages))
                self.last_offset = offsets[-1]

    def remove(self, message: MessageExt) -> None:
        """Remove a message that is consumed, or stored elsewhere for redelivery; unknown ones are ignored."""
        if (cached := self._cache.pop(message.queue_offset, None)) is not None:
            self.cached_bytes -= cached.store_size
            if self.on_removal is not None:
                self.on_removal()

    def remove_all(self, messages: Iterable[MessageExt]) -> None:
        """Remove messages that are consumed together; unknown ones are ignored."""
        cached = filter(None, map(self._cache.pop, map(_offset_of, messages), repeat(None)))
        self.cached_bytes -= sum(map(_size_of, cached))
        self._removed()

    def take(self, count: int) -> list[MessageExt]:
        """Take up to ``count`` messages with the lowest offsets, for orderly consumption.

        They count as cached until :meth:`commit` or :meth:`finish`.
        """
        order, cache = self._order, self._cache
        taken: list[MessageExt] = []
        while order and len(taken) < count:
            if (message := cache.pop(order.popleft(), None)) is not None:
                taken.append(message)
        self._taken.update(zip(map(_offset_of, taken), taken, strict=True))
        return taken

    def commit(self) -> None:
        """Forget the taken messages: they are consumed."""
        self.cached_bytes -= sum(map(_size_of, self._taken.values()))
        self._taken.clear()
        self._removed()

    def finish(self, message: MessageExt) -> None:
        """Forget one of the taken messages: it is consumed, or stored elsewhere."""
        if self._taken.pop(message.queue_offset, None) is not None:
            self.cached_bytes -= message.store_size
            if self.on_removal is not None:
                self.on_removal()

    def rollback(self) -> None:
        """Put all taken messages back."""
        self.requeue(list(self._taken.values()))

    def requeue(self, messages: Iterable[MessageExt]) -> None:
        """Put these of the taken messages back, to be taken again."""
        for message in messages:
            if self._taken.pop(message.queue_offset, None) is not None:
                self._cache[message.queue_offset] = message
        self._sort()

    def _removed(self) -> None:
        if self.on_removal is not None:
            self.on_removal()

    def _put_out_of_order(self, offsets: Sequence[QueueOffset], messages: Sequence[MessageExt]) -> None:
        """Add messages that a broker sent twice, or out of order; known ones are kept."""
        for queue_offset, message in zip(offsets, messages, strict=True):
            if queue_offset not in self._cache and queue_offset not in self._taken:
                self._cache[queue_offset] = message
                self.cached_bytes += message.store_size
        highest = max(offsets)
        self.last_offset = highest if self.last_offset is None else max(self.last_offset, highest)
        self._sort()

    def _sort(self) -> None:
        self._order = deque(sorted(self._cache))
