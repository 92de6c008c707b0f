"""Finds messages on brokers by key, by the producer's id, or by place.

Brokers compare only hashes of keys, and each knows only its own messages, so their answers are filtered and merged.

Source: MQAdminImpl.java; wire.md 5.3, 5.7.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.requests import raise_for_code
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError, QueryNotFoundError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.record import decode_record, decode_records
from triomq.protocol.requests.messages import QueryMessageRequestHeader, ViewMessageRequestHeader

END_OF_TIME_MS: Final = 2**63 - 1
"""The latest time of the protocol."""

_TIME_STEP_MS: Final = 1000
_MAX_OF_A_BROKER: Final = 64  # maxMsgsNumBatch


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
    # Brokers round times to seconds and compare hashes: unwanted results must not displace wanted ones.
    begin_ms = max(header.begin_timestamp - _TIME_STEP_MS, 0)
    wider = replace(header, begin_timestamp=begin_ms, max_num=max(header.max_num, _MAX_OF_A_BROKER))
    for name, address in brokers.items():
        response = await instance.requests.invoke(address, instance.requests.command(RequestCode.QUERY_MESSAGE, wider))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            continue
        messages = decode_records(raise_for_code(response, address).body)
        instance.requests.namespace.unwrap_messages(messages)
        for message in messages:
            message.broker_name = name
        found += filter(lambda message: _is_meant(message, header), messages)
    found.sort(key=_by_time)
    return found[-header.max_num :]


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
