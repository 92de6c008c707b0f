"""Requests to the name server about routes: 105, 106, 205, 206, 216, 224, 304, 311 to 313, 327.

Source: behaviour.md A.17; wire.md 8, 9.4, 9.5; DefaultRequestProcessor.java of the name server.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.namesrv.settings import NameServerSettings
from triomq.broker.network.connection import Connection, Processor
from triomq.protocol.bodies.route import TopicList
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import ORDER_NAMESPACE
from triomq.protocol.requests.topics import (
    BrokerNameRequestHeader,
    ClusterRequestHeader,
    GetRouteInfoRequestHeader,
    TopicRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.processors.route")

_UNIT: Final = 1  # bits of a topic's system flag
_UNIT_SUBSCRIPTION: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class RouteProcessors:
    """Answers clients and tools that look for topics and brokers."""

    table: RouteTable
    key_values: KvTable
    settings: NameServerSettings

    def get_route_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with queues and brokers of a topic, in standard JSON, which clients of all versions read."""
        header = GetRouteInfoRequestHeader.decode(command.ext_fields)
        route = self.table.route(header.topic, connection.advertised)
        if route is None:
            raise RefusedError(
                f"No topic route info in name server for the topic: {header.topic}\n"
                "Create it, or send to it while the broker creates topics by itself (autoCreateTopicEnable).",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        if self.settings.order_messages:
            route.order_topic_conf = self.key_values.get(ORDER_NAMESPACE, header.topic)
        return command.reply(body=route.encode())

    def get_cluster_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all clusters and brokers."""
        return command.reply(body=self.table.cluster_info(connection.advertised).encode())

    def get_topic_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all topics, system topics included."""
        return command.reply(body=TopicList(self.table.topics()).encode())

    def get_topics_by_cluster(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the topics of a cluster; an unknown one has none."""
        header = ClusterRequestHeader.decode(command.ext_fields)
        return command.reply(body=TopicList(self.table.topics(header.cluster)).encode())

    def get_system_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the names of clusters and brokers, which are topics too, and a broker to ask for the others."""
        cluster = self.table.cluster_info(connection.advertised)
        names = [name for cluster, brokers in cluster.cluster_addr_table.items() for name in (cluster, *brokers)]
        addresses = (address for data in cluster.broker_addr_table.values() for address in data.broker_addrs.values())
        return command.reply(body=TopicList(names, broker_addr=next(addresses, None)).encode())

    def delete_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Delete the route of a topic, which a tool has deleted in the brokers before."""
        header = TopicRequestHeader.decode(command.ext_fields)
        self.table.delete_topic(header.topic, header.cluster_name)
        LOGGER.info("topic deleted topic=%s cluster=%s peer=%s", header.topic, header.cluster_name, connection.peer)
        return command.reply()

    def wipe_write_perm(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Let clients send no more to a broker, as before it is stopped."""
        return command.reply(ext_fields={"wipeTopicCount": self._set_writable(connection, command, is_writable=False)})

    def add_write_perm(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Let clients send to a broker again."""
        return command.reply(ext_fields={"addTopicCount": self._set_writable(connection, command, is_writable=True)})

    def _set_writable(self, connection: Connection, command: RemotingCommand, *, is_writable: bool) -> str:
        name = BrokerNameRequestHeader.decode(command.ext_fields).broker_name
        count = self.table.set_writable(name, is_writable=is_writable)
        LOGGER.warning(
            "write permission set broker=%s writable=%s topics=%d peer=%s", name, is_writable, count, connection.peer
        )
        return str(count)

    def lister(self, wanted: Callable[[int], bool]) -> Processor:
        """Return a processor that answers with the topics whose system flag is ``wanted``."""
        return lambda _connection, command: command.reply(body=TopicList(self.table.topics(wanted=wanted)).encode())


def is_unit(sys_flag: int) -> bool:
    """Whether a topic belongs to a unit of a multi-site system (311)."""
    return bool(sys_flag & _UNIT)


def has_unit_subscription(sys_flag: int) -> bool:
    """Whether consumers of a unit subscribe to a topic (312)."""
    return bool(sys_flag & _UNIT_SUBSCRIPTION)


def has_only_unit_subscription(sys_flag: int) -> bool:
    """Whether consumers of a unit subscribe to a topic that belongs to none (313)."""
    return sys_flag & (_UNIT | _UNIT_SUBSCRIPTION) == _UNIT_SUBSCRIPTION
