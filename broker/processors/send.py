"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): the hot path of producers.

Source: behaviour.md A.3; SendMessageProcessor.java.
"""

import random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from triomq.broker.network.refusal import RequestRefusedError
from triomq.broker.processors.retries import ensure_dead_letter_topic, retry_limit
from triomq.protocol.bodies.route import TopicConfig, TopicFilterType
from triomq.protocol.codes import TRANSACTION_MASK, MessageSysFlag, ResponseCode
from triomq.protocol.errors import MessageIllegalError
from triomq.protocol.names import FORBIDDEN_TOPICS, RETRY_PREFIX
from triomq.protocol.record.batch import decode_batch
from triomq.protocol.record.message_id import offset_message_id
from triomq.protocol.record.properties import (
    MAX_PROPERTIES_BYTES,
    append_property,
    get_property,
    remove_property,
    set_property,
)
from triomq.protocol.record.record import tags_code_of
from triomq.protocol.requests.requests import SendMessageRequestHeader, SendMessageRequestHeaderV2
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import entry
from triomq.storage.delay_levels import requested_level
from triomq.storage.dispatch import WITHOUT_UNIT
from triomq.storage.timer_times import requested_time, without_request

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.storage.consume_queue.consume_queue import ConsumeQueue

SendHeader: TypeAlias = SendMessageRequestHeader | SendMessageRequestHeaderV2

_CLUSTER: Final = b"CLUSTER"
_WAIT: Final = b"WAIT"
_DELAY: Final = b"DELAY"


class _Delay(NamedTuple):
    """How long a message shall wait: a delay level, or else a time, ms; both 0: not at all."""

    level: int = 0
    due_ms: int = 0


_AT_ONCE: Final = _Delay()


def send_message(connection: "Connection", command: RemotingCommand) -> RemotingCommand | None:
    """Store one message or a batch; code 10 with the long names."""
    return _send(connection, command, SendMessageRequestHeader.decode(command.ext_fields))


def send_message_v2(connection: "Connection", command: RemotingCommand) -> RemotingCommand | None:
    """Store one message or a batch; codes 310 and 320 with the one-letter names."""
    return _send(connection, command, SendMessageRequestHeaderV2.decode(command.ext_fields))


def _send(connection: "Connection", command: RemotingCommand, header: SendHeader) -> RemotingCommand | None:
    broker = connection.broker
    topic = header.topic
    if topic in FORBIDDEN_TOPICS:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] is forbidden for clients")
    config = broker.topics.get(topic) or _create_topic(connection, header)
    queue_id = _choose_queue(config, header.queue_id)
    if config.topic_filter_type is TopicFilterType.MULTI_TAG:
        header.sys_flag |= MessageSysFlag.MULTI_TAGS
    queue = broker.store.queue(topic, queue_id)
    store = _store_batch if header.batch else _store_one
    msg_id, queue_offset, wants_flush = store(connection, command, header, queue)
    response = RemotingCommand(
        ResponseCode.SUCCESS,
        command.opaque,
        1,
        {
            "MSG_REGION": broker.config.region,
            "TRACE_ON": "true",
            "msgId": msg_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        },
        serialize_type=command.serialize_type,
    )
    if broker.group_commit is not None:
        if wants_flush and not command.is_oneway:
            broker.group_commit.defer(connection, response.encode())
            return None
        broker.group_commit.wake()
    return response


def _create_topic(connection: "Connection", header: SendHeader) -> TopicConfig:
    config = connection.broker.topics.create_by_sending(
        header.topic, header.default_topic, header.default_topic_queue_nums
    )
    if config is None:
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
    return config


def _choose_queue(config: TopicConfig, queue_id: int) -> int:
    """Check the queue that the sender names, or choose one if it names none.

    The topic's write permission is not checked, as in RocketMQ: clients keep off such queues by the route.
    """
    if queue_id < 0:
        if config.write_queue_nums <= 0:
            raise RequestRefusedError(
                ResponseCode.NO_PERMISSION, f"topic[{config.topic_name}] has no queue to write to"
            )
        return random.randrange(config.write_queue_nums)  # noqa: S311  # spreads load, protects nothing
    if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"request queueId[{queue_id}] is illegal")
    return queue_id


def _store_one(
    connection: "Connection", command: RemotingCommand, header: SendHeader, queue: "ConsumeQueue"
) -> tuple[str, int, bool]:
    broker = connection.broker
    properties = (header.properties or "").encode()
    wait: bytes | None = None
    if b"WAIT\x01" in properties:
        wait = get_property(properties, _WAIT)
        properties = remove_property(properties, _WAIT)
    delay = _AT_ONCE
    if b"DELAY\x01" in properties or b"TRAN_MSG\x01" in properties or b"TIMER_DEL" in properties:
        delay = _delay(connection, properties, header)
    if header.topic.startswith(RETRY_PREFIX) and _is_dead(connection, command, header):
        group = header.topic.removeprefix(RETRY_PREFIX)
        queue = broker.store.queue(ensure_dead_letter_topic(broker.topics, group), 0)
        properties = set_property(properties, _DELAY, b"0")
        delay = _AT_ONCE
    properties = append_property(properties, _CLUSTER, broker.cluster_name)
    if delay is not _AT_ONCE:
        if wait is not None:
            properties = append_property(properties, _WAIT, wait)
        if delay.level:
            properties = without_request(properties)
    message = entry(
        queue,
        bytes(command.body),
        properties,
        tags_code=tags_code_of(properties),
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=connection.peer_host,
        store_host=connection.store_host,
        reconsume_times=header.reconsume_times or 0,
    )
    if delay.level:
        place = broker.schedule.put(delay.level, message)
    elif delay is not _AT_ONCE:
        place = broker.timer.put(delay.due_ms, message)
    else:
        (place,) = broker.store.append([message])
        broker.statistics.put(queue.topic, 1, len(command.body))
    return offset_message_id(connection.store_host, place[0]), place[1], wait != b"false"


def _store_batch(
    connection: "Connection", command: RemotingCommand, header: SendHeader, queue: "ConsumeQueue"
) -> tuple[str, int, bool]:
    broker = connection.broker
    if header.sys_flag & TRANSACTION_MASK:
        raise MessageIllegalError("a batch cannot be part of a transaction")
    common = (header.properties or "").encode()
    if get_property(common, _DELAY) is not None or without_request(common) != common:
        raise MessageIllegalError("a batch cannot be delayed")
    if len(command.body) > broker.config.store.max_message_size_bytes:
        raise MessageIllegalError(
            f"batch of {len(command.body)} bytes is above maxMessageSize {broker.config.store.max_message_size_bytes}"
        )
    # A 5.x producer names the batch as a whole; each message keeps its own name (wire.md 10.7).
    waits = get_property(common, _WAIT) != b"false"
    common = append_property(remove_property(common, b"UNIQ_KEY"), _CLUSTER, broker.cluster_name)
    entries = []
    for flag, body, own in decode_batch(command.body):
        if b"TIMER_DEL" in own and without_request(own) != own:
            raise MessageIllegalError("a message of a batch cannot be delayed")
        properties = _join(own, common)
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise MessageIllegalError(f"properties of {len(properties)} bytes are above {MAX_PROPERTIES_BYTES}")
        entries.append(
            entry(
                queue,
                body,
                properties,
                tags_code=tags_code_of(properties),
                flag=flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=connection.peer_host,
                store_host=connection.store_host,
            )
        )
    if not entries:
        raise MessageIllegalError("the batch holds no message")
    places = broker.store.append(entries)
    broker.statistics.put(queue.topic, len(entries), len(command.body))
    ids = ",".join(offset_message_id(connection.store_host, physical_offset) for physical_offset, _ in places)
    return ids, places[0][1], waits


def _join(own: bytes, common: bytes) -> bytes:
    if not own:
        return common
    return own + common if own.endswith(b"\x02") else own + b"\x02" + common


def _delay(connection: "Connection", properties: bytes, header: SendHeader) -> _Delay:
    """Return how long the message shall wait; a delay level counts before a time.

    Raises:
        MessageIllegalError: level or time is no number, the time is too far away, or the message takes another back,
            which this version cannot do.
        RequestRefusedError: it is the first half of a transaction, which this version cannot do.
    """
    level = requested_level(properties)
    # Clients before 4.6.1 leave the mark on messages that they send to a retry topic.
    is_retry = level > 0 and (header.reconsume_times or 0) > 0
    if get_property(properties, b"TRAN_MSG") == b"true" and not is_retry:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, "transactional messages are not available yet")
    if header.sys_flag & TRANSACTION_MASK in WITHOUT_UNIT:
        return _AT_ONCE
    if level:
        return _Delay(level)
    broker = connection.broker
    now_ms = broker.clock_ms()
    due_ms = requested_time(properties, now_ms)
    if due_ms is None:
        return _AT_ONCE
    if get_property(properties, b"TIMER_DEL_UNIQKEY") is not None:
        raise MessageIllegalError("taking back a message that waits (TIMER_DEL_UNIQKEY) is not available")
    broker.timer.check(due_ms, now_ms)
    return _Delay(due_ms=due_ms) if due_ms > now_ms else _AT_ONCE


def _is_dead(connection: "Connection", command: RemotingCommand, header: SendHeader) -> bool:
    """Whether a message for a retry topic has been tried as often as its group wants.

    Raises:
        RequestRefusedError: there is no such group, and none may be made.
    """
    name = header.topic.removeprefix(RETRY_PREFIX)
    group = connection.broker.subscription_groups.get_or_create(name)
    if group is None:
        raise RequestRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
    return (header.reconsume_times or 0) >= retry_limit(group, header.max_reconsume_times, command.version)
