"""Finding messages by key and id, and the history of a message from the records of clients that trace.

Brokers compare only hashes of keys, and each knows only its own messages, so a search filters and merges their answers.

Source: wire.md 5.3, 5.7, 7 and 8, behaviour.md A.15; MQAdminImpl.java.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from triomq.client.admin.base import BaseAdmin
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.requests import raise_for_code
from triomq.client.cluster.route import masters_of_route
from triomq.client.config import join_address
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import in_parallel
from triomq.protocol import trace as records
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ConnectError, ProtocolError, QueryNotFoundError, TriomqError
from triomq.protocol.message_queue import MessageQueue, PhysicalOffset, QueueOffset
from triomq.protocol.names import TRACE_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.requests.messages import QueryMessageRequestHeader, ViewMessageRequestHeader

END_OF_TIME_MS: Final = 2**63 - 1
"""The latest time of the protocol."""

LOGGER: Final = logging.getLogger("triomq.client.admin.messages")

_TIME_STEP_MS: Final = 1000
_MAX_OF_A_BROKER: Final = 64  # maxMsgsNumBatch
_MAX_UNIQUE_OF_A_BROKER: Final = 32  # defaultQueryMaxNum
_MAX_ROUNDS: Final = 100


class MessageAdmin(BaseAdmin):
    """Finds messages and their history."""

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
        if max_messages <= 0:
            raise ConfigError(f"max_messages: {max_messages} must be above 0")
        if not key or " " in key:
            raise ConfigError(f"key {key!r}: must be neither empty nor contain a space, which separates keys")
        masters = masters_of_route(await self.topic_route(topic))
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_ms, end_ms, unique)
        found: list[MessageExt] = []
        all_found = await in_parallel(lambda address: self._find_at(address, header), masters.values())
        for name, of_broker in zip(masters, all_found, strict=True):
            for message in of_broker:
                message.broker_name = name
            found += of_broker
        found.sort(key=lambda message: (message.store_timestamp, message.broker_name, message.physical_offset))
        return found[-max_messages:]

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
        try:
            host, port, place = parse_offset_message_id(message_id)
        except ProtocolError as exc:
            raise _not_found(f"{exc}; to find a message by its producer's id, name its topic") from exc
        try:
            return await self._view(join_address(host, port), place, message_id)
        except ConnectError as exc:
            unreachable = exc
        for address in (await self._masters()).values():
            with suppress(TriomqError):
                message = await self._view(address, place, message_id)
                if message.offset_message_id == message_id.upper():
                    return message
        raise unreachable

    async def trace(self, wanted: str, trace_topic: str = TRACE_TOPIC) -> list[dict[str, Any]]:
        """Return the steps of a message, or of all messages with a key, in the order of their times.

        Each has ``time_ms``, ``what``, ``message_id``, ``topic``, ``group``, ``client``, ``broker``, ``try``,
        ``took_milliseconds`` and ``result``; a value that is not known is ``None``.

        Args:
            wanted: id that the producer gave to the message, or a key.
            trace_topic: where clients store their records.

        Raises:
            NoRouteError: no broker has the trace topic.
        """
        return steps(records_about(await self.find_messages(trace_topic, wanted), wanted))

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the first message of a queue; 0 if the queue is unknown."""
        await self.topic_route(queue.topic)  # the broker may have moved
        return await QueueRequests(self._entered(), TOOLS_GROUP).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the next message of a queue; 0 if the queue is unknown."""
        await self.topic_route(queue.topic)  # the broker may have moved
        return await QueueRequests(self._entered(), TOOLS_GROUP).max_offset(queue)

    async def _find_at(self, address: str, header: QueryMessageRequestHeader) -> list[MessageExt]:
        """Return the newest messages with the key at one broker, and perhaps more.

        A broker returns its newest 64 messages whose keys have the hash, so while that many come and too few have the
        key, it is asked for earlier ones.  Its times are rounded down to seconds, so of a second only 64 messages can
        be read.  Triomq brokers compare the keys themselves.
        """
        most = _MAX_UNIQUE_OF_A_BROKER if header.unique_key_query else _MAX_OF_A_BROKER
        wanted = replace(header, begin_timestamp=max(header.begin_timestamp - _TIME_STEP_MS, 0), max_num=most)
        found: dict[int, MessageExt] = {}
        is_complete = True
        for _ in range(_MAX_ROUNDS):
            response = await self._requests.invoke(address, self._requests.command(RequestCode.QUERY_MESSAGE, wanted))
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                break
            messages = decode_records(raise_for_code(response, address).body)
            self._requests.namespace.unwrap_messages(messages)
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

    async def _view(self, address: str, offset: PhysicalOffset, message_id: str) -> MessageExt:
        """Return the message at a physical offset of the broker at an address.

        Raises:
            QueryNotFoundError: the broker has no message at this offset.
        """
        header = ViewMessageRequestHeader(offset)
        response = await self._requests.invoke(address, self._requests.command(RequestCode.VIEW_MESSAGE_BY_ID, header))
        if response.code == ResponseCode.SYSTEM_ERROR:  # the answer of brokers for a place without a message
            raise _not_found(f"broker {address} has no message with the id {message_id}: {response.remark}")
        message = decode_record(raise_for_code(response, address).body)
        self._requests.namespace.unwrap_messages((message,))
        message.broker_name = self._entered().brokers.addresses().get(address, ("", 0))[0]
        return message


def _matches(message: MessageExt, header: QueryMessageRequestHeader) -> bool:
    if message.topic != header.topic or not header.begin_timestamp <= message.store_timestamp <= header.end_timestamp:
        return False
    return message.unique_id == header.key if header.unique_key_query else header.key in message.keys


def _not_found(text: str) -> QueryNotFoundError:
    return QueryNotFoundError(int(ResponseCode.QUERY_NOT_FOUND), text)


# --- traces ---------------------------------------------------------------------------------------------------

#: By the code of a ``SubAfter`` record.
_RESULTS: Final = ("ok", "ok, late", "raised", "no status", "failed")
#: A row of which nothing is known.
_NO_STEP: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("time_ms", "what", "message_id", "topic", "group", "client", "broker", "try")),
    "took_milliseconds": None,
    "result": "",
}
_DECISIONS: Final = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}


class Traced(NamedTuple):
    """A record, and the address of the client that wrote it."""

    record: records.TraceRecord
    client: str


def records_about(messages: Iterable[MessageExt], wanted: str) -> list[Traced]:
    """Return the records about a message id or a key, each once, in the order of trace messages."""
    found: dict[records.TraceRecord, Traced] = {}
    for message in messages:
        for record in records.decode_trace(message.body):
            if record.message_id == wanted or wanted in getattr(record, "keys", "").split():
                host = getattr(record, "client_host", "") or message.born_host.rpartition(":")[0]
                found.setdefault(record, Traced(record, host))
    return list(found.values())


def steps(traced: Iterable[Traced]) -> list[dict[str, Any]]:
    """Return one row for each step: each call of a handler, begun and ended, is one."""
    traced = sorted(traced, key=lambda one: isinstance(one.record, records.ConsumeEnded))  # after the begin of its call
    topics = {record.message_id: record.topic for record, _ in traced if isinstance(record, records.Published)}
    calls: dict[tuple[str, str], dict[str, Any]] = {}
    rows = []
    for record, client in traced:
        row = {**_NO_STEP, "time_ms": record.time_ms or None, "message_id": record.message_id, "client": client}
        row |= {"group": record.group or None, "topic": topics.get(record.message_id)} | _step(record)
        if isinstance(record, records.ConsumeBegun):
            calls[record.request_id, record.message_id] = row
        if isinstance(record, records.ConsumeEnded) and (record.request_id, record.message_id) in calls:
            calls.pop((record.request_id, record.message_id)).update(_step(record))
        else:
            rows.append(row)
    return sorted(rows, key=lambda row: row["time_ms"] or 0)


def _step(record: records.TraceRecord) -> dict[str, Any]:
    """Return the members of a row that only this kind of record has."""
    if isinstance(record, records.ConsumeBegun):
        return {"what": "consumed", "try": record.retry_times + 1, "result": "not ended"}
    if isinstance(record, records.ConsumeEnded):
        is_known = 0 <= record.code < len(_RESULTS) and (record.is_success or record.code)
        result = _RESULTS[record.code] if is_known else "failed"
        return {"what": "consumed", "took_milliseconds": record.took_ms, "result": result}
    if isinstance(record, records.TransactionEnded):
        what = "decided after a check" if record.is_from_check else "decided"
        result = _DECISIONS.get(record.state, "unknown")
        return {"what": what, "topic": record.topic, "broker": record.store_host, "result": result}
    result = "ok" if record.is_success else "failed"
    if isinstance(record, records.Published):
        sent = {"what": "sent", "broker": record.store_host, "took_milliseconds": record.took_ms}
        return {**sent, "topic": record.topic, "result": result}
    return {"what": "recalled", "topic": record.topic, "result": result}
