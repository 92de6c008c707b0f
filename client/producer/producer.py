"""Sending messages.

Source: behaviour.md B.3.
"""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from triomq.client.cluster.groups import LEAVE_S
from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.route import Queues
from triomq.client.config import ClientConfig
from triomq.client.connection.broker_requests import PendingReply
from triomq.client.environment import RANDOM, wall_clock_ms
from triomq.client.nursery import OpenOnce, open_service_nursery
from triomq.client.producer.auto_batch import AutoBatch
from triomq.client.producer.config import ProducerConfig, SendResult
from triomq.client.producer.delivery import Choice, Delivery
from triomq.client.producer.publish import (
    Outgoing,
    batch_request,
    check_batch,
    encode_message_properties,
    message_request,
    split_batch,
)
from triomq.client.producer.tracing import ObservedDelivery, SendObserver, Tracer, open_tracer, trace_topic
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import (
    ClientClosedError,
    MessageIllegalError,
    NoRouteError,
    RequestTimeoutError,
    TriomqError,
    WrongTypeError,
)
from triomq.protocol.host import pack_ip
from triomq.protocol.java import java_hash
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import validate_group
from triomq.protocol.record.compression import compress
from triomq.protocol.record.message import Message, MessageExt
from triomq.protocol.record.message_id import RecallHandle, UniqueIdGenerator
from triomq.protocol.requests.messages import RecallMessageRequestHeader
from triomq.protocol.typed import checked

LOGGER: Final = logging.getLogger("triomq.client.producer.producer")

#: Bodies above this are compressed in a worker thread: 2 ms and more.
_THREAD_OVER_BYTES: Final = 128 * 1024


#: Gets all queues of the topic, sorted, the message and the key given to ``send``; returns one of the queues.
QueueSelector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]


def select_by_hash(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
    """Choose by the hash that Java has of the key, so that producers in both languages agree.

    The key is text or an integer; without one the message's ``sharding_key`` is taken.  Equal keys get the same
    queue as long as the number of queues stays the same.

    Raises:
        MessageIllegalError: no key is given, or Java's hash of its type is not known.
    """
    remainder = abs(_hash_code(message.sharding_key if key is None else key)) % len(queues)
    return queues[remainder]


def select_by_random(queues: Sequence[MessageQueue], _message: Message, _key: object) -> MessageQueue:
    """Choose any queue; all are equally likely."""
    return RANDOM.choice(queues)


def _hash_code(key: object) -> int:
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, int) and not isinstance(key, bool):
        if -(2**31) <= key < 2**31:
            return key  # Integer.hashCode
        if -(2**63) <= key < 2**63:
            bits = (key ^ key >> 32) & 0xFFFFFFFF  # Long.hashCode; the sign is not part of the lower half
            return bits - 2**32 if bits >= 2**31 else bits
    raise MessageIllegalError(
        f"key {key!r}: select_by_hash needs key=, text or an integer of 64 bits (or the message's sharding_key)"
    )


class Producer(OpenOnce):
    """Sends messages for a producer group; any number of tasks may use it at once.

    ::

        async with Producer("group", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("Topic", b"body", tags="TagA"))
    """

    @checked
    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
        settings: ProducerConfig | None = None,
        trace: bool | str = False,
    ) -> None:
        """Make a producer; it connects when it is entered.

        Args:
            group: name of the producer group.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive the producer.
            config: settings of the connections; not with ``instance``.
            settings: of the producer; ``None``: the defaults.
            trace: record what becomes of each message, in ``RMQ_SYS_TRACE_TOPIC`` or the topic named here.

        Raises:
            IllegalNameError: the name of the group is not valid.
        """
        validate_group(group)
        self.group = group
        self._use_instance = partial(use_instance, namesrv, config, instance)
        self._settings = settings or ProducerConfig()
        self._trace_topic = trace_topic(trace)
        self.tracer: Tracer | None = None
        self._delivery: Delivery | None = None
        self._auto_batch: AutoBatch | None = None
        self._next_id: Callable[[], str]
        self._instance: ClientInstance

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with (
            self._use_instance() as instance,
            open_tracer(instance, self.group, self._trace_topic, "PRODUCE") as self.tracer,
        ):
            instance.groups.add_producer(self.group)
            ip, random_bits = pack_ip(instance.client_ip), RANDOM.getrandbits(32)
            self._next_id = UniqueIdGenerator(ip, os.getpid(), random_bits, wall_clock_ms).next
            observer = None
            if self.tracer is not None or instance.telemetry is not None:
                observer = SendObserver(instance, self.group, self.tracer, instance.telemetry)
            settings = self._settings
            plain = Delivery(instance, self.group, settings, observer.answered if observer else None)
            self._delivery = ObservedDelivery(instance, self.group, settings, observer) if observer else plain
            self._instance = instance
            try:
                async with open_service_nursery() as nursery:
                    if settings.auto_batch:
                        self._auto_batch = AutoBatch(plain, nursery, settings, observer)
                    yield
            finally:
                self._delivery = self._auto_batch = None
                with trio.move_on_after(LEAVE_S, shield=True):
                    await instance.groups.remove_producer(self.group)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: object = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it.

        Without ``queue`` and ``selector`` the queues take turns, and a failed attempt is repeated, on another broker
        if there is one.  If a response was lost, the message may be stored twice, with the same ``message_id``.

        Args:
            message: the message.
            queue: send to this queue, in one attempt.
            selector: chooses the queue, in one attempt; see ``select_by_hash``.
            key: argument for the selector.

        Raises:
            MessageIllegalError: the body is empty or too large, or the properties are too long.
            IllegalNameError: the topic's name is not valid.
            NoRouteError: the topic does not exist, and no broker creates it.
            BrokerResponseError: the broker rejected the message.
            ConnectError, ConnectionLostError, RequestTimeoutError: no response in time, in all attempts.
        """
        delivery = self._entered()
        if self._auto_batch is not None and queue is None and selector is None and self._auto_batch.takes(message):
            self._check_size(message)
            message_id = self._next_id()
            properties = encode_message_properties(message, message_id)
            return await self._auto_batch.send(message, message_id, properties)
        outgoing = await self._prepare(message)
        return await delivery.send(message.topic, outgoing, _choice(message, queue, selector, key))

    async def request(
        self, message: Message, *, timeout_s: float = 3.0, queue: MessageQueue | None = None
    ) -> MessageExt:
        """Send a message and return the reply of the consumer that handles it.

        Args:
            message: the message.
            timeout_s: time until the reply must have arrived.
            queue: send to this queue, in one attempt.

        Raises:
            MessageIllegalError, IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
            RequestTimeoutError: no reply arrived in time; a late one is dropped.
        """
        delivery, instance = self._entered(), self._instance
        correlation_id = f"{RANDOM.getrandbits(128):032x}"
        ttl_ms = round(timeout_s * 1000)
        added = f"\x02CORRELATION_ID\x01{correlation_id}\x02REPLY_TO_CLIENT\x01{instance.client_id}\x02TTL\x01{ttl_ms}"
        result = None
        pending = instance.replies[correlation_id] = PendingReply()
        try:
            with trio.move_on_after(timeout_s):
                outgoing = await self._prepare(message, added)
                plan = await delivery.plan(message.topic)
                await instance.groups.announce(plan.masters.values())  # brokers push replies to producers they know
                result = await delivery.send(message.topic, outgoing, _choice(message, queue, None, None))
                await pending.arrived.wait()
        finally:
            del instance.replies[correlation_id]
        if pending.message is not None:
            return pending.message
        text = "the request was not stored" if result is None else f"no reply to message {result.message_id}"
        raise RequestTimeoutError(f"{text} in {timeout_s} s; topic {message.topic!r} needs a consumer that replies")

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: object = None,
    ) -> None:
        """Send a message without waiting for the broker; whether it was stored stays unknown.

        Raises:
            MessageIllegalError, IllegalNameError, NoRouteError: as :meth:`send`.
            ConnectError, ConnectionLostError, RequestTimeoutError: the message could not be written.
        """
        delivery = self._entered()
        outgoing = await self._prepare(message)
        await delivery.send_oneway(message.topic, outgoing, _choice(message, queue, selector, key))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: object = None,
    ) -> list[SendResult]:
        """Send messages of one topic with few requests, in order; return one result for each request.

        They are split into batches below ``max_message_size_bytes``, sent one after the other.  If one fails, the
        earlier ones are stored: a note of the error gives their number of messages.

        Raises:
            MessageIllegalError: no message is given; topics or ``wait_store_ok`` differ; one is delayed or too large.
            IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        topic = check_batch(messages)
        delivery = self._entered()
        for message in messages:
            self._check_size(message)
        choose = _choice(messages[0], queue, selector, key)
        results: list[SendResult] = []
        stored = 0
        try:
            for batch in split_batch(messages, self._next_id, self._settings.max_message_size_bytes):
                request = batch_request(batch.body, batch.message_ids, wait_store_ok=messages[0].wait_store_ok)
                results.append(await delivery.send(topic, request, choose))
                stored = batch.end
        except TriomqError as exc:
            exc.add_note(f"send_batch: {stored} of {len(messages)} messages were stored before this")
            raise
        return results

    async def send_encoded_batch(self, topic: str, body: bytes) -> SendResult:
        """Send a batch that was encoded with ``protocol.batch``, with unique ids and ``WAIT`` in the properties.

        The batch is not checked.  Queues take turns and a failed attempt is repeated, as in :meth:`send`.

        Returns:
            Where the batch was stored, without ``message_id``.

        Raises:
            IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        return await self._entered().send(topic, batch_request(body, "", wait_store_ok=True), None)

    async def recall(self, handle: str) -> str:
        """Take a delayed message back before it is due; return its id.

        It is unknown whether the broker still had it: it may have been taken back before.

        Args:
            handle: ``SendResult.recall_handle``.

        Raises:
            ProtocolError: this is no handle.
            NoRouteError: the message's topic or broker is gone.
            BrokerResponseError: the message is due, or the broker does not take messages back: Apache's need
                ``recallMessageEnable``.
            ClientError: the broker was not reached.
        """
        wanted = RecallHandle.decode(handle)
        self._entered()
        instance = self._instance
        await instance.routes.topic_route(wanted.topic)
        address = instance.brokers.find(wanted.broker_name)
        if address is None:
            raise NoRouteError(f"recall: broker {wanted.broker_name!r} is in no known route; is it running?")
        header = RecallMessageRequestHeader(wanted.topic, handle, self.group, wanted.broker_name)
        response = await instance.requests.ask(address, RequestCode.RECALL_MESSAGE, header)
        return response.ext_fields.get("msgId", wanted.message_id)

    async def publish_queues(self, topic: str) -> Queues:
        """Return the writable queues of a topic, sorted.

        Raises:
            IllegalNameError, NoRouteError: as :meth:`send`.
        """
        return (await self._entered().plan(topic)).queues

    def _entered(self) -> Delivery:
        if self._delivery is None:
            raise ClientClosedError("the producer is not open: use it inside its async with block")
        return self._delivery

    def _check_size(self, message: Message) -> None:
        if not isinstance(message, Message):
            raise WrongTypeError(f"message: a {type(message).__name__} is given; pass a Message(topic, body, ...)")
        size, limit = len(message.body), self._settings.max_message_size_bytes
        if not 0 < size <= limit:
            raise MessageIllegalError(f"body of {size} bytes: must be 1 to {limit} (max_message_size_bytes)")

    async def _prepare(self, message: Message, added: str = "") -> Outgoing:
        """Check a message, give it an id, and make its request; ``added`` are further encoded properties."""
        self._check_size(message)
        packed, size = None, len(message.body)
        if size >= self._settings.compress_over_bytes:
            in_thread = size > _THREAD_OVER_BYTES
            packed = await trio.to_thread.run_sync(compress, message.body) if in_thread else compress(message.body)
        message_id = self._next_id()
        return message_request(message, message_id, encode_message_properties(message, message_id) + added, packed)


def _choice(message: Message, queue: MessageQueue | None, selector: QueueSelector | None, key: object) -> Choice | None:
    """Return a function that chooses the target, ``None``: queues take turns."""
    if selector is None:
        if queue is None:
            return None
        if queue.topic != message.topic:
            raise MessageIllegalError(f"queue {queue} is not one of the message's topic {message.topic!r}")
        return lambda plan: plan.find(queue)
    if queue is not None:
        raise MessageIllegalError("send: give a queue or a selector, not both")
    return lambda plan: plan.find(selector(plan.queues, message, key))
