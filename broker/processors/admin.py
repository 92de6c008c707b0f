"""Administration of topics, groups and tables: 17, 215, 21, 351, 200, 201, 352, 207, 43, 45, 25, 306, 316, 329.

Source: behaviour.md A.15; wire.md 7, 9.7, 14; AdminBrokerProcessor.java.
"""

import logging
from typing import TYPE_CHECKING, Final

from triomq.broker.network.refusal import RequestRefusedError
from triomq.broker.topics import MAX_QUEUES
from triomq.protocol.bodies import fastjson
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig, TopicFilterType
from triomq.protocol.codes import Permission, ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.names import validate_group
from triomq.protocol.requests.admin_requests import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GroupRequestHeader,
    TopicRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection

LOGGER: Final = logging.getLogger("triomq.broker.admin")

_ALL_PERMISSIONS: Final = int(Permission.INHERIT | Permission.WRITE | Permission.READ | Permission.PRIORITY)


def update_and_create_topic(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Create a topic or replace its configuration; its messages stay.

    The ``order`` field is ignored, as in RocketMQ 4.9.7.
    """
    header = CreateTopicRequestHeader.decode(command.ext_fields)
    topics = connection.broker.topics
    topics.check_changeable(header.topic)
    for name, count in (("readQueueNums", header.read_queue_nums), ("writeQueueNums", header.write_queue_nums)):
        _check_range(f"{name} of topic[{header.topic}]", count, MAX_QUEUES)
    _check_range(f"perm of topic[{header.topic}]", header.perm, _ALL_PERMISSIONS)
    filter_type = TopicFilterType.__members__.get(header.topic_filter_type)
    if filter_type is None:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"topicFilterType[{header.topic_filter_type}] is illegal: SINGLE_TAG or MULTI_TAG",
        )
    topics.put(
        TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=filter_type,
            topic_sys_flag=header.topic_sys_flag,
        )
    )
    LOGGER.info(
        "topic set topic=%s read_queues=%d write_queues=%d perm=%d peer=%s",
        header.topic, header.read_queue_nums, header.write_queue_nums, header.perm, connection.peer,
    )  # fmt: skip
    return command.reply()


def _check_range(what: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"{what} is illegal: {value}, must be 0 to {most}")


def delete_topic(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Delete a topic with its queues and the offsets in them; pulls that wait for it are answered.

    Unlike in RocketMQ the offsets go too: in a topic made anew they would hide the first messages.
    """
    topic = TopicRequestHeader.decode(command.ext_fields).topic
    broker = connection.broker
    broker.topics.check_changeable(topic)
    queues = broker.store.queues.of_topic(topic)
    try:
        broker.store.delete_topic(topic)  # first what the disk can refuse
    except StoreError:
        if not any(queue.max_offset for queue in queues):  # files are left, but no messages
            broker.offsets.delete_topic(topic)
        raise
    broker.topics.delete(topic)
    broker.offsets.delete_topic(topic)
    broker.statistics.forget_topic(topic)
    gone = f"topic[{topic}] not exist, apply first please!"
    for queue in queues:
        for pull in broker.pull_hold.forget_queue(queue):
            pull.connection.send(pull.command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=gone))
    LOGGER.info("topic deleted topic=%s peer=%s", topic, connection.peer)
    return command.reply()


def get_all_topic_config(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the whole table of topics."""
    return command.reply(body=fastjson.dumps(connection.broker.topics.to_json()))


def get_topic_config(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with one topic's configuration, which tools from 5.x on ask for."""
    topic = TopicRequestHeader.decode(command.ext_fields).topic
    config = connection.broker.topics.get(topic)
    if config is None:
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    return command.reply(body=fastjson.dumps({"attributes": {}, **config.to_json()}))


def update_and_create_subscription_group(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Create a subscription group or replace its configuration."""
    config = SubscriptionGroupConfig.decode(command.body)
    validate_group(config.group_name)
    _check_range(f"retryQueueNums of group[{config.group_name}]", config.retry_queue_nums, MAX_QUEUES)
    connection.broker.subscription_groups.put(config)
    LOGGER.info("subscription group set group=%s peer=%s", config.group_name, connection.peer)
    return command.reply()


def get_all_subscription_group_config(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the whole table of subscription groups."""
    return command.reply(body=fastjson.dumps(connection.broker.subscription_groups.to_json()))


def get_subscription_group_config(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with one group's configuration, which tools from 5.x on ask for."""
    group = GroupRequestHeader.decode(command.ext_fields).group
    config = connection.broker.subscription_groups.get(group)
    if config is None:
        raise RequestRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
    return command.reply(body=config.encode())


def delete_subscription_group(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Delete a subscription group, and its offsets if that is asked for; a live member makes it anew."""
    header = DeleteSubscriptionGroupRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    broker.subscription_groups.delete(header.group_name)
    broker.statistics.forget_group(header.group_name)
    if header.remove_offset or header.clean_offset:
        broker.offsets.delete_group(header.group_name)
    LOGGER.info("subscription group deleted group=%s peer=%s", header.group_name, connection.peer)
    return command.reply()


def get_all_consumer_offset(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with all stored offsets, in the form in which slaves take them over."""
    return command.reply(body=fastjson.dumps(connection.broker.offsets.to_json()))


def get_all_delay_offset(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with how far each delay level is delivered, in the form in which slaves take it over."""
    return command.reply(body=fastjson.dumps(connection.broker.schedule.offsets.to_json()))


def delete_expired_commit_log(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Delete commit log files that are too old soon, whatever the hour."""
    connection.broker.retention.request()
    LOGGER.info("deletion of old files asked for peer=%s", connection.peer)
    return command.reply()


def clean_queues(_connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Agree: there is nothing to clean.

    Here the queues follow the commit log in each run that deletes files of it, and those of a topic go with the topic.
    """
    return command.reply()


def update_broker_config(_connection: "Connection", _command: RemotingCommand) -> RemotingCommand:
    """Refuse to change settings of a running broker: some of them name paths and limits that protect it."""
    raise RequestRefusedError(
        ResponseCode.NO_PERMISSION,
        "settings of a running triomq broker cannot be changed by request: start it with other options",
    )
