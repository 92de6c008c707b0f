"""Progress of a group: a table in memory, and a durable store behind it, which is the group's brokers.

An offset is that of the next message to consume.  In memory it only rises.  It goes to the brokers with pulls, every
few seconds, when a queue is given up and when the consumer ends.

Source: behaviour.md B.6; OffsetStore.java, RemoteBrokerOffsetStore.java.
"""

import logging
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from math import inf
from typing import Final, NamedTuple, TypeVar

import trio

from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.connection.pool import log_retry
from triomq.client.nursery import in_parallel
from triomq.protocol.errors import REMOTE_ERRORS, TriomqError
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue, QueueOffset

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

    def reset(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Record progress that is stored whatever the store has."""
        self.forget(queue)
        self._offsets[queue] = queue_offset

    def set_aside(self, queue: MessageQueue) -> None:
        """Remove a queue that was lost with its connection, not given up: it may return soon."""
        self.forget(queue)

    def snapshot(self, topic: str) -> Mapping[MessageQueue, QueueOffset]:
        """Return the progress in memory of one topic."""
        return {queue: offset for queue, offset in self._offsets.items() if queue.topic == topic}

    def for_pull(self, _queue: MessageQueue) -> QueueOffset | None:
        """Return the progress to send with the next pull; ``None``: nothing."""
        return None

    def confirmed(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:  # noqa: B027  # not every store needs it
        """Record that the broker has this progress."""

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
        """Return the stored progress, ``None`` without one; raises one of ``REMOTE_ERRORS``."""

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

    await in_parallel(one, queues)
    return results


async def at_each_broker(
    queues: Iterable[MessageQueue], function: Callable[[str, list[MessageQueue]], Awaitable[None]]
) -> None:
    """Call the function with the name and the queues of each broker, concurrently."""
    of_broker: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        of_broker[queue.broker_name].append(queue)
    await in_parallel(lambda name: function(name, of_broker[name]), of_broker)


#: After this time a broker has handled a request, even one without an answer.
_SETTLED_AFTER_S: Final = 0.1
#: How long progress that was not stored before a connection was lost stays valid: as long as brokers keep a lock.
_ASIDE_LIFE_S: Final = 60.0
#: How long to wait for the other members when a broker is back: failed pulls reconnect after a second.
RETURN_S: Final = 2.0
#: How many requests with progress may be in flight to a broker when its connection is lost.
_MAX_RECENT: Final = 4
#: How often the last progress is stored again if it goes back.
_MAX_REPEATS: Final = 4


class _Aside(NamedTuple):
    """Progress of a queue when its connection was lost, the offsets sent last, and the end of its validity."""

    progress: QueueOffset
    sent: Collection[QueueOffset]
    until: float


class RemoteOffsetStore(OffsetStore):
    """Offsets at the brokers, for groups whose members share the queues."""

    def __init__(self, requests: QueueRequests) -> None:
        super().__init__()
        self._requests = requests
        #: What a broker has, and which one: a master that is back gets what its slave was given, and vice versa.
        self._confirmed: dict[MessageQueue, tuple[QueueOffset, str | None]] = {}
        self._sent_at: dict[MessageQueue, float] = {}  # when progress was sent that has no answer, or not yet
        #: What was sent last, newest at the end: the broker has one of these.
        self._recent: defaultdict[MessageQueue, deque[QueueOffset]] = defaultdict(partial(deque, maxlen=_MAX_RECENT))
        self._aside: dict[MessageQueue, _Aside] = {}
        self._doubtful: dict[MessageQueue, float] = {}  # until when; inf: the broker has not answered since
        self._failures = EventLog(LOGGER, "offsets not stored, retrying broker=%s error=%s")

    def forget(self, queue: MessageQueue) -> None:
        """Remove a queue from memory."""
        super().forget(queue)
        self._confirmed.pop(queue, None)
        self._sent_at.pop(queue, None)
        self._recent.pop(queue, None)
        self._doubtful.pop(queue, None)

    def set_aside(self, queue: MessageQueue) -> None:
        """Remove a queue from memory, but keep its progress for :meth:`stored`."""
        if (progress := self._offsets.get(queue)) is not None:
            self._aside[queue] = _Aside(progress, self._recent[queue], trio.current_time() + _ASIDE_LIFE_S)
        self.forget(queue)

    def doubt(self, queue: MessageQueue) -> None:
        """Store no progress of a queue until it is known how far other members got since the connection ended."""
        self._doubtful[queue] = inf

    def is_doubtful(self, queue: MessageQueue) -> bool:
        """Whether another member may have stored progress of the queue."""
        return queue in self._doubtful

    async def catch_up(self, queue: MessageQueue, position: QueueOffset) -> QueueOffset | None:
        """Return the stored progress of a doubtful queue if it is ahead of ``position``.

        The other members learn that this one is back, and store their last progress a moment later, so the queue
        stays doubtful for :data:`RETURN_S` after the broker's first answer.
        """
        stored = await self._requests.committed(queue)
        now = trio.current_time()
        if (until := self._doubtful.get(queue)) == inf:
            self._doubtful[queue] = now + RETURN_S
        elif until is None or now >= until:
            self._doubtful.pop(queue, None)
        if stored is not None and queue in self._offsets:
            self.update(queue, stored, increase_only=True)
        return stored if stored is not None and stored > position else None

    def for_pull(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the progress if it is new to the broker; 0 is not worth sending."""
        known = self._offsets.get(queue)
        if not known or self._has(queue, known) or queue in self._doubtful:
            return None
        self._sent_at[queue] = trio.current_time()
        self._record_recent(queue, known)
        return known

    def confirmed(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Record that the broker has this progress."""
        self._confirmed[queue] = queue_offset, self._requests.keeper(queue)
        self._sent_at.pop(queue, None)
        self._record_recent(queue, queue_offset)

    def _has(self, queue: MessageQueue, queue_offset: QueueOffset) -> bool:
        """Whether the broker that stores offsets now has this one."""
        return self._confirmed.get(queue) == (queue_offset, self._requests.keeper(queue))

    def _record_recent(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        recent = self._recent[queue]
        if not recent or recent[-1] != queue_offset:
            recent.append(queue_offset)

    async def persist(self, queues: Iterable[MessageQueue], *, changed_only: bool) -> None:
        """Send the progress of these queues, to all brokers concurrently; failures are retried next time."""
        known = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}
        unsaved = [queue for queue, offset in known.items() if not (changed_only and self._has(queue, offset))]
        await at_each_broker(unsaved, self._persist_at_one_broker)

    async def _persist_at_one_broker(self, broker_name: str, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            queue_offset = self._offsets.get(queue)
            if queue_offset is None or queue in self._doubtful:  # given up, or perhaps taken by others, meanwhile
                continue
            self._record_recent(queue, queue_offset)  # first: the queue may be set aside before this is written
            try:
                await self._requests.commit_oneway(queue, queue_offset)
            except REMOTE_ERRORS as exc:
                log_retry(self._failures, broker_name, exc)
                return  # the other queues would fail too
            self.confirmed(queue, queue_offset)  # records it again: the queue may have been taken anew
            self._sent_at[queue] = trio.current_time()
        self._failures.ended(key=broker_name)

    async def persist_now(self, queues: Iterable[MessageQueue]) -> None:
        """Store the progress of these queues concurrently, and wait until the brokers have it for good.

        A multi-threaded broker may handle an earlier pull or oneway request, and the
        older progress in it, after this one (Apache 5.5.0 does so under load).  So where a request
        may still be in flight, the stored offset is checked, and stored again if it went back.
        A doubtful queue's progress is not stored if another member got further.
        """
        known = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}

        async def store(queue: MessageQueue) -> None:
            settled_at = self._sent_at.get(queue, -inf) + _SETTLED_AFTER_S
            if queue in self._doubtful and (await self._requests.committed(queue) or 0) > known[queue]:
                return
            for _ in range(_MAX_REPEATS):
                await self._requests.commit(queue, known[queue])
                if trio.current_time() >= settled_at:
                    return
                await trio.sleep_until(settled_at)
                stored = await self._requests.committed(queue)
                if stored is not None and stored >= known[queue]:
                    return
                settled_at = trio.current_time() + _SETTLED_AFTER_S

        await _store_each(known, store, "offset not stored")

    async def commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Record progress, store it concurrently, and wait until the brokers have it.

        Raises:
            ClientError, BrokerResponseError, ProtocolError: the first failure; the other queues are stored.
        """
        errors: list[TriomqError] = []

        async def commit_one(queue: MessageQueue) -> None:
            try:
                await self._requests.commit(queue, offsets[queue])
            except REMOTE_ERRORS as exc:
                errors.append(exc)
            else:
                self.confirmed(queue, offsets[queue])

        for queue, queue_offset in offsets.items():
            self.update(queue, queue_offset, increase_only=False)
        await _store_each(offsets, commit_one, "offset not stored")
        if errors:
            raise errors[0]

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the broker's offset; if this member stored it before it lost the connection, store its progress since.

        Another member that had the queue meanwhile began at the stored offset and stored its own: then that is valid,
        even if it is lower, because an ordered queue must be redelivered in order.  An offset that is older
        than all of these comes from a broker that crashed; messages consumed since then are unknown.
        """
        stored = await self._requests.committed(queue)
        aside = self._aside.get(queue)
        if aside is None or stored is None:
            return stored
        if stored in aside.sent and stored < aside.progress and trio.current_time() < aside.until:
            await self._requests.commit(queue, aside.progress)
            stored = aside.progress
        self._aside.pop(queue, None)
        return stored

    def is_exact(self, queue: MessageQueue) -> bool:
        """Whether the broker distinguishes a stored 0 from none."""
        return self._requests.is_exact(queue)

    async def store_first(self, first_offsets: Mapping[MessageQueue, QueueOffset]) -> Collection[MessageQueue]:
        """Store where these queues begin, concurrently, and wait for the brokers' answers."""
        return await _store_each(
            first_offsets, lambda queue: self._requests.commit(queue, first_offsets[queue]), "first offset not stored"
        )


async def _store_each(
    queues: Collection[MessageQueue], function: Callable[[MessageQueue], Awaitable[None]], complaint: str
) -> Collection[MessageQueue]:
    """Call the function for all queues: first for one of each topic and broker, then for the others concurrently.

    Two threads of an Apache broker that store the first offsets of a group both create a table, and one of the
    tables is lost with its content (ConsumerOffsetManager.commitOffset).
    """
    first = list({(queue.topic, queue.broker_name): queue for queue in queues}.values())
    stored = await for_each(first, function, complaint)
    return [*stored, *await for_each([queue for queue in queues if queue not in first], function, complaint)]
