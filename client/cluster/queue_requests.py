"""The requests of consumers about their queues: pulls, offsets, members, locks.

A queue's broker is looked up in the known routes; if it is missing there, the route is requested once, and then the
list of all brokers.

Source: wire.md 5.2 (pull), 5.4 to 5.6 (offsets), 5.12 (members), 5.13 (locks).
"""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.pull import PullRequest, PullResult, PullStatus, RawPull
from triomq.client.cluster.requests import raise_for_code
from triomq.client.cluster.route import master_address
from triomq.client.environment import RANDOM
from triomq.protocol.bodies.client import (
    CheckClientRequestBody,
    ConsumerIdList,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from triomq.protocol.bodies.statistics import TopicOffset, TopicStatsTable
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import BrokerResponseError, ClientError, ConnectError, NoRouteError, QueryNotFoundError
from triomq.protocol.event_log import EventLog
from triomq.protocol.filters.filter_types import TAG
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp
from triomq.protocol.record.compression import DEFAULT_MAX_BODY_BYTES
from triomq.protocol.record.record import decode_records
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader
from triomq.protocol.requests.messages import PullMessageResponseHeader
from triomq.protocol.requests.offsets import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from triomq.protocol.requests.topics import TopicRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header

LOGGER: Final = logging.getLogger("triomq.client.cluster.queue_requests")

#: Margin of the client's timeout over the broker's hold of a pull: brokers check held pulls every 5 s.
HOLD_MARGIN_S: Final = 10.0
_SHARED_ID: Final = (
    "client id is used by several consumers of the group, which take the same queues: give each its own instance_name, "
    "or none group=%s clients=%s"
)
_VERSION_5_0_0: Final = 413  # wire.md 2.5
_OFFSET_ENTRY: Final = re.compile(rb'(?<!\d)(\d{1,10}+)"?\s*+:\s*+-?\d')


_STATUSES: Final = {status.value: status for status in PullStatus}


class Members(NamedTuple):
    """The client ids of a group's members, and the name of the broker that listed them."""

    broker_name: str
    client_ids: list[str]


class QueueRequests:
    """The requests of one group.

    All methods raise one of :data:`REMOTE_ERRORS`: ``ClientError`` if the broker cannot be found or reached or
    does not answer, ``BrokerResponseError`` if it answers with an error, ``ProtocolError`` if that is unreadable.

    Attributes:
        instance: sends them.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.instance = instance
        self._group = group
        self._shared_id = EventLog(LOGGER, _SHARED_ID, logging.WARNING)

    async def pull(self, queue: MessageQueue, pull: PullRequest) -> PullResult:
        """Pull messages and decode them."""
        raw = await self.pull_raw(queue, pull)
        messages = decode_records(raw.body)
        self.instance.requests.namespace.unwrap_messages(messages)
        max_body_bytes = self.instance.config.max_body_bytes
        if max_body_bytes != DEFAULT_MAX_BODY_BYTES:
            for message in messages:
                message.max_body_bytes = max_body_bytes
        return PullResult(
            raw.status, messages, raw.next_begin_offset, raw.min_offset, raw.max_offset, raw.suggested_broker_id
        )

    async def pull_raw(self, queue: MessageQueue, pull: PullRequest) -> RawPull:
        """Pull messages and return them as bytes.

        Raises:
            BrokerResponseError: any code but those of :class:`PullStatus`.
            ProtocolError: the answer cannot be decoded.
        """
        address = await self._address(queue, pull.broker_id)
        timeout_s = pull.timeout_s
        if timeout_s is None:
            hold_s = pull.suspend_s + HOLD_MARGIN_S if pull.suspend_s > 0 else 0.0
            timeout_s = self.instance.config.api_timeout_s + hold_s
        command = self.instance.requests.command(RequestCode.PULL_MESSAGE, pull.header(self._group, queue))
        response = await self._invoke(queue, address, command, timeout_s)
        status = _STATUSES.get(response.code)
        if status is None:
            raise BrokerResponseError.from_response(response.code, response.remark, address, response.ext_fields)
        answer = PullMessageResponseHeader.decode(response.ext_fields)
        return RawPull(
            pull.queue_offset,
            status,
            response.body if status is PullStatus.FOUND else b"",
            answer.next_begin_offset,
            answer.min_offset,
            answer.max_offset,
            answer.suggest_which_broker_id,
            status is not PullStatus.FOUND and address != self.instance.brokers.find(queue.broker_name, 0, True),
        )

    def keeper(self, queue: MessageQueue) -> str | None:
        """Return the address of the broker that stores the group's offset now; a slave if the master is away."""
        return self.instance.brokers.find(queue.broker_name)

    def is_at_slave(self, queue: MessageQueue, broker_id: int) -> bool:
        """Whether a pull of this broker id may go to a slave: it stores no offset that comes with a pull."""
        return bool(broker_id) or self.keeper(queue) != self.instance.brokers.find(queue.broker_name, only_this=True)

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the queue's first message."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, _place_of(queue))

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset that the queue's next message will get."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, _place_of(queue))

    async def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, TopicOffset]:
        """Return first and next offset of all queues that a broker has of a topic (request 202).

        Only the master is asked: a slave may be behind it.
        """
        queue, header = MessageQueue(topic, broker_name, 0), TopicRequestHeader(topic)
        response = await self._ask(queue, RequestCode.GET_TOPIC_STATS_INFO, header, only_this=True)
        return TopicStatsTable.decode(response.body).offset_table

    async def search_offset(self, queue: MessageQueue, timestamp: Timestamp) -> QueueOffset:
        """Return the offset of the message stored nearest to a time; it may lie before it (wire.md 5.6)."""
        header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamp)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def earliest_store_time(self, queue: MessageQueue) -> Timestamp | None:
        """Return when the queue's first message was stored, ``None`` for an empty queue."""
        response = await self._ask(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, _place_of(queue))
        timestamp = TimestampResponseHeader.decode(response.ext_fields).timestamp
        return None if timestamp < 0 else Timestamp(timestamp)

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the group's stored offset, ``None`` without one.

        A broker older than 5.0 may return 0 instead (wire.md 5.4).
        """
        header = QueryConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        try:
            return await self._offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except QueryNotFoundError:
            return None

    async def commit(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Store the group's offset and wait until the broker has it."""
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, self._update(queue, queue_offset))

    async def commit_oneway(self, queue: MessageQueue, queue_offset: QueueOffset) -> None:
        """Store the group's offset, without an answer."""
        command = self.instance.requests.command(RequestCode.UPDATE_CONSUMER_OFFSET, self._update(queue, queue_offset))
        await self.instance.requests.oneway(await self._address(queue), command)

    async def stored_queue_ids(self, queue: MessageQueue) -> frozenset[int]:
        """Return the queue ids of a queue's topic on its broker for which the group has an offset stored.

        Requests the broker's whole table, the only exact answer of brokers before 5.0.
        """
        address = await self._address(queue)
        response = await self.instance.requests.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        wrap = self.instance.requests.namespace.wrap
        return offset_entries(bytes(response.body), wrap(queue.topic), wrap(self._group))

    async def lock(self, queues: Sequence[MessageQueue], timeout_s: float) -> frozenset[MessageQueue]:
        """Request the locks of queues from their broker's master; return those that this client has now."""
        response = await self._ask_locks(RequestCode.LOCK_BATCH_MQ, queues, timeout_s)
        return frozenset(LockBatchResponseBody.decode(response.body).lock_ok_mq_set)

    async def unlock(self, queues: Sequence[MessageQueue], timeout_s: float) -> None:
        """Release the locks of a broker's queues."""
        await self._ask_locks(RequestCode.UNLOCK_BATCH_MQ, queues, timeout_s)

    async def check_filter(self, subscription: SubscriptionData) -> None:
        """Ask a broker of the topic, if one is known, whether it supports a filter other than tags.

        Raises:
            BrokerResponseError: it does not.
        """
        instance = self.instance
        route = None if subscription.expression_type == TAG else await instance.routes.find(subscription.topic)
        addresses = (instance.brokers.find(broker.broker_name) for broker in (route.broker_datas if route else ()))
        address = next(filter(None, addresses), None)
        if address is None:
            return
        body = CheckClientRequestBody(instance.client_id, self._group, subscription).encode()
        with suppress(ClientError):  # pulls will fail with the same error
            await instance.requests.ask(address, RequestCode.CHECK_CLIENT_CONFIG, body=body)

    async def _ask_locks(self, code: RequestCode, queues: Sequence[MessageQueue], timeout_s: float) -> RemotingCommand:
        instance = self.instance
        address = master_address(instance.brokers, queues[0].broker_name)
        body = LockBatchRequestBody(instance.client_id, self._group, list(queues), ends_with_connection=True).encode()
        connections = instance.requests.lock_connections
        return await instance.requests.ask(address, code, body=body, timeout_s=timeout_s, connections=connections)

    async def members(self, topic: str) -> Members:
        """Return the group's members, from one of the topic's brokers.

        Raises:
            ClientError: none of the brokers answered.
            BrokerResponseError: the last asked knows no member.
        """
        instance = self.instance
        route = instance.routes.known(topic)
        names = [] if route is None else sorted({broker.broker_name for broker in route.broker_datas})
        error: ClientError | BrokerResponseError = NoRouteError(f"no broker is known for topic {topic!r}")
        for name in RANDOM.sample(names, len(names)):
            address = instance.brokers.find(name)
            if address is None:
                continue
            code, header = RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader(self._group)
            try:
                response = await instance.requests.ask(address, code, header)
            except (ClientError, BrokerResponseError) as exc:
                error = exc
            else:
                if f"{instance.client_id} at " in (response.remark or ""):  # only triomq's brokers name such ids
                    self._shared_id.occurred(self._group, response.remark)
                return Members(name, ConsumerIdList.decode(response.body).consumer_id_list)
        raise error

    def is_exact(self, queue: MessageQueue) -> bool:
        """Whether the queue's broker is known to distinguish a stored offset 0 from none (5.0 and later)."""
        address = self.keeper(queue)
        return address is not None and self.instance.groups.broker_versions.get(address, 0) >= _VERSION_5_0_0

    def _update(self, queue: MessageQueue, queue_offset: QueueOffset) -> UpdateConsumerOffsetRequestHeader:
        return UpdateConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id, queue_offset)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> QueueOffset:
        return OffsetResponseHeader.decode((await self._ask(queue, code, header)).ext_fields).offset

    async def _ask(
        self, queue: MessageQueue, code: RequestCode, header: Header, *, only_this: bool = False
    ) -> RemotingCommand:
        address = await self._address(queue, only_this=only_this)
        return raise_for_code(await self._invoke(queue, address, self.instance.requests.command(code, header)), address)

    async def _invoke(
        self, queue: MessageQueue, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        try:
            return await self.instance.requests.invoke(address, command, timeout_s)
        except ConnectError:
            # The broker may have moved; routes of a group's topics are polled, so that a restart moves no queue.
            self.instance.routes.refresh_unpolled(queue.topic)
            raise

    async def _address(self, queue: MessageQueue, broker_id: int = 0, *, only_this: bool = False) -> str:
        """Return the broker's address; of another one of its name if that id is missing, unless ``only_this``."""
        instance = self.instance
        address = instance.brokers.find(queue.broker_name, broker_id, only_this)
        if address is None:
            await instance.routes.find(queue.topic, refresh=True)
            address = instance.brokers.find(queue.broker_name, broker_id, only_this)
            if address is None:  # the topic may be deleted: only the broker can say so
                registered = (await instance.routes.cluster()).broker_addr_table.get(queue.broker_name)
                address = None if registered is None else registered.broker_addrs.get(broker_id)
            if address is None:
                asked = ", ".join(instance.requests.name_servers.addresses)
                raise NoRouteError(
                    f"queue {queue}: its broker is in no known route (name servers: {asked}); is the broker running?"
                )
        return address


def _place_of(queue: MessageQueue) -> QueueRequestHeader:
    return QueueRequestHeader(queue.topic, queue.queue_id)


def offset_entries(body: bytes, topic: str, group: str) -> frozenset[int]:
    """Return the queue ids of one topic and group in a broker's whole offset table (request 43).

    The table can have megabytes, and its keys may be unquoted numbers: only the wanted part is parsed.
    """
    start = body.find(f'"{topic}@{group}":'.encode())
    if start < 0:
        return frozenset()
    end = body.find(b"}", start)
    entries = body[body.find(b"{", start) : end]
    return frozenset(int(queue_id) for queue_id in _OFFSET_ENTRY.findall(entries))
