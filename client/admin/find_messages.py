"""Finds messages on brokers by key, by the producer's id, or by place.

Brokers compare only hashes of keys, and each knows only its own messages, so their answers are filtered and merged.

Source: MQAdminImpl.java; wire.md 5.3, 5.7.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.requests import raise_for_code
from triomq.client.nursery import in_parallel
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError, QueryNotFoundError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.requests.messages import QueryMessageRequestHeader, ViewMessageRequestHeader

END_OF_TIME_MS: Final = 2**63 - 1
"""The latest time of the protocol."""

LOGGER: Final = logging.getLogger("triomq.client.admin.find_messages")

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
        found |= {message.physical_offset: message for message in messages if _is_meant(message, header)}
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
            *(address, header.topic, header.key),
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


def _is_meant(message: MessageExt, header: QueryMessageRequestHeader) -> bool:
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
