"""Batches of messages that tasks send at the same time (``ProducerConfig.auto_batch``).

While requests of a topic are in flight, further messages wait and leave together in the next request.  So a lone sender
waits for nothing, and many senders share the cost of a request.

Source: wire.md 5.2 (one response for a batch: its message ids, and the queue offset of its first message).
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

import trio

from triomq.client.producer.config import ProducerConfig, SendResult
from triomq.client.producer.delivery import Delivery
from triomq.client.producer.publish import RECORD_BYTES, batch_request, message_request
from triomq.client.producer.tracing import SendObserver
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import BrokerResponseError, ClientClosedError, TriomqError
from triomq.protocol.names import RETRY_PREFIX
from triomq.protocol.record.batch import encode_batch
from triomq.protocol.record.message import Message

_MAX_REQUESTS: Final = 2  # in flight for each topic: one is stored while the next one is in transit
_MAX_BATCH_BYTES: Final = 128 * 1024


@dataclass(slots=True, eq=False)
class _Waiting:
    """A message, and the task that waits for its result; ``None``: it has stopped waiting."""

    message: Message
    message_id: str
    properties: str
    result: SendResult | TriomqError | None = None
    task: trio.lowlevel.Task | None = field(default_factory=trio.lowlevel.current_task)

    async def wait(self) -> SendResult:
        """Return the result, or raise it."""

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if isinstance(self.result, SendResult):
            return self.result
        assert self.result is not None
        raise self.result

    def finish(self, result: SendResult | TriomqError) -> None:
        """Give the result to the task, unless it was cancelled."""
        if self.task is not None:
            self.result = result
            trio.lowlevel.reschedule(self.task)
            self.task = None


class _TopicQueue:
    """What waits to be sent to one topic with one ``wait_store_ok``."""

    __slots__ = ("requests", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.requests = 0


class AutoBatch:
    """Collects the messages of one open producer."""

    def __init__(
        self, delivery: Delivery, nursery: trio.Nursery, settings: ProducerConfig, observer: SendObserver | None = None
    ) -> None:
        """Take the delivery of batches, which has no observer, and the observer of single messages."""
        self._delivery = delivery
        self._observer = observer
        self._compress_over_bytes = settings.compress_over_bytes
        self._nursery = nursery
        self._queues: defaultdict[tuple[str, bool], _TopicQueue] = defaultdict(_TopicQueue)

    def takes(self, message: Message) -> bool:
        """Return whether a message may be in a batch with others: not if it is delayed, or would be compressed."""
        is_small = len(message.body) < self._compress_over_bytes
        return is_small and not message.is_delayed and not message.topic.startswith(RETRY_PREFIX)

    async def send(self, message: Message, message_id: str, properties: str) -> SendResult:
        """Send a message with others and return its own result.

        Raises:
            ClientError: as :meth:`Producer.send`.
        """
        if self._observer is None:
            return await self._put(message, message_id, properties).wait()
        outgoing = message_request(message, message_id, properties)
        with self._observer.sending(message.topic, outgoing) as stored:
            result = await self._put(message, message_id, outgoing.properties).wait()
            stored(result)
        return result

    def _put(self, message: Message, message_id: str, properties: str) -> _Waiting:
        waiting = _Waiting(message, message_id, properties)
        queue = self._queues[message.topic, message.wait_store_ok]
        queue.waiting.append(waiting)
        if queue.requests < _MAX_REQUESTS:
            queue.requests += 1
            self._nursery.start_soon(self._run, message.topic, queue)
        return waiting

    async def _run(self, topic: str, queue: _TopicQueue) -> None:
        """Send waiting messages until none is left."""
        batch: list[_Waiting] = []
        try:
            while batch := _take(queue.waiting):
                await self._send(topic, batch)
        except trio.Cancelled:
            error = ClientClosedError("the producer was closed before the message was sent")
            for waiting in (*batch, *queue.waiting):
                waiting.finish(error)
            queue.waiting.clear()
            raise
        finally:
            queue.requests -= 1

    async def _send(self, topic: str, batch: list[_Waiting]) -> None:
        first = batch[0]
        if len(batch) == 1:
            request = message_request(first.message, first.message_id, first.properties)
        else:
            entries = [(waiting.message.flag, waiting.message.body, waiting.properties.encode()) for waiting in batch]
            ids = ",".join([waiting.message_id for waiting in batch])
            request = batch_request(encode_batch(entries), ids, wait_store_ok=first.message.wait_store_ok)
        try:
            result = await self._delivery.send(topic, request, None)
        except TriomqError as exc:
            is_one_of_them = isinstance(exc, BrokerResponseError) and exc.code == ResponseCode.MESSAGE_ILLEGAL
            for waiting in batch:
                if is_one_of_them and len(batch) > 1:
                    await self._send(topic, [waiting])
                else:
                    waiting.finish(exc)
            return
        places = result.offset_message_id.split(",")
        for number, (waiting, place) in enumerate(zip(batch, places, strict=True)):
            offset = result.queue_offset + number
            waiting.finish(SendResult(result.status, waiting.message_id, place, result.queue, offset))


def _take(waiting: deque[_Waiting]) -> list[_Waiting]:
    """Remove and return the messages of the next request, without those of cancelled tasks."""
    batch: list[_Waiting] = []
    total = 0
    while waiting and (total < _MAX_BATCH_BYTES or not batch):
        first = waiting.popleft()
        if first.task is not None:
            batch.append(first)
            total += RECORD_BYTES + len(first.message.body) + len(first.properties)
    return batch
