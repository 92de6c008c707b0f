"""Reading messages as people look at them: the newest first, one by its place, those that arrive from now on.

Also how far groups are with a message.  No group is joined and no offset is stored.
"""

from collections.abc import Collection
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from triomq.client.admin.groups import GroupAdmin
from triomq.client.admin.messages import MessageAdmin
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.route import masters_of_route
from triomq.client.consumer.pull import TOOLS_GROUP, PullConsumer
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.route import GroupList
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import REMOTE_ERRORS, ConfigError, NoRouteError, QueryNotFoundError
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, FilterExpression, filter_of
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, dead_letter_topic, retry_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.requests.topics import TopicRequestHeader

_BATCH: Final = 32
#: Of one queue, for one list; the newest message is read whatever its size.
_QUEUE_BYTES: Final = 1024 * 1024
#: Of all queues, if they are few.
_LIST_BYTES: Final = 16 * 1024 * 1024
_MOST_SKIPPED: Final = 10_000
#: Of one queue, for one look of a tail; if more than the most wait there, only the last few are shown.
_TAIL_PULLS: Final = 8
_MOST_BEHIND: Final = 10_000
_SHOWN: Final = 32


class Before(NamedTuple):
    """Where a list of newest messages continues.

    Attributes:
        stored_ms: messages that were stored until then, this millisecond included.
        skip: so many of that millisecond were listed before.
    """

    stored_ms: int
    skip: int = 0


class NewestMessages(NamedTuple):
    """Messages, the newest first, and where the older ones begin; ``None`` at the end."""

    messages: list[MessageExt]
    older: Before | None


class GroupProgress(NamedTuple):
    """How far a group is with one message.

    Attributes:
        group: its name.
        offset: that the group consumes next in the queue of the message; ``None``: it has none there.
        is_past: whether that offset is above the message.
        retries: copies of the message in the group's retry topic, oldest first, each with whether the group is past it.
        dead_letter: its copy among the group's dead letters.
    """

    group: str
    offset: int | None
    is_past: bool
    retries: tuple[tuple[MessageExt, bool], ...] = ()
    dead_letter: MessageExt | None = None


class _Part(NamedTuple):
    """The last messages of one queue, newest last, and when the oldest of them was stored if there are older ones."""

    messages: list[MessageExt]
    horizon_ms: int | None


class BrowseAdmin(MessageAdmin, GroupAdmin):
    """Reads messages for people."""

    async def newest_messages(self, topic: str, count: int = 32, before: Before | None = None) -> NewestMessages:
        """Return the newest messages of a topic over all its queues, or those before some time.

        There may be fewer than ``count``, and yet older ones, if their bodies are large.

        Raises:
            NoRouteError: the topic does not exist.
            ConfigError: ``before`` skips too many messages.
        """
        skip = before.skip if before is not None else 0
        if not 0 <= skip <= _MOST_SKIPPED or count < 1:
            raise ConfigError(f"newest messages: skip {skip} must be 0 to {_MOST_SKIPPED}, count {count} above 0")
        async with PullConsumer(TOOLS_GROUP, instance=self._entered()) as pull:
            queues = await pull.queues(topic, refresh=True)
            bounds = await pull.bounds(topic)
            for error in bounds.errors.values():
                raise error

            most_bytes = max(_QUEUE_BYTES, _LIST_BYTES // max(1, len(queues)))

            async def read(queue: MessageQueue) -> _Part:
                low, end = bounds.offsets[queue].min_offset, bounds.offsets[queue].max_offset
                if before is not None:
                    end = min(end, await pull.offset_for_timestamp(queue, before.stored_ms + 1))
                return await _last(pull, queue, (low, end), (skip, count), most_bytes)

            parts = await in_parallel(read, [queue for queue in queues if queue in bounds.offsets])
        return _merged(parts, count, before)

    async def message_at(self, queue: MessageQueue, queue_offset: int) -> MessageExt:
        """Return the message at an offset of a queue.

        Raises:
            NoRouteError: the topic does not exist, or has no such queue.
            QueryNotFoundError: the queue has no message at this offset.
        """
        messages = await self.messages_from(queue, queue_offset, 1)
        if not messages or messages[0].queue_offset != queue_offset:
            place = f"{queue.topic}:{queue.broker_name}:{queue.queue_id}"
            raise QueryNotFoundError(
                int(ResponseCode.QUERY_NOT_FOUND),
                f"{place} has no message at offset {queue_offset}; it may have expired",
            )
        return messages[0]

    async def messages_from(self, queue: MessageQueue, queue_offset: int, count: int = _BATCH) -> list[MessageExt]:
        """Return messages of a queue from an offset on, or from its first one if that has a higher offset.

        There may be fewer than ``count`` if their bodies are large.

        Raises:
            NoRouteError: the topic does not exist, or has no such queue.
        """
        async with PullConsumer(TOOLS_GROUP, instance=self._entered()) as pull:
            if queue not in await pull.queues(queue.topic, refresh=True):
                raise NoRouteError(f"topic {queue.topic!r} has no readable queue {queue.broker_name}:{queue.queue_id}")
            begin = max(queue_offset, await pull.min_offset(queue))
            if begin >= await pull.max_offset(queue):
                return []
            return await read_between(pull, queue, begin, begin + count, _QUEUE_BYTES)

    async def consumers_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic, or have an offset in it, sorted."""
        if topic.startswith(RETRY_PREFIX):
            return [topic.removeprefix(RETRY_PREFIX)]
        masters, header = masters_of_route(await self.topic_route(topic)).values(), TopicRequestHeader(topic)
        answers = await self._requests.ask_each(masters, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return sorted({group for answer in answers for group in GroupList.decode(answer.body).group_list})

    async def progress_of(self, message: MessageExt, groups: Collection[str]) -> list[GroupProgress]:
        """Return the progress of groups at a message, in their order: by offsets and by copies of the message.

        ``message.topic`` is the topic in which it is stored.

        Raises:
            NoBrokerError: the broker of the message has no master now.
        """
        address, place = self._master(message.broker_name), _queue_of(message)

        async def read(group: str) -> GroupProgress:
            lags = await self._lags([address], group, message.topic)
            offset = next((lag.consumer_offset for lag in lags if lag.queue == place), None)
            if offset is None or offset <= message.queue_offset:
                return GroupProgress(group, offset, is_past=False)
            return await self._with_copies(GroupProgress(group, offset, is_past=True), message)

        return await in_parallel(read, groups)

    async def _with_copies(self, progress: GroupProgress, message: MessageExt) -> GroupProgress:
        """Add the copies that the broker stored when the group failed to consume the message."""
        if message.unique_id is None or message.topic.startswith(DEAD_LETTER_PREFIX):
            return progress
        group, found = progress.group, dict[str, list[MessageExt]]()
        for topic in (retry_topic(group), dead_letter_topic(group)):
            with suppress(NoRouteError, QueryNotFoundError):
                copies = await self.find_messages(topic, message.message_id, unique=True)
                found[topic] = [copy for copy in copies if copy.store_timestamp >= message.store_timestamp]
        retries = [copy for copy in found.get(retry_topic(group), ()) if copy.reconsume_times > message.reconsume_times]
        offsets: dict[MessageQueue, int] = {}
        if retries:
            with suppress(*REMOTE_ERRORS):
                lags = await self.group_lag(group, retry_topic(group))
                offsets.update({lag.queue: lag.consumer_offset for lag in lags})
        pairs = [(copy, copy.queue_offset < offsets.get(_queue_of(copy), 0)) for copy in retries]
        dead = found.get(dead_letter_topic(group), ())
        return progress._replace(retries=tuple(pairs), dead_letter=dead[-1] if dead else None)


def _queue_of(message: MessageExt) -> MessageQueue:
    return MessageQueue(message.topic, message.broker_name, message.queue_id)


async def _last(
    pull: PullConsumer, queue: MessageQueue, bounds: tuple[int, int], counts: tuple[int, int], most_bytes: int
) -> _Part:
    """Return the last messages between two offsets: backwards in blocks that are small if the messages are large.

    However large they are, there is one more than are skipped, so that a list always advances.
    """
    skip, count = counts[0], sum(counts)
    found: list[MessageExt] = []
    (low, begin), size, step = bounds, 0, 1
    while begin > low and len(found) < count and (size < most_bytes or len(found) <= skip):
        first = max(low, begin - step)
        block = await read_between(pull, queue, first, begin)
        found, begin = block + found, first
        size += sum(message.store_size for message in block)
        average = max(1, size // max(1, len(found)))
        step = max(1, min(count - len(found), (most_bytes - size) // average))
    return _Part(found, found[0].store_timestamp if begin > low and found else None)


async def read_between(
    pull: PullConsumer, queue: MessageQueue, begin: int, end: int, max_bytes: int | None = None
) -> list[MessageExt]:
    """Return the messages between two offsets; with a limit it ends after the one that reaches it."""
    messages: list[MessageExt] = []
    while begin < end and (max_bytes is None or sum(message.store_size for message in messages) < max_bytes):
        found = await pull.pull(queue, QueueOffset(begin), max_messages=min(_BATCH, end - begin))
        messages += (message for message in found.messages if begin <= message.queue_offset < end)
        if found.next_begin_offset <= begin:
            break
        begin = found.next_begin_offset
    return messages


def _merged(parts: Collection[_Part], count: int, before: Before | None) -> NewestMessages:
    """Merge the ends of queues; nothing is listed that is older than a message that was not read."""
    horizon_ms = max((part.horizon_ms for part in parts if part.horizon_ms is not None), default=0)
    until_ms, skip = before or (None, 0)
    known = [message for part in parts for message in part.messages if message.store_timestamp >= horizon_ms]
    known.sort(key=lambda one: (one.store_timestamp, one.broker_name, one.queue_id, one.queue_offset), reverse=True)
    shown = known[skip : skip + count]
    if len(known) <= skip + count and not any(part.horizon_ms is not None for part in parts):
        return NewestMessages(shown, None)
    last_ms = shown[-1].store_timestamp
    same = sum(message.store_timestamp == last_ms for message in shown)
    return NewestMessages(shown, Before(last_ms, same + (skip if last_ms == until_ms else 0)))


class Tail:
    """Follows a topic: reads what it gets between two looks.

    Attributes:
        passed_by: messages that were left out because more arrived than can be looked at.
    """

    def __init__(self, instance: ClientInstance, topic: str, expression: FilterExpression = SUBSCRIBE_ALL) -> None:
        """Take topic and filter; the first :meth:`look` begins at the ends of the queues.

        Raises:
            SubscriptionParseError: the expression cannot be read.
        """
        filter_of(expression)
        self._instance = instance
        self._topic = topic
        self._expression = expression
        self._next: dict[MessageQueue, int] | None = None
        self._lock = trio.Lock()
        self.passed_by = 0

    async def look(self) -> list[MessageExt]:
        """Return the messages that arrived since the last look, in the order in which they were stored.

        A queue of which more than 1 MiB arrived is read on with the next look; if more than 10,000 messages wait there,
        all but the last 32 are passed by.

        Raises:
            NoRouteError: the topic does not exist.
            BrokerResponseError: a broker refuses, as Apache's do SQL unless ``enablePropertyFilter`` is set.
        """
        async with self._lock, PullConsumer(TOOLS_GROUP, instance=self._instance) as pull:
            await pull.queues(self._topic, refresh=self._next is None)
            bounds = await pull.bounds(self._topic)
            for error in bounds.errors.values():
                raise error
            if self._next is None:
                self._next = {queue: offsets.max_offset for queue, offsets in bounds.offsets.items()}
                return []
            ends = {queue: offsets.max_offset for queue, offsets in bounds.offsets.items()}
            for queue, end in ends.items():
                begin = self._next.setdefault(queue, 0)
                if end - begin > _MOST_BEHIND:
                    self.passed_by += end - _SHOWN - begin
                    self._next[queue] = end - _SHOWN
            begins = {queue: begin for queue, begin in self._next.items() if begin < ends.get(queue, 0)}

            async def read(queue: MessageQueue) -> tuple[list[MessageExt], int]:
                return await self._read(pull, queue, begins[queue], ends[queue])

            found = await in_parallel(read, begins)
            # Only now: if one queue cannot be read, the next look reads all of them again.
            self._next |= {queue: begin for queue, (_, begin) in zip(begins, found, strict=True)}
        return sorted(
            (one for part, _ in found for one in part), key=lambda one: (one.store_timestamp, one.physical_offset)
        )

    async def _read(
        self, pull: PullConsumer, queue: MessageQueue, begin: int, end: int
    ) -> tuple[list[MessageExt], int]:
        """Return messages, and the offset after them."""
        messages: list[MessageExt] = []
        for _ in range(_TAIL_PULLS):
            if begin >= end or sum(message.store_size for message in messages) >= _QUEUE_BYTES:
                break
            found = await pull.pull(queue, begin, self._expression)
            messages += found.messages
            if found.next_begin_offset <= begin:
                break
            begin = found.next_begin_offset
        return messages, begin
