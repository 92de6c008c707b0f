"""CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not handle comes again later, or is a dead letter.

Source: behaviour.md A.7, store.md 8.5; AbstractSendMessageProcessor.java.
"""

import random
from typing import TYPE_CHECKING, Final, NamedTuple

from triomq.broker.network.refusal import RequestRefusedError, remark_of
from triomq.broker.processors.retries import ensure_dead_letter_topic, retry_limit
from triomq.broker.pulls.lookups import in_steps
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.codes import Permission, ResponseCode
from triomq.protocol.errors import MessageIllegalError, StoreError
from triomq.protocol.names import retry_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import append_property, get_property, set_property
from triomq.protocol.record.record import decode_record, tags_code_of
from triomq.protocol.requests.requests import ConsumerSendMsgBackRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import entry
from triomq.storage.reading.cold_read import Lookup

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.broker.server import Broker

_FIRST_LEVEL: Final = 3  # 10 s
_UNIT_SUB: Final = 2  # topic sysFlag of retry topics in unit mode
_RETRY_TOPIC: Final = b"RETRY_TOPIC"
_ORIGIN_ID: Final = b"ORIGIN_MESSAGE_ID"


class _Target(NamedTuple):
    topic: str
    queue_id: int
    level: int  # 0: at once


@in_steps
def send_message_back(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand | None]:
    """Store a message again: for the group's retry topic after a delay, or in its dead-letter topic.

    With durability sync the answer waits for the disk, unlike in RocketMQ: for it the consumer gives the message up.
    """
    header = ConsumerSendMsgBackRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    group = broker.subscription_groups.get_or_create(header.group)
    if group is None:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
        )
    if group.retry_queue_nums <= 0:  # the group wants no message again
        return command.reply()
    target = _retry_target(broker, header, group)
    (record,) = yield from broker.store.reader.look_up((header.offset,))
    if record is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    message = decode_record(record)
    limit = retry_limit(group, header.max_reconsume_times, command.version)
    if header.delay_level < 0 or message.reconsume_times >= limit:
        target = _Target(ensure_dead_letter_topic(broker.topics, header.group), 0, 0)
    elif header.delay_level == 0:
        target = target._replace(level=_FIRST_LEVEL + message.reconsume_times)
    _store(broker, header.group, message, target)
    response = command.reply()
    if broker.group_commit is not None:
        if not command.is_oneway:
            broker.group_commit.defer(connection, response.encode())
            return None
        broker.group_commit.wake()
    return response


def _retry_target(
    broker: "Broker", header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
) -> _Target:
    """Return a queue of the group's retry topic, which is made if it is not there."""
    sys_flag = _UNIT_SUB if header.unit_mode else 0
    topic = broker.topics.ensure(retry_topic(header.group), group.retry_queue_nums, sys_flag)
    if not topic.perm & Permission.WRITE:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] is not writable")
    # RocketMQ looks at the group's number only: a queue that the topic does not have is consumed by nobody.
    queues = min(group.retry_queue_nums, max(topic.write_queue_nums, 1))
    return _Target(topic.topic_name, random.randrange(queues), header.delay_level)  # noqa: S311  # protects nothing


def _store(broker: "Broker", group: str, message: MessageExt, target: _Target) -> None:
    """Store the message in its new place.

    Raises:
        RequestRefusedError: the store did not take it; whatever the reason, the code is SYSTEM_ERROR.
    """
    properties = message.encoded_properties
    first_topic = get_property(properties, _RETRY_TOPIC)
    if first_topic is None:
        first_topic = message.topic.encode()
        properties = append_property(properties, _RETRY_TOPIC, first_topic)
    if get_property(properties, _ORIGIN_ID) is None:
        properties = append_property(properties, _ORIGIN_ID, message.offset_message_id.encode())
    properties = set_property(properties, b"WAIT", b"false")
    properties = set_property(properties, b"DELAY", b"%d" % target.level)
    try:
        copy = entry(
            broker.store.queue(target.topic, target.queue_id),
            message.stored_body,
            properties,
            tags_code=tags_code_of(properties),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.encoded_born_host,
            store_host=message.encoded_store_host,
            reconsume_times=message.reconsume_times + 1,
        )
        if target.level > 0:
            broker.schedule.put(target.level, copy)
        else:
            broker.store.append([copy])
            broker.statistics.put(target.topic, 1, len(message.stored_body))
    except (MessageIllegalError, StoreError) as exc:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark_of(exc)) from exc
    counted_for = first_topic.decode("utf-8", "replace")
    if broker.topics.get(counted_for) is not None:  # the message's word: it may name anything, each time another
        broker.statistics.send_back(group, counted_for)
