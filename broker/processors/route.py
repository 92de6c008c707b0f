"""The name-server role for this one broker: routes, cluster, topic lists.

The broker knows its own topics, so there is no registration and nothing expires.  The broker's address in an answer is
the one that works for the connection that asks.

Source: behaviour.md A.17; wire.md 8, 9.4, 9.5; RouteInfoManager.java, DefaultRequestProcessor.java of the name server.
"""

from typing import Final

from triomq.broker.network.connection import Connection
from triomq.broker.network.refusal import RefusedError
from triomq.broker.topics import TopicTable
from triomq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from triomq.protocol.codes import ResponseCode
from triomq.protocol.requests.topics import (
    ClusterRequestHeader,
    GetRouteInfoRequestHeader,
    TopicRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand

_MASTER_ID: Final = 0


class RouteProcessors:
    """Answers clients and tools that look for topics and brokers."""

    def __init__(self, topics: TopicTable, cluster_name: str, broker_name: str) -> None:
        self._topics = topics
        self._cluster_name = cluster_name
        self._broker_name = broker_name

    def get_route_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with queues and broker of a topic, in standard JSON, which clients of all versions read."""
        header = GetRouteInfoRequestHeader.decode(command.ext_fields)
        config = self._topics.get(header.topic)
        if config is None:
            raise RefusedError(
                f"No topic route info in name server for the topic: {header.topic}\n"
                "Create it, or send to it while the broker creates topics by itself (autoCreateTopicEnable).",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        queue_data = QueueData(
            broker_name=self._broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )
        route = TopicRouteData(queue_datas=[queue_data], broker_datas=[self._broker_data(connection)])
        return command.reply(body=route.encode())

    def get_cluster_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the one cluster and its one broker."""
        cluster = ClusterInfo(
            broker_addr_table={self._broker_name: self._broker_data(connection)},
            cluster_addr_table={self._cluster_name: [self._broker_name]},
        )
        return command.reply(body=cluster.encode())

    def _broker_data(self, connection: Connection) -> BrokerData:
        return BrokerData(
            cluster=self._cluster_name,
            broker_name=self._broker_name,
            broker_addrs={_MASTER_ID: connection.advertised},
        )

    def get_topic_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all topics, system topics included."""
        return command.reply(body=TopicList(self._topics.names()).encode())

    def get_topics_by_cluster(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the topics of a cluster; of another cluster than ours there are none."""
        header = ClusterRequestHeader.decode(command.ext_fields)
        names = self._topics.names() if header.cluster == self._cluster_name else []
        return command.reply(body=TopicList(names).encode())

    def get_system_topic_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the system topics, and with the broker's address, which tools ask next.

        RocketMQ's name server lists only cluster and broker names, its broker the rest; here both lists are complete.
        """
        names = sorted(self._topics.system_topics)
        return command.reply(body=TopicList(names, broker_addr=connection.advertised).encode())

    def delete_topic(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Accept the request that a tool sends after it deleted the topic in the broker: the route is deleted already.

        A topic that the broker still has keeps its route, as in RocketMQ from the broker's next registration on.
        """
        TopicRequestHeader.decode(command.ext_fields)
        return command.reply()
