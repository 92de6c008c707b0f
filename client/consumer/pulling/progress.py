"""What moves the progress of a queue: the results of handlers, or the commits of a user who polls.

Source: behaviour.md B.15, DefaultLitePullConsumerImpl.java (consumeRequestCache).
"""

from collections import deque
from typing import Final

import trio

from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.record.message import MessageExt

_STORE_LIMIT_S: Final = 1.0


class Progress:
    """Progress that only the user's commits move, as lite pull consumers have it.

    Attributes:
        is_lite: whether pulls name their tag expression, and say that a lite pull consumer sends them.
    """

    is_lite = True

    def begin(self, queue: MessageQueue, first_offset: QueueOffset) -> None:
        """Record where a queue begins."""

    def update(self, process_queue: ProcessQueue) -> None:
        """Record in memory the offset up to which the queue is consumed."""

    def skip(self, process_queue: ProcessQueue, next_offset: QueueOffset) -> None:
        """Record that no message before an offset matched."""

    async def move(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Record that a queue continues at another offset."""
        await trio.lowlevel.checkpoint()

    def keeps_cached(self, correction: QueueOffset, next_offset: QueueOffset) -> bool:
        """Whether cached messages stay when the broker corrects the offset of the next pull."""
        return correction > next_offset


class HandlerProgress(Progress):
    """Progress that handlers make, as push consumers have it."""

    is_lite = False

    def __init__(self, offsets: OffsetStore) -> None:
        self._offsets = offsets

    def begin(self, queue: MessageQueue, first_offset: QueueOffset) -> None:
        """Record the offset; the broker knows it."""
        self._offsets.update(queue, first_offset, increase_only=False)
        self._offsets.confirmed(queue, first_offset)

    def update(self, process_queue: ProcessQueue) -> None:
        """Record the offset up to which handlers have ended."""
        if not process_queue.dropped and (consumed := process_queue.consumed_offset()) is not None:
            self._offsets.update(process_queue.queue, consumed, increase_only=True)

    def skip(self, process_queue: ProcessQueue, next_offset: QueueOffset) -> None:
        """Record the offset if no message before it waits, so that the lag falls although nothing matches."""
        if not process_queue.cached_messages:
            self._offsets.update(process_queue.queue, next_offset, increase_only=True)

    async def move(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Record the offset and store it."""
        self._offsets.update(queue, queue_offset, increase_only=False)
        with trio.move_on_after(_STORE_LIMIT_S):
            await self._offsets.persist_now([queue])

    def keeps_cached(self, _correction: QueueOffset, _next_offset: QueueOffset) -> bool:
        """Return false: handlers would record progress before the correction."""
        return False


#: When there are this many units, those of queues that were given up are removed.
_MAX_UNCHECKED: Final = 256


class PollBuffer:
    """Messages that a lite pull consumer has pulled and its user has not polled; the pull loops limit them.

    A unit is the messages of one pull.  Units are polled in the order of their arrival.
    """

    concurrency: Final = None  # no handler

    def __init__(self) -> None:
        self._units: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()
        self._arrived = trio.Event()
        self._closed = False
        self._max_units = _MAX_UNCHECKED

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Add messages that were put into a process queue."""
        self._units.append((process_queue, messages))
        if len(self._units) > self._max_units:  # else units of lost queues would stay until polled
            self._units = deque(unit for unit in self._units if not unit[0].dropped)
            self._max_units = max(_MAX_UNCHECKED, 2 * len(self._units))
        self._arrived.set()

    async def consume_directly(self, _message: MessageExt, _queue: MessageQueue) -> tuple[ConsumeResult, str]:
        """Refuse, for lack of a handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeResult.CR_THROW_EXCEPTION, "a lite pull consumer has no handler: its user polls"

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Return 0: polled messages are the user's responsibility."""
        return 0

    def take(self) -> list[MessageExt]:
        """Return the oldest unit, or an empty list; units of queues that were given up are dropped."""
        while self._units:
            process_queue, messages = self._units.popleft()
            if not process_queue.dropped:
                process_queue.remove_all(messages)
                process_queue.last_consumed_at = trio.current_time()
                process_queue.counters.succeeded += len(messages)
                return messages
        return []

    async def wait(self) -> None:
        """Return once there is a unit, or the buffer is closed."""
        while not (self._units or self._closed):
            if self._arrived.is_set():
                self._arrived = trio.Event()
            await self._arrived.wait()

    def close(self) -> None:
        """End all waits: no more units will arrive."""
        self._closed = True
        self._arrived.set()
