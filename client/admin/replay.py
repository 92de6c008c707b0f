"""Replay: what the topics of a group hold of a time span is delivered again, to another group alone.

Each message is sent to the retry topic of that group as its first topic's copy (``RETRY_TOPIC``), as a broker does with
a failed message, but without a failure and at once.  So it needs nothing but what every consumer and broker of
RocketMQ does anyway, no group's offset moves, and no third group gets it.

Source: behaviour.md A.7, B.14; wire.md 10.4.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final, NamedTuple

import trio

from triomq.client.admin.dead_letters import TIMERS
from triomq.client.admin.groups import GroupAdmin
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.pull import PullRequest
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.route import publish_queues
from triomq.client.consumer.offsets.first_offsets import first_stored_at
from triomq.client.consumer.processing.send_back import send_copy
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.consumer.topics import select
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.errors import REMOTE_ERRORS, ClientError, ConfigError, NoRouteError
from triomq.protocol.filters.filter_types import EVERYTHING, MessageFilter, parse_filter
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp
from triomq.protocol.names import RETRY_PREFIX, retry_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName, encode_properties

_BATCH: Final = 32
_BATCH_BYTES: Final = 1024**2
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
#: Not read by anybody, as the message has not failed; but a broker compares: a group may allow no retry at all.
_MAX_FAILURES: Final = 16
#: What a copy keeps of RocketMQ's own properties: what handlers read, and nothing that makes a broker act.
_KEPT: Final = (PropertyName.KEYS, PropertyName.TAGS, PropertyName.UNIQUE_KEY, PropertyName.SHARDING_KEY)


class ReplayQueue(NamedTuple):
    """The messages of the time span in one queue.

    Attributes:
        queue: one of a topic of the group.
        message_filter: which messages the group wants.
        begin: offset of the first message.
        end: offset after the last one; ``begin`` if no message matches.
        first_ms: when the first message was stored; ``None`` without a message.
        last_ms: when the last one was stored.
    """

    queue: MessageQueue
    message_filter: MessageFilter
    begin: QueueOffset
    end: QueueOffset
    first_ms: int | None
    last_ms: int | None

    @property
    def messages(self) -> int:
        """How many there are, with those that the filter excludes."""
        return self.end - self.begin


class ReplayPlan(NamedTuple):
    """What is to be delivered again.

    Attributes:
        group: whose topics are read.
        into: the group that gets the messages.
        is_online: whether that group has members now; otherwise the messages wait for them.
        queues: all queues of the topics, sorted, also those without messages in the time span.
    """

    group: str
    into: str
    is_online: bool
    queues: tuple[ReplayQueue, ...]


class ReplayAdmin(GroupAdmin):
    """Delivers messages again."""

    async def plan_replay(
        self, group: str, into: str, begin: datetime, end: datetime, *, topics: Collection[str] = ()
    ) -> ReplayPlan:
        """Find the messages of a time span in the topics of a group, to deliver them to another group; nothing is sent.

        Args:
            group: whose topics and filters; without members online the topics in which it has offsets, unfiltered.
            into: the group that is to get the messages.
            begin: store time of the first message.
            end: store time of the last one; messages stored after this call are not included.
            topics: only these; never the group's retry topic.

        Raises:
            ConfigError: ``end`` is before ``begin``.
            ClientError: the topics of ``group`` are not known, or ``into`` does not read its retry topic.
            NoRouteError: a topic does not exist, or ``into`` never had a member.
        """
        begin_ms, end_ms = (Timestamp(max(round(at.timestamp() * 1000), 0)) for at in (begin, end))
        if end_ms < begin_ms:
            raise ConfigError(f"replay: the end, {end}, is before the begin, {begin}")
        masters = list((await self._masters()).values())
        is_online = await self._check_target(masters, into)
        filters = await self._filters(masters, group, topics)
        routes, requests = self._entered().routes, QueueRequests(self._entered(), TOOLS_GROUP)

        async def plan(queue: MessageQueue) -> ReplayQueue:
            first = await first_stored_at(requests, queue, begin_ms)
            behind = max(await first_stored_at(requests, queue, Timestamp(end_ms + 1)), first)
            first_ms = await _store_time(requests, queue, first) if behind > first else None
            last_ms = await _store_time(requests, queue, QueueOffset(behind - 1)) if behind > first else None
            return ReplayQueue(queue, filters[queue.topic], first, behind, first_ms, last_ms)

        queues = chain(*await in_parallel(routes.subscribe_queues, sorted(filters)))
        return ReplayPlan(group, into, is_online, tuple(await in_parallel(plan, queues)))

    async def replay(
        self, plan: ReplayPlan, *, speed: float | None = 1.0, on_sent: Callable[[MessageExt], None] = lambda _: None
    ) -> int:
        """Deliver messages again, oldest first, and return how many; no offset is changed.

        Args:
            plan: from :meth:`plan_replay`; its filters are applied.
            speed: 2: twice as fast as the messages were stored; ``None``: as fast as possible.
            on_sent: called with the original of each message that was sent.

        Raises:
            ConfigError: ``speed`` is not above 0.
        """
        if speed is not None and not 0 < speed < float("inf"):
            raise ConfigError(f"replay: speed {speed} must be above 0")
        instance, topic, pace, sent = self._entered(), retry_topic(plan.into), Pace(speed), 0
        queues = publish_queues(topic, await self.topic_route(topic))
        if not queues:
            raise NoRouteError(f"topic {topic!r} has no queue that can be written")
        requests = QueueRequests(instance, TOOLS_GROUP)
        async with AsyncExitStack() as stack:
            readers = [await stack.enter_async_context(aclosing(_read(requests, queue))) for queue in plan.queues]
            async for message in await stack.enter_async_context(aclosing(_merge(readers))):
                await pace.wait(message.store_timestamp)
                await _send(instance, message, choose_queue(queues, message))
                sent += 1
                on_sent(message)
        return sent

    async def _check_target(self, masters: Sequence[str], into: str) -> bool:
        """Return whether the group has members.

        Raises:
            ClientError: its members would not get the messages, or it never had a member.
        """
        members = await self._members(masters, into)
        if members is not None and (
            members.message_model is MessageModel.BROADCASTING or retry_topic(into) not in members.subscription_table
        ):
            raise ClientError(
                f"group {into!r} cannot get replayed messages: its members do not read its retry topic; only push "
                "consumers do, and not in broadcasting"
            )
        try:
            await self.topic_route(retry_topic(into))
        except NoRouteError as exc:
            raise NoRouteError(f"group {into!r} has no retry topic yet: start a consumer of it first") from exc
        return members is not None

    async def _filters(self, masters: Sequence[str], group: str, topics: Collection[str]) -> dict[str, MessageFilter]:
        """Return the filter of each topic: of the members' subscriptions, else everything where there are offsets."""
        members = await self._members(masters, group)
        known: dict[str, MessageFilter]
        if members is not None:
            subscribed = members.subscription_table.items()
            known = {topic: parse_filter(data.sub_string, data.expression_type) for topic, data in subscribed}
        else:
            known = {lag.queue.topic: EVERYTHING for lag in await self._lags(masters, group)}
        wanted = topics or [topic for topic in known if not topic.startswith(RETRY_PREFIX)]
        if not wanted:
            raise ClientError(
                f"group {group!r} has no member online and no committed offset: name the topics to replay"
            )
        return {topic: known.get(topic, EVERYTHING) for topic in wanted}


async def _store_time(requests: QueueRequests, queue: MessageQueue, queue_offset: QueueOffset) -> int | None:
    found = await requests.pull(queue, PullRequest(queue_offset, 1, message_filter=EVERYTHING))
    return found.messages[0].store_timestamp if found.messages else None  # it has expired


# --- reading --------------------------------------------------------------------------------------------------


async def _read(requests: QueueRequests, source: ReplayQueue) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of one queue in order."""
    queue, message_filter, queue_offset, end, *_ = source
    while queue_offset < end:
        pull = PullRequest(queue_offset, _BATCH, message_filter=message_filter, max_bytes=_BATCH_BYTES)
        found = await requests.pull(queue, pull)
        for message in select(message_filter, found.messages):
            if message.queue_offset < end:
                message.broker_name = queue.broker_name
                yield message
        queue_offset = found.next_begin_offset if found.next_begin_offset > queue_offset else end  # expired meanwhile


async def _merge(readers: Sequence[AsyncGenerator[MessageExt, None]]) -> AsyncGenerator[MessageExt, None]:
    """Yield the messages of all queues in the order of their store times."""
    firsts = [(index, await anext(reader, None)) for index, reader in enumerate(readers)]
    heap = [(message.store_timestamp, index, message) for index, message in firsts if message is not None]
    heapify(heap)
    while heap:
        _, index, message = heap[0]
        yield message
        if (following := await anext(readers[index], None)) is None:
            heappop(heap)
        else:
            heapreplace(heap, (following.store_timestamp, index, following))


# --- sending --------------------------------------------------------------------------------------------------


class Pace:
    """Waits between messages as long as there was between them, divided by the speed."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._first: tuple[int, float] | None = None

    async def wait(self, store_ms: int) -> None:
        """Wait until a message is due; the first one is due at once, as is one that is late."""
        if self._speed is None:
            return
        if self._first is None:
            self._first = store_ms, trio.current_time()
        first_ms, began = self._first
        due = began + (store_ms - first_ms) / 1000 / self._speed
        if due > trio.current_time():
            await trio.sleep_until(due)


def choose_queue(queues: Sequence[MessageQueue], message: MessageExt) -> MessageQueue:
    """Return the same queue of a retry topic for all messages of one queue, on their broker if it has one."""
    there = [queue for queue in queues if queue.broker_name == message.broker_name] or queues
    return there[message.queue_id % len(there)]


async def _send(instance: ClientInstance, message: MessageExt, queue: MessageQueue) -> None:
    """Send the copy of a message, again if that fails: then it may be stored twice."""
    properties = copy_properties(message, instance.requests.namespace.wrap(message.topic))
    for tries_left in reversed(range(_TRIES)):
        try:
            await send_copy(
                instance, message, queue, properties, failures=(0, _MAX_FAILURES), born_ms=message.born_timestamp
            )
            break
        except REMOTE_ERRORS:
            if not tries_left:
                raise
            await trio.sleep(_PAUSE_S)


def copy_properties(message: MessageExt, topic: str) -> str:
    """Return the properties of a copy: those of users, and what leads back to the original."""
    own = message.properties
    properties = {name: value for name, value in message.user_properties.items() if name not in TIMERS}
    properties |= {name: own[name] for name in _KEPT if name in own}
    properties |= {
        PropertyName.RETRY_TOPIC: topic,
        PropertyName.ORIGIN_MESSAGE_ID: message.offset_message_id,
        PropertyName.WAIT_STORE_MSG_OK: "true",
    }
    return encode_properties(properties).decode()
