"""The interface of stores of progress: a table in memory, and something durable behind it.

An offset is that of the next message to consume.

Source: behaviour.md B.6, OffsetStore.java.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import trio

from triomq.protocol.errors import REMOTE_ERRORS
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.units import QueueOffset

LOGGER: Final = logging.getLogger("triomq.client.consumer.offsets")

_T = TypeVar("_T")


class OffsetStore(ABC):
    """Progress of a group: in memory, and somewhere durable."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, QueueOffset] = {}

    def update(self, queue: MessageQueue, queue_offset: QueueOffset, *, increase_only: bool) -> None:
        """Record progress in memory."""
        if not increase_only or queue_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = queue_offset

    def get(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the progress in memory."""
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Remove a queue from memory."""
        self._offsets.pop(queue, None)

    def set_aside(self, queue: MessageQueue) -> None:
        """Remove a queue that was lost with its connection, not given up: it may come back soon."""
        self.forget(queue)

    def snapshot(self, topic: str) -> Mapping[MessageQueue, QueueOffset]:
        """Return the progress in memory of one topic."""
        return {queue: offset for queue, offset in self._offsets.items() if queue.topic == topic}

    def for_pull(self, _queue: MessageQueue) -> QueueOffset | None:
        """Return the progress to send with the next pull; ``None``: nothing."""
        return None

    def told(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:  # noqa: B027  # not every store needs it
        """Record that a pull carried this progress to the broker."""

    def doubt(self, queue: MessageQueue) -> None:  # noqa: B027  # nor this
        """Store no progress of a queue that another member may have now, until :meth:`catch_up` has compared it."""

    def is_doubtful(self, _queue: MessageQueue) -> bool:
        """Whether another member may have stored progress of the queue."""
        return False

    async def catch_up(self, queue: MessageQueue, position: QueueOffset) -> QueueOffset | None:
        """Return the stored progress of a doubtful queue if it is ahead of ``position``; raises ``REMOTE_ERRORS``."""
        stored = await self.stored(queue)
        return stored if stored is not None and stored > position else None

    def is_exact(self, _queue: MessageQueue) -> bool:
        """Whether a stored 0 means 0, and never that nothing is stored."""
        return True

    @abstractmethod
    async def persist(self, queues: Iterable[MessageQueue], *, changed_only: bool) -> None:
        """Store the progress of these queues without waiting for the store; failures are retried next time.

        With ``changed_only``: only what the store does not have yet.
        """

    @abstractmethod
    async def persist_now(self, queues: Iterable[MessageQueue]) -> None:
        """Store the progress of these queues; return when the store has it, or has refused it."""

    @abstractmethod
    async def commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Record progress, up or down, and store it; raises one of ``REMOTE_ERRORS`` if that fails for a queue."""

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the stored progress, ``None`` if there is none; raises one of ``REMOTE_ERRORS``."""

    @abstractmethod
    async def store_first(self, first_offsets: Mapping[MessageQueue, QueueOffset]) -> Collection[MessageQueue]:
        """Store where these queues begin; return those for which that worked."""


async def for_each(
    queues: Collection[MessageQueue], function: Callable[[MessageQueue], Awaitable[_T]], complaint: str
) -> dict[MessageQueue, _T]:
    """Call the function for all queues concurrently; failures are logged and missing in the result."""
    results: dict[MessageQueue, _T] = {}

    async def one(queue: MessageQueue) -> None:
        try:
            results[queue] = await function(queue)
        except REMOTE_ERRORS as exc:
            LOGGER.warning("queue passed over: %s queue=%s error=%s", complaint, queue, exc)

    async with trio.open_nursery() as nursery:
        for queue in queues:
            nursery.start_soon(one, queue)
    return results
