"""Clients: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46),
LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42).

Source: behaviour.md A.12, A.14, wire.md 5.13; ClientManageProcessor.java, ConsumerManageProcessor.java,
AdminBrokerProcessor.java.
"""

from contextlib import suppress
from typing import Final

from triomq.broker.config import BrokerConfig
from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import Connection
from triomq.broker.shared import BrokerPart
from triomq.broker.work import encode
from triomq.protocol.bodies import client as bodies
from triomq.protocol.errors import IllegalNameError, RefusedError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import retry_topic, validate_topic
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, UnregisterClientRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import accept
from triomq.storage.reading.cold_read import PAUSE, Work

#: Client ids that are longer would make others' answers long; those of RocketMQ's clients have less than a hundred.
_MAX_CLIENT_ID: Final = 1024
_MAX_GROUP: Final = 255
_MAX_TOPIC: Final = 512  # the retry topic of a group may be longer than a topic that exists
_MAX_MEMBERS: Final = 65_536  # of JSON objects and lists, such as tags and their codes


class ClientProcessors(BrokerPart):
    """Serves heartbeats, requests of clients about their groups, and locks of queues.

    Limits protect other clients: a heartbeat with too many groups or subscriptions is refused as a whole.  Apache's
    brokers have no such limits.
    """

    def heart_beat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Record the groups of the connection and their subscriptions.

        All limits and names are checked before any member joins.  Unlike in RocketMQ, a group whose failed messages
        are redelivered is refused if its name is too long for a retry topic: it would get them for ever.  The answer to
        a client that announces msgpack headers confirms them; others get the answer of Apache's brokers.
        """
        heartbeat = _read_heartbeat(command.body, self.config)
        groups = self.groups
        self._check_client_id(connection, command, heartbeat.client_id)
        _check_client(connection, heartbeat, groups, self.config)
        configs = [groups.settings.get_or_create(data.group_name) for data in heartbeat.consumer_data_set]
        groups.client_ids.heartbeat(connection, heartbeat.client_id, command.account)
        connection.language = command.language
        connection.version = command.version
        for data, config in zip(heartbeat.consumer_data_set, configs, strict=True):
            if config is not None:
                with suppress(IllegalNameError):  # too long, but it needs none
                    self.topics.ensure(retry_topic(data.group_name), config.retry_queue_nums)
            groups.consumers.heartbeat(connection, heartbeat.client_id, data)
        for producer in heartbeat.producer_data_set:
            groups.producers.heartbeat(connection, heartbeat.client_id, producer.group_name)
        groups.count_kept(connection)
        return command.reply(ext_fields=accept(command.ext_fields))

    def unregister_client(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Remove the connection from the named groups and notify the remaining members.

        The locks of the named client id are freed: with accounts, only if the connection uses that id.
        """
        header = UnregisterClientRequestHeader.decode(command.ext_fields)
        self._check_client_id(connection, command, header.client_id)
        if header.producer_group:
            self.groups.producers.leave(connection, header.producer_group)
        if header.consumer_group:
            self.groups.consumers.leave(connection, header.consumer_group)
            if not command.account or self.groups.client_ids.of(connection) == header.client_id:
                self.groups.locks.leave(header.consumer_group, header.client_id)
        self.groups.count_kept(connection)
        return command.reply()

    def _check_client_id(self, connection: Connection, command: RemotingCommand, client_id: str) -> None:
        """Let an account use the client ids that no other account uses.

        Raises:
            RefusedError: a live connection uses the id for another account, or for none.
        """
        account = command.account
        if account and self.groups.client_ids.is_of_others(connection, client_id, account):
            self.access.refuse(connection, command, f"another account uses client id {client_id}")

    def get_consumer_list_by_group(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the client ids of a group's members, by which they share its queues.

        The remark names ids that several clients use: triomq's clients warn about their own.
        """
        header = ConsumerGroupRequestHeader.decode(command.ext_fields)
        group = self.groups.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(f"no consumer for this group, {header.consumer_group}")
        return command.reply(body=bodies.ConsumerIdList(group.client_ids()).encode(), remark=group.shared_ids())

    def check_client_config(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Check before a consumer starts that its filter can be used."""
        if not command.body:
            return command.reply()
        subscription = bodies.CheckClientRequestBody.decode(command.body).subscription_data
        if subscription is not None:
            self.groups.filters.parse(subscription.sub_string, subscription.expression_type)
        return command.reply()

    def lock_batch_mq(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Lock queues; the answer names those that the client holds now."""
        granted: list[MessageQueue] = []
        for body in bodies.LockBatchRequestBody.parts(command.body, "mqSet"):
            yield PAUSE
            if connection.closed:  # its locks have been freed
                break
            if len(body.client_id) > _MAX_CLIENT_ID:
                raise RefusedError(f"a client id of {len(body.client_id)} characters: the limit is {_MAX_CLIENT_ID}")
            self._check_client_id(connection, command, body.client_id)
            granted += self.groups.locks.lock(
                body.consumer_group,
                body.client_id,
                connection,
                body.mq_set,
                ends_with_connection=bool(body.ends_with_connection),
            )
        return command.reply(body=(yield from encode(bodies.LockBatchResponseBody(granted))))

    def unlock_batch_mq(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Free those of the queues that the client holds."""
        for body in bodies.LockBatchRequestBody.parts(command.body, "mqSet"):
            yield PAUSE
            self._check_client_id(connection, command, body.client_id)
            self.groups.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return command.reply()


def _read_heartbeat(body: bytes | memoryview, config: BrokerConfig) -> bodies.HeartbeatData:
    """Read a heartbeat.

    Raises:
        RefusedError: it is too long, or has too many groups, subscriptions or other members, or too long names.
        ProtocolError: it cannot be read.
    """
    _check("bytes in a heartbeat", len(body), config.max_heartbeat_bytes, "max_heartbeat_bytes")
    body = bytes(body)  # counted before anything is made of it
    limit = 1 + config.max_client_groups + config.max_client_subscriptions
    _check("groups and subscriptions in a heartbeat", body.count(b"{"), limit, "max_client_subscriptions")
    _check("JSON members in a heartbeat", body.count(b","), _MAX_MEMBERS)
    heartbeat = bodies.HeartbeatData.decode(body)
    consumers, producers = heartbeat.consumer_data_set, heartbeat.producer_data_set
    topics = [each.topic for data in consumers for each in data.subscription_data_set]
    for what, names, longest in (
        ("client id", (heartbeat.client_id,), _MAX_CLIENT_ID),
        ("group name", [data.group_name for data in consumers], _MAX_GROUP),
        ("group name", [data.group_name for data in producers], _MAX_GROUP),
        ("topic name", topics, _MAX_TOPIC),
    ):
        _check(f"characters in a {what}", max(map(len, names), default=0), longest)
    return heartbeat


def _check_client(
    connection: Connection, heartbeat: bodies.HeartbeatData, groups: Groups, config: BrokerConfig
) -> None:
    """Check the groups and subscriptions of a connection, with those of earlier heartbeats.

    Raises:
        RefusedError: too many groups or subscriptions, or too long ones.
        IllegalNameError: a group needs a retry topic, and its name is too long for that.
    """
    for data in heartbeat.consumer_data_set:
        if (
            data.consume_type != bodies.ConsumeType.CONSUME_ACTIVELY
            and data.message_model == bodies.MessageModel.CLUSTERING
        ):
            validate_topic(retry_topic(data.group_name))
    consumers = groups.consumers.of(connection)
    consumers.update({data.group_name: data.subscription_data_set for data in heartbeat.consumer_data_set})
    producers = {*groups.producers.of(connection), *(data.group_name for data in heartbeat.producer_data_set)}
    subscriptions = [each for subscribed in consumers.values() for each in subscribed]
    count = len(consumers) + len(producers)
    _check("groups of one client", count, config.max_client_groups, "max_client_groups")
    _check(
        "subscriptions of one client", len(subscriptions), config.max_client_subscriptions, "max_client_subscriptions"
    )
    size = sum(len(each.topic) + len(each.sub_string) + len(each.expression_type) for each in subscriptions)
    _check("bytes of subscriptions of one client", size, config.max_heartbeat_bytes, "max_heartbeat_bytes")


def _check(what: str, count: int, limit: int, setting: str = "") -> None:
    if count > limit:
        name = f" ({setting})" if setting else ""
        raise RefusedError(f"{count} {what}: the limit is {limit}{name}", limit=setting or what)
