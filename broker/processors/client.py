"""Clients: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46).

Source: behaviour.md A.12; ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from triomq.broker.groups.members import TAG
from triomq.broker.network.refusal import RequestRefusedError
from triomq.protocol.bodies.client import CheckClientRequestBody, ConsumerIdList, HeartbeatData
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import IllegalNameError
from triomq.protocol.names import retry_topic
from triomq.protocol.requests.requests import ConsumerGroupRequestHeader, UnregisterClientRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.formats.table import accept

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection


def heart_beat(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Note which groups live on the connection, and what they subscribe to.

    All group names are checked before any member joins.  A group whose name is too long for a retry topic consumes all
    the same, as in RocketMQ.  Who announces that it knows msgpack headers is told that we read them; others get the
    answer that Apache's brokers give.
    """
    heartbeat = HeartbeatData.decode(command.body)
    broker = connection.broker
    configs = [broker.subscription_groups.get_or_create(data.group_name) for data in heartbeat.consumer_data_set]
    connection.language = command.language
    connection.version = command.version
    for data, config in zip(heartbeat.consumer_data_set, configs, strict=True):
        if config is not None:
            with suppress(IllegalNameError):  # too long
                broker.topics.ensure(retry_topic(data.group_name), config.retry_queue_nums)
        notify = config is None or config.notify_consumer_ids_changed_enable
        broker.consumer_groups.heartbeat(connection, heartbeat.client_id, data, notify=notify)
    for producer in heartbeat.producer_data_set:
        broker.producer_groups.heartbeat(connection, heartbeat.client_id, producer.group_name)
    return command.reply(ext_fields=accept(command.ext_fields))


def unregister_client(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Take the connection out of the named groups; the members that are left are told."""
    header = UnregisterClientRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    if header.producer_group:
        broker.producer_groups.leave(connection, header.producer_group)
    if header.consumer_group:
        config = broker.subscription_groups.get(header.consumer_group)
        notify = config is None or config.notify_consumer_ids_changed_enable
        broker.consumer_groups.leave(connection, header.consumer_group, notify=notify)
        broker.locks.leave(header.consumer_group, header.client_id)
    return command.reply()


def get_consumer_list_by_group(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the client ids of a group's members: what its members share the queues by."""
    header = ConsumerGroupRequestHeader.decode(command.ext_fields)
    group = connection.broker.consumer_groups.get(header.consumer_group)
    if group is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return command.reply(body=ConsumerIdList(group.client_ids()).encode())


def check_client_config(_connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Tell a consumer before it starts whether its filter can be used: tag expressions can."""
    if not command.body:
        return command.reply()
    subscription = CheckClientRequestBody.decode(command.body).subscription_data
    if subscription is not None and subscription.expression_type not in (None, "", TAG):
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}",
        )
    return command.reply()
