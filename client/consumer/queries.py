"""Queries about queues, which pull consumers and lite pull consumers have in common."""

from collections.abc import Collection
from typing import NamedTuple

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.offsets.first_offsets import first_stored_at
from triomq.client.consumer.requests.queue_requests import QueueRequests
from triomq.client.nursery import OpenOnce
from triomq.protocol.bodies.statistics import TopicOffset
from triomq.protocol.errors import REMOTE_ERRORS, ClientClosedError, TriomqError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import validate_topic
from triomq.protocol.units import QueueOffset, Timestamp


class TopicBounds(NamedTuple):
    """First and next offsets of a topic by queue, and the error of each broker that did not answer."""

    offsets: dict[MessageQueue, TopicOffset]
    errors: dict[str, TriomqError]


class QueueQueries(OpenOnce):
    """The part of a consumer that queries queues.

    All requests raise ``ClientError`` if the broker cannot be found or reached or does not answer in time, and
    ``BrokerResponseError`` if it answers with an error.
    """

    _instance: ClientInstance | None = None
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
        instance = self._open_instance()
        if refresh:
            await instance.routes.topic_route(topic, refresh=True)
        return await instance.routes.subscribe_queues(topic)

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
        queues = await self._open_instance().routes.subscribe_queues(topic)
        names = sorted({queue.broker_name for queue in queues})
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

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name)
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
            instance = self._open_instance()
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
        """Return when the queue's first message was stored, in milliseconds; ``None`` if there is none."""
        return await self._open().earliest_store_time(queue)

    def _open(self) -> QueueRequests:
        if self._requests is None:
            raise ClientClosedError("the consumer is not open: use it inside its async with block")
        return self._requests

    def _open_instance(self) -> ClientInstance:
        self._open()
        assert self._instance is not None
        return self._instance
