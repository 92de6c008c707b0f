"""Clients: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46),
LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

Source: behaviour.md A.12, A.14, wire.md 5.13; ClientManageProcessor.java, ConsumerManageProcessor.java,
AdminBrokerProcessor.java.
"""

from contextlib import suppress

from triomq.broker.config import BrokerConfig
from triomq.broker.groups.groups import Groups
from triomq.broker.groups.heartbeats import MAX_CLIENT_ID, check_client, read_heartbeat
from triomq.broker.network.connection import Connection
from triomq.broker.topics import TopicTable
from triomq.broker.work import encode
from triomq.protocol.bodies.client import (
    CheckClientRequestBody,
    ConsumerIdList,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from triomq.protocol.errors import IllegalNameError, RefusedError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import retry_topic
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, UnregisterClientRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import accept
from triomq.storage.reading.cold_read import PAUSE, Work


class ClientProcessors:
    """Serves heartbeats, questions of clients about their groups, and locks of queues."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, groups: Groups) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups

    def heart_beat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Record the groups of the connection and their subscriptions.

        All limits and names are checked before any member joins.  Unlike in RocketMQ, a group whose failed messages
        come again is refused if its name is too long for a retry topic: they would come for ever.  A client that
        announces msgpack headers learns that we read them; others get the answer of Apache's brokers.
        """
        heartbeat = read_heartbeat(command.body, self._config)
        groups = self._groups
        check_client(connection, heartbeat, groups, self._config)
        configs = [groups.settings.get_or_create(data.group_name) for data in heartbeat.consumer_data_set]
        connection.language = command.language
        connection.version = command.version
        for data, config in zip(heartbeat.consumer_data_set, configs, strict=True):
            if config is not None:
                with suppress(IllegalNameError):  # too long, but it needs none
                    self._topics.ensure(retry_topic(data.group_name), config.retry_queue_nums)
            groups.consumers.heartbeat(connection, heartbeat.client_id, data)
        for producer in heartbeat.producer_data_set:
            groups.producers.heartbeat(connection, heartbeat.client_id, producer.group_name)
        return command.reply(ext_fields=accept(command.ext_fields))

    def unregister_client(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Remove the connection from the named groups and notify the remaining members."""
        header = UnregisterClientRequestHeader.decode(command.ext_fields)
        if header.producer_group:
            self._groups.producers.leave(connection, header.producer_group)
        if header.consumer_group:
            self._groups.consumers.leave(connection, header.consumer_group)
            self._groups.locks.leave(header.consumer_group, header.client_id)
        return command.reply()

    def get_consumer_list_by_group(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the client ids of a group's members, by which they share its queues.

        The remark names ids that several clients use: triomq's clients warn about their own.
        """
        header = ConsumerGroupRequestHeader.decode(command.ext_fields)
        group = self._groups.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(f"no consumer for this group, {header.consumer_group}")
        return command.reply(body=ConsumerIdList(group.client_ids()).encode(), remark=group.shared_ids())

    def check_client_config(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Check before a consumer starts that its filter can be used."""
        if not command.body:
            return command.reply()
        subscription = CheckClientRequestBody.decode(command.body).subscription_data
        if subscription is not None:
            self._groups.consumers.parse_filter(subscription.sub_string, subscription.expression_type)
        return command.reply()

    def lock_batch_mq(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Lock queues; the answer names those that the client holds now."""
        granted: list[MessageQueue] = []
        for body in LockBatchRequestBody.parts(command.body, "mqSet"):
            yield PAUSE
            if connection.closed:  # its locks have been freed
                break
            if len(body.client_id) > MAX_CLIENT_ID:
                raise RefusedError(f"a client id of {len(body.client_id)} characters: the limit is {MAX_CLIENT_ID}")
            granted += self._groups.locks.lock(
                body.consumer_group,
                body.client_id,
                connection,
                body.mq_set,
                ends_with_connection=bool(body.ends_with_connection),
            )
        return command.reply(body=(yield from encode(LockBatchResponseBody(granted))))

    def unlock_batch_mq(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Free those of the queues that the client holds."""
        for body in LockBatchRequestBody.parts(command.body, "mqSet"):
            yield PAUSE
            self._groups.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return command.reply()
