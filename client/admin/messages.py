"""Administration of messages: find, redrive, replay, and decide transactions.

Brokers compare only hashes of keys, and each knows only its own messages, so a search filters and merges their answers.

Source: wire.md 5.3, 5.7, 7 and 8, behaviour.md A.15; MQAdminImpl.java.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from triomq.client.admin import dead_letters, transactions
from triomq.client.admin.dead_letters import DeadLetter, DeadLetterCount, Redrive
from triomq.client.admin.replay import ReplayPlan, plan_replay, replay
from triomq.client.admin.transactions import UndecidedTransaction
from triomq.client.cluster.instance import ClientInstance, use_instance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.requests import raise_for_code
from triomq.client.cluster.route import masters_of_cluster, masters_of_route
from triomq.client.config import ClientConfig
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import OpenOnce, in_parallel
from triomq.client.producer.transaction import TransactionState
from triomq.protocol.bodies.route import (
    ClusterInfo,
    TopicRouteData,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ClientClosedError,
    ConfigError,
    ConnectError,
    NoBrokerError,
    ProtocolError,
    QueryNotFoundError,
    TriomqError,
)
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.requests.messages import QueryMessageRequestHeader, ViewMessageRequestHeader
from triomq.protocol.typed import checked
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header

END_OF_TIME_MS: Final = 2**63 - 1
"""The latest time of the protocol."""

LOGGER: Final = logging.getLogger("triomq.client.admin.messages")

_TIME_STEP_MS: Final = 1000
_MAX_OF_A_BROKER: Final = 64  # maxMsgsNumBatch
_MAX_UNIQUE_OF_A_BROKER: Final = 32  # defaultQueryMaxNum
_MAX_ROUNDS: Final = 100


async def find_by_key(
    instance: ClientInstance, brokers: Mapping[str, str], header: QueryMessageRequestHeader
) -> list[MessageExt]:
    """Return messages with the key in ``header``, oldest first.

    Args:
        instance: connections to use.
        brokers: addresses by name of the brokers to ask.
        header: the query; the newest ``max_num`` messages of all brokers are returned.

    Raises:
        BrokerResponseError: a broker rejected the query.
        ClientError: a broker was not reached.
        ProtocolError: an answer cannot be read.
        ConfigError: ``max_num`` is not above 0, or the key is empty or contains a space.
    """
    if header.max_num <= 0:
        raise ConfigError(f"max_messages: {header.max_num} must be above 0")
    if not header.key or " " in header.key:
        raise ConfigError(f"key {header.key!r}: must be neither empty nor contain a space, which separates keys")
    found: list[MessageExt] = []
    all_found = await in_parallel(lambda address: _find_at(instance, address, header), brokers.values())
    for name, of_broker in zip(brokers, all_found, strict=True):
        for message in of_broker:
            message.broker_name = name
        found += of_broker
    found.sort(key=_by_time)
    return found[-header.max_num :]


async def _find_at(instance: ClientInstance, address: str, header: QueryMessageRequestHeader) -> list[MessageExt]:
    """Return the newest messages with the key at one broker, and perhaps more.

    A broker returns its newest 64 messages whose keys have the hash, so while that many come and too few have the key,
    it is asked for earlier ones.  Its times are rounded down to seconds, so of a second only 64 messages can be read.
    Triomq brokers compare the keys themselves.
    """
    most = _MAX_UNIQUE_OF_A_BROKER if header.unique_key_query else _MAX_OF_A_BROKER
    wanted = replace(header, begin_timestamp=max(header.begin_timestamp - _TIME_STEP_MS, 0), max_num=most)
    found: dict[int, MessageExt] = {}
    is_complete = True
    for _ in range(_MAX_ROUNDS):
        messages = await _query(instance, address, wanted)
        found |= {message.physical_offset: message for message in messages if _matches(message, header)}
        if len(messages) < most or len(found) >= header.max_num:
            break
        earlier_ms = min(message.store_timestamp for message in messages)
        if earlier_ms >= wanted.end_timestamp:
            earlier_ms, is_complete = wanted.end_timestamp - _TIME_STEP_MS, False
        if earlier_ms < wanted.begin_timestamp:
            break
        wanted = replace(wanted, end_timestamp=earlier_ms)
    else:
        is_complete = False
    if not is_complete and len(found) < header.max_num:
        LOGGER.warning(
            "search is incomplete broker=%s topic=%s key=%s: too many messages have keys with the same hash; "
            "narrow the time range",
            address,
            header.topic,
            header.key,
        )
    return list(found.values())


async def _query(instance: ClientInstance, address: str, header: QueryMessageRequestHeader) -> list[MessageExt]:
    command = instance.requests.command(RequestCode.QUERY_MESSAGE, header)
    response = await instance.requests.invoke(address, command)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    messages = decode_records(raise_for_code(response, address).body)
    instance.requests.namespace.unwrap_messages(messages)
    return messages


def _matches(message: MessageExt, header: QueryMessageRequestHeader) -> bool:
    if message.topic != header.topic or not header.begin_timestamp <= message.store_timestamp <= header.end_timestamp:
        return False
    return message.unique_id == header.key if header.unique_key_query else header.key in message.keys


def _by_time(message: MessageExt) -> tuple[int, str, int]:
    return message.store_timestamp, message.broker_name, message.physical_offset


async def find_by_place(
    instance: ClientInstance, offset_message_id: str, brokers: Iterable[tuple[str, str]], address: str = ""
) -> MessageExt:
    """Return the message at the place in a commit log that the id names.

    Args:
        instance: connections to use.
        offset_message_id: contains a broker's address and a physical offset.
        brokers: known names and addresses.
        address: of the broker to ask; "": the one in the id.

    Raises:
        QueryNotFoundError: the text is not such an id, or the broker has no message there.
        BrokerResponseError, ClientError: the broker rejected the request, or was not reached.
    """
    try:
        host, port, offset = parse_offset_message_id(offset_message_id)
    except ProtocolError as exc:
        raise _not_found(f"{exc}; to find a message by its producer's id, name its topic") from exc
    address = address or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    command = instance.requests.command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset))
    response = await instance.requests.invoke(address, command)
    if response.code == ResponseCode.SYSTEM_ERROR:  # the answer of brokers for a place without a message
        raise _not_found(f"broker {address} has no message with the id {offset_message_id}: {response.remark}")
    message = decode_record(raise_for_code(response, address).body)
    instance.requests.namespace.unwrap_messages((message,))
    message.broker_name = next((name for name, known in brokers if known == address), "")
    return message


def _not_found(text: str) -> QueryNotFoundError:
    return QueryNotFoundError(int(ResponseCode.QUERY_NOT_FOUND), text)


class MessageAdmin(OpenOnce):
    """Requests about messages, and what all of administration needs."""

    @checked
    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """Take name servers or an instance to share; nothing is connected before it is entered."""
        self._use_instance = partial(use_instance, namesrv, config, instance)
        self._instance: ClientInstance | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with self._use_instance() as instance:
            self._instance = instance
            try:
                yield
            finally:
                self._instance = None

    async def cluster(self) -> ClusterInfo:
        """Return all brokers by cluster and name."""
        return await self._entered().routes.cluster()

    def _entered(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosedError("the admin is not open: use it inside its async with block")
        return self._instance

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the current route of a topic from the name server.

        Raises:
            NoRouteError: the topic does not exist; the text names similar topics.
        """
        return await self._entered().routes.topic_route(topic, refresh=True)

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        unique: bool = False,
    ) -> list[MessageExt]:
        """Return the newest messages of a topic with a key, oldest first; a broker returns at most 64.

        Args:
            topic: name of the topic.
            key: one of the messages' keys.
            max_messages: maximum number of messages.
            begin_ms: earliest store time.
            end_ms: latest store time.
            unique: ``key`` is the id that the producer gave to the message.

        Raises:
            NoRouteError: no broker has the topic.
            ConfigError: ``max_messages`` is not above 0, or ``key`` is empty or contains a space.
        """
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_ms, end_ms, unique)
        return await find_by_key(self._entered(), masters_of_route(await self.topic_route(topic)), header)

    async def message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Return one message.

        Args:
            message_id: the offset id, which names the place of the message; with ``topic`` also the producer's id.
            topic: topic in which the producer's id is looked up; the newest message with it is returned.

        If no broker answers at the address in an offset id, all brokers are asked: the broker may have moved.

        Raises:
            QueryNotFoundError: no message has this id.
            ConnectError: no broker answers at the address in the id, and no other broker has the message.
            NoRouteError: no broker has the topic.
        """
        if topic is not None and (found := await self.find_messages(topic, message_id, unique=True)):
            return found[-1]
        instance = self._entered()
        known = [(name, address) for address, (name, _) in instance.brokers.addresses().items()]
        try:
            return await find_by_place(instance, message_id, known)
        except ConnectError as exc:
            unreachable = exc
        for address in await self._masters():
            with suppress(TriomqError):
                message = await find_by_place(instance, message_id, known, address)
                if message.offset_message_id == message_id.upper():
                    return message
        raise unreachable

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the first message of a queue; 0 if the queue is unknown."""
        await self.topic_route(queue.topic)  # the broker may have moved
        return await QueueRequests(self._entered(), TOOLS_GROUP).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the next message of a queue; 0 if the queue is unknown."""
        await self.topic_route(queue.topic)  # the broker may have moved
        return await QueueRequests(self._entered(), TOOLS_GROUP).max_offset(queue)

    async def dead_letter_counts(self) -> list[DeadLetterCount]:
        """Return the number of dead letters of each group that ever had any, sorted by group."""
        return await dead_letters.count_dead_letters(self._entered())

    async def dead_letters(self, group: str, limit: int = 100) -> list[DeadLetter]:
        """Return the oldest dead letters of a group; none if the group is unknown.

        Raises:
            ClientError: their topic is not readable.
        """
        return await dead_letters.read_dead_letters(self._entered(), group, limit)

    async def redrive(
        self,
        group: str,
        *,
        limit: int | None = None,
        again: bool = False,
        dry_run: bool = False,
        on_sent: Callable[[MessageExt], None] = lambda _message: None,
    ) -> Redrive:
        """Send the dead letters of a group back to their original topics, oldest first.

        A cancelled call still records its progress; the message in flight may be sent twice.

        Args:
            group: name of the group.
            limit: maximum number of messages; ``None``: all.
            again: include those that were sent back before.
            dry_run: send nothing.
            on_sent: called with each message that was, or would be, sent back.

        Raises:
            NoRouteError: an original topic no longer exists; messages before this one were sent back.
            ClientError: the topic of the dead letters is not readable.
        """
        instance = self._entered()
        return await dead_letters.redrive(instance, group, limit=limit, again=again, dry_run=dry_run, on_sent=on_sent)

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
        return await plan_replay(self._entered(), await self._masters(), group, into, (begin, end), topics)

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
        return await replay(self._entered(), plan, speed, on_sent)

    async def transactions(self) -> list[UndecidedTransaction]:
        """Return the undecided transactions of all brokers, oldest first; Apache's brokers do not allow it."""
        return await transactions.read_transactions(self._entered())

    async def decide_transaction(self, transaction_id: str, state: TransactionState) -> None:
        """Commit or roll back an undecided transaction; ``UNKNOWN`` has a producer asked now.

        The id is that of the message, or the offset id of its half.  ``UNKNOWN`` also accepts one that was given up.

        Raises:
            ClientError: it is not undecided.
        """
        await transactions.decide_transaction(self._entered(), transaction_id, state)

    async def _ask(self, address: str, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return await self._entered().requests.ask(address, code, header, body)

    async def _ask_masters(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        cluster: str | None = None,
    ) -> list[RemotingCommand]:
        """Send a request to all masters (of a cluster); return their answers."""
        requests, masters = self._entered().requests, await self._masters(cluster)
        return await requests.ask_each(masters, code, header, body)

    async def _masters(self, cluster: str | None = None) -> list[str]:
        return list((await self._named_masters(cluster)).values())

    async def _named_masters(self, cluster: str | None = None) -> dict[str, str]:
        found = masters_of_cluster(await self.cluster(), cluster)
        if not found:
            current = self._entered().requests.name_servers.current
            raise NoBrokerError(f"name server {current} knows no running master broker")
        return found
