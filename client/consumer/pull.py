"""The pull consumer: plain requests for messages and offsets; the caller keeps the progress.

It joins no group: brokers do not list it as a member.  So it can read beside the
members of a push consumer's group without taking queues from them.  It is not notified when an administrator resets the
group's offsets: that changes the committed offsets.  Java's can also join one, to learn which queues are
its share: here that is a lite pull consumer's ``wait_assignment_changed``.

Source: behaviour.md B.15 (pull consumer).
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.pull import PullRequest, PullResult, PullStatus, RawPull
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.config import ClientConfig
from triomq.client.consumer.config import BROKER_DECIDES, ConsumerConfig
from triomq.client.consumer.offsets.first_offsets import first_stored_at
from triomq.client.consumer.processing.send_back import SendBack
from triomq.client.consumer.topics import select
from triomq.client.nursery import OpenOnce, in_parallel
from triomq.protocol.bodies.statistics import TopicOffset
from triomq.protocol.errors import REMOTE_ERRORS, ClientClosedError, ClientError, ConfigError, TriomqError
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, FilterExpression, filter_of
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp
from triomq.protocol.names import validate_group, validate_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.typed import checked

#: Every broker of RocketMQ has this group for its tools.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"


class TopicBounds(NamedTuple):
    """First and next offsets of a topic by queue, and the error of each broker that did not answer."""

    offsets: dict[MessageQueue, TopicOffset]
    errors: dict[str, TriomqError]


class QueueQueries(OpenOnce):
    """The part of a consumer that queries queues.

    All requests raise ``ClientError`` if the broker cannot be found or reached or does not answer in time, and
    ``BrokerResponseError`` if it answers with an error.
    """

    _requests: QueueRequests | None = None

    async def queues(self, topic: str, *, refresh: bool = False) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic, sorted.

        Args:
            topic: its name.
            refresh: ask the name server even if the topic's route is known.

        Raises:
            IllegalNameError: the topic's name.
            NoRouteError: the topic does not exist.
        """
        validate_topic(topic)
        routes = self._open().instance.routes
        if refresh:
            await routes.topic_route(topic, refresh=True)
        return await routes.subscribe_queues(topic)

    async def bounds(self, topic: str) -> TopicBounds:
        """Return first and next offset of all queues of a topic: one request for each broker, all at once.

        Brokers answer it for writable queues.  While a topic shrinks, others remain to be
        read: each of those costs two more requests.

        The known route is used; :meth:`queues` can refresh it.

        Raises:
            IllegalNameError: the topic's name.
            NoRouteError: the topic does not exist.
        """
        validate_topic(topic)
        requests = self._open()
        queues = await requests.instance.routes.subscribe_queues(topic)
        found = TopicBounds({}, {})

        async def ask(broker_name: str) -> None:
            try:
                offsets = await requests.topic_offsets(topic, broker_name)
                for queue in queues:
                    if queue.broker_name == broker_name and queue not in offsets:
                        low = await requests.min_offset(queue)
                        offsets[queue] = TopicOffset(low, await requests.max_offset(queue))
                found.offsets.update(offsets)
            except REMOTE_ERRORS as exc:
                found.errors[broker_name] = exc

        await in_parallel(ask, sorted({queue.broker_name for queue in queues}))
        return found

    async def wait_queues_changed(self, topic: str, known: Collection[MessageQueue]) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic once they differ from those ``known``.

        The name server is asked every ``poll_namesrv_interval_s``, at once for the first time.

        Raises:
            IllegalNameError: the topic's name.
            NoRouteError: the topic does not exist.
        """
        validate_topic(topic)
        while True:
            instance = self._open().instance
            await instance.routes.topic_route(topic, refresh=True)
            queues = instance.routes.known_subscribe_queues(topic)
            if set(queues) != set(known):
                return queues
            await trio.sleep(instance.config.poll_namesrv_interval_s)

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the queue's first message."""
        return await self._open().min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset that the queue's next message will get."""
        return await self._open().max_offset(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the offset of the message stored nearest to a time; it may lie before it."""
        return await self._open().search_offset(queue, Timestamp(timestamp_ms))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the offset of the first message stored at or after a time, or the end of the queue."""
        return await first_stored_at(self._open(), queue, Timestamp(timestamp_ms))

    async def earliest_store_time(self, queue: MessageQueue) -> Timestamp | None:
        """Return when the queue's first message was stored, in milliseconds; ``None`` for an empty queue."""
        return await self._open().earliest_store_time(queue)

    def _open(self) -> QueueRequests:
        if self._requests is None:
            raise ClientClosedError("the consumer is not open: use it inside its async with block")
        return self._requests


class PullConsumer(QueueQueries):
    """Reads queues on request.

    ::

        async with PullConsumer("group", namesrv="127.0.0.1:9876") as consumer:
            for queue in await consumer.queues("Topic"):
                result = await consumer.pull(queue, await consumer.min_offset(queue))

    All requests raise ``ClientError`` if the broker cannot be found or reached or does not answer in time, and
    ``BrokerResponseError`` if it answers with an error.
    """

    @checked
    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """Check the settings; nothing happens before the consumer is entered.

        Args:
            group: the group named in pulls, and whose offsets are read and stored.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive this.
            config: settings of the connections; not with ``instance``.

        Raises:
            IllegalNameError: the group's name.
        """
        validate_group(group)
        self.group = group
        self._use_instance = partial(use_instance, namesrv, config, instance)
        self._suggested: dict[MessageQueue, int] = {}

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        expression: FilterExpression = SUBSCRIBE_ALL,
        max_messages: int = 32,
        wait_s: float = 0.0,
        max_bytes: int | None = None,
    ) -> PullResult:
        """Return messages from an offset on, and where to continue.

        Args:
            queue: from where.
            queue_offset: first message wanted.
            expression: which messages: tags, or ``Sql(...)``.
            max_messages: upper limit; brokers also have one, normally 32.
            wait_s: how long the broker may wait for a message.
            max_bytes: upper limit of their bytes, with which triomq's brokers return more than 32 messages; Apache's
                ignore it.

        Raises:
            ConfigError: a negative offset or time, or ``max_messages`` below 1.
            SubscriptionParseError: the expression.
            BrokerResponseError, ClientError, ProtocolError: the broker refused, was not reached, or answered nonsense.
        """
        if queue_offset < 0 or max_messages < 1 or wait_s < 0:
            raise ConfigError(
                f"pull: queue_offset {queue_offset} and wait_s {wait_s} must not be negative, "
                f"max_messages {max_messages} must be above 0"
            )
        message_filter = filter_of(expression)
        requests = self._open()
        request = PullRequest(
            QueueOffset(queue_offset),
            max_messages,
            message_filter=message_filter,
            suspend_s=wait_s,
            broker_id=self._suggested.pop(queue, 0),  # after a failure the master is asked
            max_bytes=max_bytes,
        )
        result = await requests.pull(queue, request)
        self._suggested[queue] = result.suggested_broker_id
        messages = select(message_filter, result.messages)
        for message in messages:
            message.broker_name = queue.broker_name
        return result._replace(messages=messages)

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the group's stored offset, ``None`` without one.

        A broker older than 5.0 may return 0 for a group without offset while the queue's first message is young.
        """
        return await self._open().committed(queue)

    async def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store the group's offset: the next message to consume.  Brokers accept any value, also lower ones.

        Raises:
            ConfigError: the offset is negative.
        """
        if queue_offset < 0:
            raise ConfigError(f"commit: queue_offset {queue_offset} must not be negative")
        await self._open().commit(queue, QueueOffset(queue_offset))

    async def commit_oneway(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the group's offsets of several queues, without an answer.

        Raises:
            ClientError: a broker was not reached; later offsets were not sent.
        """
        requests = self._open()
        for queue, queue_offset in offsets.items():
            await requests.commit_oneway(queue, QueueOffset(queue_offset))

    async def send_back(self, message: MessageExt, delay_level: int = BROKER_DECIDES) -> None:
        """Store a message again in the group's retry topic, like a failed message of a push consumer.

        Args:
            message: as :meth:`pull` returned it.
            delay_level: below 0 the dead-letter topic, 0 the broker decides by the number of failures, above 0 that
                level.

        Raises:
            ClientError: neither its broker nor another could store it; the log has the reasons.
        """
        if not await SendBack(self._open().instance, self.group, ConsumerConfig()).send(message, delay_level):
            raise ClientError(f"send_back: {message!r} could not be stored again")

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with self._use_instance() as instance:
            self._requests = QueueRequests(instance, self.group)
            try:
                yield
            finally:
                self._requests = None


__all__ = ["PullConsumer", "PullResult", "PullStatus", "RawPull"]
