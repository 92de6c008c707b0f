"""Requests that brokers send to a client, and the interface of consumers that answers them.

Brokers send them where they got a heartbeat.  On other connections, such as those to name servers, they are ignored.

One of them carries the reply of a consumer to a request of this client; callers wait for it by correlation id.

Source: wire.md 6, behaviour.md A.8, B.2; ClientRemotingProcessor.java, RequestFutureHolder.java.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeAlias

import trio

from triomq.client.connection.connection import ClientConnection
from triomq.protocol.bodies.client import ConsumerData, GetConsumerStatusBody, ResetOffsetBody
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.event_log import EventLog
from triomq.protocol.host import encode_host
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.namespace import Namespace
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.record.record import decode_record, encode_record
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, GetConsumerRunningInfoRequestHeader
from triomq.protocol.requests.messages import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyRequestHeader,
    PushReplyMessageRequestHeader,
)
from triomq.protocol.requests.offsets import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.client.connection.broker_requests")

#: Concurrent direct consumptions; a broker gives up on each after 10 s.
_MAX_DIRECT: Final = 16


class ConsumerCallbacks(Protocol):
    """What an instance needs of a consumer; called in the trio thread, so none of them may block."""

    def heartbeat_data(self) -> ConsumerData:
        """Return this consumer's part of the next heartbeat."""

    def subscribed_topics(self) -> Collection[str]:
        """Return the topics whose routes to poll."""

    def route_changed(self, topic: str) -> None:
        """The queues of a subscribed topic have changed."""

    def connection_lost(self, address: str) -> None:
        """The connection to a broker has ended; its pending requests have failed."""

    def members_changed(self) -> None:
        """A member joined, left or changed its subscriptions (request 40)."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from these offsets (request 220); the work belongs in a task of the consumer."""

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets in memory (request 221)."""

    def running_info(self) -> bytes:
        """Return the body of ConsumerRunningInfo (request 307)."""

    async def consume_directly(self, message: MessageExt, broker_name: str) -> bytes:
        """Run the handler on the message now; return a ConsumeMessageDirectlyResult body (request 309)."""


TransactionChecker: TypeAlias = Callable[[str, CheckTransactionStateRequestHeader, MessageExt], None]
"""Takes a broker's address, its request (39) and the message; called in the trio thread, so it may not block."""


class PendingReply:
    """A reply that a caller waits for.

    Attributes:
        message: the reply, once it has arrived.
        arrived: set then.
    """

    __slots__ = ("arrived", "message")

    def __init__(self) -> None:
        self.message: MessageExt | None = None
        self.arrived = trio.Event()


class RequestServer:
    """Answers the brokers' requests of one instance."""

    def __init__(
        self,
        consumers: Mapping[str, ConsumerCallbacks],
        checkers: Mapping[str, TransactionChecker],
        replies: Mapping[str, PendingReply],
        nursery: trio.Nursery,
        namespace: Namespace,
    ) -> None:
        """Take consumers and checkers by group, the pending replies, a nursery for tasks, and the prefix of names."""
        self._namespace = namespace
        self._replies = replies
        self._consumers = consumers
        self._checkers = checkers
        self._nursery = nursery
        self._direct = 0
        self._log = EventLog(LOGGER, "requests dropped, the peer does not read answers peer=%s", logging.WARNING)
        self._ignored_log = EventLog(LOGGER, "requests ignored, no broker sent them peer=%s code=%d", logging.WARNING)
        self._handlers: Mapping[int, Callable[[ClientConnection, RemotingCommand], RemotingCommand | None]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take_reply,
        }

    def serve(self, connection: ClientConnection, command: RemotingCommand) -> None:
        """Answer a broker's request; a malformed one is refused and logged.  One that does not read gets no answer."""
        if connection.is_full and not command.is_oneway:
            self._log.occurred(connection.address, key=connection.address)
            return  # its answer would only take memory, too
        handler = self._handlers.get(command.code)
        if not connection.is_broker:
            self._ignored_log.occurred(connection.address, command.code, key=connection.address)
            handler = None
        if self._namespace:
            command.ext_fields = self._namespace.unwrap_fields(command.ext_fields)
        answer: RemotingCommand | None
        if handler is None:
            remark = f"request type {command.code} not supported"
            answer = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        else:
            try:
                answer = handler(connection, command)
            except ProtocolError as exc:
                LOGGER.warning("request refused peer=%s code=%d error=%s", connection.address, command.code, exc)
                answer = command.reply(ResponseCode.SYSTEM_ERROR, remark=str(exc))
        if answer is not None and not command.is_oneway:
            if self._namespace and handler is not None:
                answer.body = self._namespace.wrap_json(bytes(answer.body))
            connection.post(answer.encode())

    def _members_changed(self, _connection: ClientConnection, command: RemotingCommand) -> None:
        consumer = self._consumers.get(ConsumerGroupRequestHeader.decode(command.ext_fields).consumer_group)
        if consumer is not None:
            consumer.members_changed()

    def _reset_offsets(self, _connection: ClientConnection, command: RemotingCommand) -> None:
        header = ResetOffsetRequestHeader.decode(command.ext_fields)
        offsets = ResetOffsetBody.decode(self._namespace.unwrap_json(bytes(command.body))).offset_table
        if (consumer := self._consumers.get(header.group)) is not None:
            LOGGER.info("offset reset group=%s topic=%s queues=%d", header.group, header.topic, len(offsets))
            consumer.reset_offsets(header.topic, offsets)

    def _consumer_status(self, _connection: ClientConnection, command: RemotingCommand) -> RemotingCommand:
        header = GetConsumerStatusRequestHeader.decode(command.ext_fields)
        consumer = self._consumers.get(header.group)
        offsets = {} if consumer is None else consumer.consumer_status(header.topic)
        return command.reply(body=GetConsumerStatusBody(dict(offsets)).encode())

    def _running_info(self, _connection: ClientConnection, command: RemotingCommand) -> RemotingCommand:
        header = GetConsumerRunningInfoRequestHeader.decode(command.ext_fields)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return _unknown_group(command, header.consumer_group)
        return command.reply(body=consumer.running_info())

    def _consume_directly(self, connection: ClientConnection, command: RemotingCommand) -> RemotingCommand | None:
        """Consume the message in a task, which answers."""
        header = ConsumeMessageDirectlyRequestHeader.decode(command.ext_fields)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return _unknown_group(command, header.consumer_group)
        message = decode_record(command.body)
        message.broker_name = header.broker_name or ""
        self._namespace.unwrap_messages((message,))
        if self._direct >= _MAX_DIRECT:
            return command.reply(ResponseCode.SYSTEM_BUSY, remark=f"{_MAX_DIRECT} messages are being consumed directly")
        self._direct += 1

        async def run() -> None:
            try:
                body = await consumer.consume_directly(message, message.broker_name)
            finally:
                self._direct -= 1
            connection.post(command.reply(body=body).encode())

        self._nursery.start_soon(run)
        return None

    def _check_transaction(self, connection: ClientConnection, command: RemotingCommand) -> None:
        header = CheckTransactionStateRequestHeader.decode(command.ext_fields)
        message = decode_record(command.body)
        self._namespace.unwrap_messages((message,))
        group = self._namespace.unwrap(message.properties.get(PropertyName.PRODUCER_GROUP, ""))
        if (checker := self._checkers.get(group)) is None:
            LOGGER.warning("check of a transaction ignored, the group is not on this client group=%s", group)
        else:
            checker(connection.address, header, message)

    def _take_reply(self, _connection: ClientConnection, command: RemotingCommand) -> RemotingCommand:
        """Hand a reply to its caller as if it had been pulled; it has no place in a queue."""
        header = PushReplyMessageRequestHeader.decode(command.ext_fields)
        record = encode_record(
            queue_id=header.queue_id,
            queue_offset=0,
            physical_offset=0,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_host(header.store_host),
            body=bytes(command.body),
            topic=header.topic.encode(),
            properties=(header.properties or "").encode(),
            flag=header.flag,
            reconsume_times=header.reconsume_times or 0,
        )
        message = decode_record(record)
        correlation_id = message.properties.get(PropertyName.CORRELATION_ID, "")
        if (pending := self._replies.get(correlation_id)) is None:
            LOGGER.warning(
                "reply dropped, its request has timed out or is unknown correlation_id=%s from=%s",
                correlation_id,
                header.born_host,
            )
        else:
            pending.message = message
            pending.arrived.set()
        return command.reply()


def _unknown_group(command: RemotingCommand, group: str) -> RemotingCommand:
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer")


def _host(text: str) -> bytes:
    """Encode ``/ip:port`` or ``ip:port``; brokers write both."""
    host, _, port = text.removeprefix("/").rpartition(":")
    try:
        return encode_host(host.strip("[]"), int(port))
    except (ValueError, ProtocolError):  # a name, or nothing
        return encode_host("0.0.0.0", 0)  # noqa: S104  # an unknown address
