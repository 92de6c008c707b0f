"""Messages that a lite pull consumer has pulled and its user has not polled.

A unit is the messages of one pull.  Units are polled in the order of their arrival.

Source: behaviour.md B.15, DefaultLitePullConsumerImpl.java (consumeRequestCache).
"""

from collections import deque
from typing import Final

import trio

from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.bodies.client import ConsumeResult
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

#: When there are this many units, those of queues that were given up are removed.
_MAX_UNCHECKED: Final = 256


class PollBuffer:
    """Takes the place of a push consumer's handlers.  The limits of the pull loops bound it."""

    concurrency: Final = None  # there is no handler

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
        """Refuse: there is no handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeResult.CR_THROW_EXCEPTION, "a lite pull consumer has no handler: its user polls"

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Return 0: polled messages are the user's responsibility."""
        return 0

    def take(self) -> list[MessageExt]:
        """Return the oldest unit, an empty list if there is none; units of queues that were given up are dropped."""
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
