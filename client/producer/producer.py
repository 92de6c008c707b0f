"""Sending messages.

Source: behaviour.md B.3.
"""

import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from secrets import randbits
from typing import Final

import trio

from triomq.client.cluster.groups import LEAVE_S
from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.route import Queues
from triomq.client.config import ClientConfig
from triomq.client.connection.connection import Connection
from triomq.client.nursery import OpenOnce
from triomq.client.producer.publish import (
    Outgoing,
    Target,
    TopicPlan,
    check_batch,
    check_topic,
    encode_message_properties,
    split_batch,
)
from triomq.client.producer.selectors import QueueSelector
from triomq.client.producer.send_result import STATUS_BY_CODE, SendResult, SendStatus, read_send_result
from triomq.protocol.codes import CommandFlag, MessageSysFlag, RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    MessageIllegalError,
    NoRouteError,
    RequestTimeoutError,
    TriomqError,
)
from triomq.protocol.host import pack_ip
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import AUTO_CREATE_TOPIC, validate_group
from triomq.protocol.record.compression import compress
from triomq.protocol.record.message import Message
from triomq.protocol.record.message_id import UniqueIdGenerator

LOGGER: Final = logging.getLogger("triomq.client.producer.producer")

DEFAULT_MAX_MESSAGE_BYTES: Final = 4 * 1024**2
DEFAULT_COMPRESS_OVER_BYTES: Final = 4096

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_ZLIB: Final = str(int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB))
#: Errors of one broker that another, or the same a moment later, may not have.
_RETRY_CODES: Final = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        204,  # NO_BUYER_ID
        205,  # NOT_IN_CURRENT_UNIT
    )
)
#: Bodies above this are compressed in a worker thread: 2 ms and more.
_THREAD_OVER_BYTES: Final = 128 * 1024
_FIRST_PAUSE_S: Final = 0.1

Choice = Callable[[TopicPlan], Target]


class Producer(OpenOnce):
    """Sends messages for a producer group; any number of tasks may use it at once.

    ::

        async with Producer("group", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("Topic", b"body", tags="TagA"))
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
        send_timeout_s: float = 3.0,
        retries: int = 2,
        retry_another_broker_when_not_stored_ok: bool = False,
        max_message_size_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        compress_over_bytes: int = DEFAULT_COMPRESS_OVER_BYTES,
    ) -> None:
        """Take settings; nothing happens before the producer is entered.

        Args:
            group: name of the producer group.
            namesrv: name servers, ``"host:port;host:port"`` or a sequence; not with ``instance``.
            instance: connections to share with other clients; must outlive this.
            config: settings of the connections; not with ``instance``.
            send_timeout_s: for each send with all its tries (sendMsgTimeout).
            retries: further tries after a failed one (retryTimesWhenSendFailed); none with a queue or selector.
            retry_another_broker_when_not_stored_ok: also try again when the message was stored, but not flushed
                or copied in time; it is stored twice then (retryAnotherBrokerWhenNotStoreOK).
            max_message_size_bytes: of a body before compression, and of a batch as stored (maxMessageSize).
            compress_over_bytes: bodies of this size and above are compressed (compressMsgBodyOverHowmuch).

        Raises:
            IllegalNameError: the group's name.
            ConfigError: an impossible value.
        """
        validate_group(group)
        if send_timeout_s <= 0 or retries < 0 or max_message_size_bytes <= 0 or compress_over_bytes < 0:
            raise ConfigError("producer: send_timeout_s and max_message_size_bytes above 0, the others not below")
        self.group = group
        self._namesrv = namesrv
        self._given_instance = instance
        self._config = config
        self._send_timeout_s = send_timeout_s
        self._tries = 1 + retries
        self._stored_is_enough = not retry_another_broker_when_not_stored_ok
        self._max_message_size_bytes = max_message_size_bytes
        self._compress_over_bytes = compress_over_bytes
        self._plans: dict[str, TopicPlan] = {}
        self._instance: ClientInstance | None = None
        self._next_id: Callable[[], str]

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with use_instance(self._namesrv, self._config, self._given_instance) as instance:
            instance.groups.add_producer(self.group)
            self._next_id = UniqueIdGenerator(
                pack_ip(instance.client_ip), os.getpid(), randbits(32), lambda: time.time_ns() // 1_000_000
            ).next
            self._instance = instance
            try:
                yield
            finally:
                self._instance = None
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
        """Send a message and wait until a broker stored it.

        Without ``queue`` and ``selector`` queues take turns, and a failed try is repeated, on another broker if
        there is one.  A message whose answer got lost may then be stored twice, with the same ``message_id``.

        Args:
            message: what to send.
            queue: send to this queue, once.
            selector: choose the queue with this function, once; see ``select_by_hash``.
            key: what the selector goes by.

        Raises:
            MessageIllegalError: empty, too large, or properties too long.
            IllegalNameError: the topic's name.
            NoRouteError: no broker has the topic, and none creates it.
            BrokerResponseError: the broker refused.
            ConnectError, ConnectionLostError, RequestTimeoutError: no answer within the time and the tries.
        """
        self._entered()
        self._check_size(message)
        packed = None if len(message.body) < self._compress_over_bytes else await _compress(message.body)
        outgoing = self._prepare(message, packed)
        return await self._deliver(message.topic, outgoing, _choice(message, queue, selector, key))

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: object = None,
    ) -> None:
        """Send a message without waiting for the broker; whether it was stored is not known.

        Raises:
            MessageIllegalError, IllegalNameError, NoRouteError: as :meth:`send`.
            ConnectError, ConnectionLostError, RequestTimeoutError: it could not be written.
        """
        instance = self._entered()
        self._check_size(message)
        packed = None if len(message.body) < self._compress_over_bytes else await _compress(message.body)
        outgoing = self._prepare(message, packed)
        deadline = trio.current_time() + self._send_timeout_s
        plan = await self._plan_in_time(message.topic, deadline)
        target = (_choice(message, queue, selector, key) or TopicPlan.choose)(plan)
        connection = instance.requests.connections.get(target.address) or await self._connect(
            instance, target, deadline
        )
        credentials = instance.config.credentials
        frame, body = outgoing.frame(
            target, instance.requests.next_opaque(), connection.header_format, credentials, _ONEWAY
        )
        await connection.send(frame + body, deadline)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: object = None,
    ) -> list[SendResult]:
        """Send messages of one topic with few requests, in order; return one result for each request.

        They are split into batches below ``max_message_size_bytes``, sent one after the other.  If one fails, those
        before it are stored: the error carries a note that tells how many messages these are.

        Raises:
            MessageIllegalError: no message, different topics or ``wait_store_ok``, a delayed one, one too large.
            IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        topic = check_batch(messages)
        self._entered()
        for message in messages:
            self._check_size(message)
        wait = "true" if messages[0].wait_store_ok else "false"
        choose = _choice(messages[0], queue, selector, key)
        results: list[SendResult] = []
        stored = 0
        try:
            for batch in split_batch(messages, self._next_id, self._max_message_size_bytes):
                results.append(await self._deliver(topic, _batch(batch.body, batch.message_ids, wait), choose))
                stored = batch.end
        except TriomqError as exc:
            exc.add_note(f"send_batch: {stored} of {len(messages)} messages were stored before this")
            raise
        return results

    async def send_encoded_batch(self, topic: str, body: bytes) -> SendResult:
        """Send a batch that the caller encoded with ``protocol.batch``, unique ids and ``WAIT`` in the properties.

        Nothing of it is checked.  Queues take turns and a failed try is repeated, as in :meth:`send`.

        Returns:
            Where it was stored, without ``message_id``.

        Raises:
            IllegalNameError, NoRouteError, BrokerResponseError, ClientError: as :meth:`send`.
        """
        return await self._deliver(topic, _batch(body, "", "true"), None)

    async def publish_queues(self, topic: str) -> Queues:
        """Return the queues of a topic that can be sent to, sorted.

        Raises:
            IllegalNameError, NoRouteError: as :meth:`send`.
        """
        return (await self._plan(topic)).queues

    def _entered(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosedError("the producer is not open: use it inside its async with block")
        return self._instance

    def _check_size(self, message: Message) -> None:
        size = len(message.body)
        if not 0 < size <= self._max_message_size_bytes:
            raise MessageIllegalError(
                f"body of {size} bytes: must be 1 to {self._max_message_size_bytes} (max_message_size_bytes)"
            )

    def _prepare(self, message: Message, packed: bytes | None) -> Outgoing:
        """Make the request of a checked message, and give it its id."""
        unique_id = self._next_id()
        fields = {"g": _now(), "i": encode_message_properties(message, unique_id)}
        if message.flag:
            fields["h"] = str(message.flag)
        body = message.body
        if packed is not None and len(packed) < len(body):
            body = packed
            fields["f"] = _ZLIB
        return Outgoing(_SEND, body, unique_id, fields)

    async def _plan(self, topic: str) -> TopicPlan:
        """Return the plan of a topic, made anew if its route changed."""
        instance = self._entered()
        plan = self._plans.get(topic)
        if plan is not None and plan.route is (
            instance.routes.known(topic) or instance.routes.known(AUTO_CREATE_TOPIC)
        ):
            return plan
        check_topic(topic)
        route = await instance.routes.publish(topic)
        known = instance.routes.known(topic)
        if known is not route:  # it may have been made while its template was asked for: then this plan lasts one send
            known = instance.routes.known(AUTO_CREATE_TOPIC)
        plan = TopicPlan(self.group, topic, known, route)
        if not plan.broker_names:
            raise NoRouteError(
                f"topic {topic!r} has no queue that can be written: its permission or its brokers' forbids it, "
                "or their masters are away (triomq topic show tells)"
            )
        self._plans[topic] = plan
        return plan

    async def _plan_in_time(self, topic: str, deadline: float) -> TopicPlan:
        with trio.move_on_at(deadline):
            return await self._plan(topic)
        asked = ", ".join(self._entered().requests.name_servers.addresses)
        raise RequestTimeoutError(f"no route for topic {topic!r} in time; name servers: {asked}")

    async def _deliver(self, topic: str, outgoing: Outgoing, choose: Choice | None) -> SendResult:
        """Try until a broker stored it, the tries are used up or the time is over."""
        instance = self._entered()
        deadline = trio.current_time() + self._send_timeout_s
        tried: list[str] = []
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            plan = self._plans.get(topic)
            if plan is None or plan.route is not (
                instance.routes.known(topic) or instance.routes.known(AUTO_CREATE_TOPIC)
            ):
                plan = await self._plan_in_time(topic, deadline)
            if choose is not None:
                target = choose(plan)
            elif not tried:
                target = plan.choose()
            else:
                target = plan.choose_elsewhere(tried[-1])
            try:
                result = await self._try_once(instance, target, outgoing, deadline)
            except (ConnectError, ConnectionLostError, RequestTimeoutError, BrokerResponseError) as exc:
                tried.append(target.queue.broker_name)
                if not self._may_retry(exc, choose, len(tried), deadline):
                    if len(tried) > 1:
                        exc.add_note(f"tried {len(tried)} times: {', '.join(tried)}")
                    raise
                instance.routes.refresh(topic)
                if not isinstance(exc, BrokerResponseError) and len(plan.broker_names) == 1:
                    await _pause(len(tried), deadline)
                continue
            if result.status is SendStatus.SEND_OK or self._stored_is_enough or choose is not None:
                return result
            tried.append(target.queue.broker_name)
            if len(tried) >= self._tries or trio.current_time() >= deadline:
                return result

    def _may_retry(self, error: Exception, choose: Choice | None, tries: int, deadline: float) -> bool:
        if choose is not None or tries >= self._tries or trio.current_time() >= deadline:
            return False
        return not isinstance(error, BrokerResponseError) or error.code in _RETRY_CODES

    async def _try_once(
        self, instance: ClientInstance, target: Target, outgoing: Outgoing, deadline: float
    ) -> SendResult:
        connection = instance.requests.connections.get(target.address) or await self._connect(
            instance, target, deadline
        )
        opaque = instance.requests.next_opaque()
        frame, body = outgoing.frame(target, opaque, connection.header_format, instance.config.credentials)
        response = await connection.request(opaque, frame, deadline, body)
        status = STATUS_BY_CODE.get(response.code)
        if status is None:
            raise BrokerResponseError.from_response(response.code, response.remark, target.address)
        return read_send_result(status, outgoing.message_id, target.queue, response.ext_fields)

    async def _connect(self, instance: ClientInstance, target: Target, deadline: float) -> Connection:
        try:
            return await instance.requests.connections.connect(target.address, deadline)
        except ConnectError:
            if instance.routes.known(target.queue.topic) is None:  # the template's route is not polled
                instance.routes.refresh(AUTO_CREATE_TOPIC)
            raise


async def _compress(body: bytes) -> bytes:
    if len(body) > _THREAD_OVER_BYTES:
        return await trio.to_thread.run_sync(compress, body)
    return compress(body)


async def _pause(tries: int, deadline: float) -> None:
    """Give the only broker of a topic a moment before the next try: it may be starting again."""
    pause = _FIRST_PAUSE_S * 2 ** (tries - 1)
    await trio.sleep(max(0.0, min(pause, deadline - trio.current_time())))


def _batch(body: bytes, message_ids: str, wait: str) -> Outgoing:
    return Outgoing(_SEND_BATCH, body, message_ids, {"g": _now(), "i": f"WAIT\x01{wait}", "m": "true"})


def _now() -> str:
    return str(time.time_ns() // 1_000_000)


def _choice(message: Message, queue: MessageQueue | None, selector: QueueSelector | None, key: object) -> Choice | None:
    """Return how to choose the target, ``None``: queues take turns."""
    if selector is None:
        if queue is None:
            return None
        if queue.topic != message.topic:
            raise MessageIllegalError(f"queue {queue} is not one of the message's topic {message.topic!r}")
        return lambda plan: plan.find(queue)
    if queue is not None:
        raise MessageIllegalError("send: give a queue or a selector, not both")
    return lambda plan: plan.find(selector(plan.queues, message, key))
