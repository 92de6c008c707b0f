"""The name-server role for this one broker: routes, cluster, topic lists.

The broker knows its own topics, so there is no registration and nothing to expire.  Its address is the one that works
for the asking connection.

Source: behaviour.md A.17; wire.md 8, 9.4, 9.5; RouteInfoManager.java, DefaultRequestProcessor.java of the name server.
"""

from typing import TYPE_CHECKING

from triomq.broker.network.refusal import RequestRefusedError
from triomq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from triomq.protocol.codes import ResponseCode
from triomq.protocol.requests.admin_requests import (
    ClusterRequestHeader,
    GetRouteInfoRequestHeader,
    KvConfigRequestHeader,
    TopicRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection

_MASTER_ID = 0


def get_route_info(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with queues and broker of a topic, in standard JSON, which clients of all versions read."""
    header = GetRouteInfoRequestHeader.decode(command.ext_fields)
    config = connection.broker.topics.get(header.topic)
    if config is None:
        raise RequestRefusedError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}\n"
            "Create it, or send to it while the broker creates topics by itself (autoCreateTopicEnable).",
        )
    queue_data = QueueData(
        broker_name=connection.broker.config.broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )
    route = TopicRouteData(queue_datas=[queue_data], broker_datas=[_broker_data(connection)])
    return command.reply(body=route.encode())


def get_cluster_info(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the one cluster and its one broker."""
    config = connection.broker.config
    cluster = ClusterInfo(
        broker_addr_table={config.broker_name: _broker_data(connection)},
        cluster_addr_table={config.cluster_name: [config.broker_name]},
    )
    return command.reply(body=cluster.encode())


def _broker_data(connection: "Connection") -> BrokerData:
    config = connection.broker.config
    return BrokerData(
        cluster=config.cluster_name,
        broker_name=config.broker_name,
        broker_addrs={_MASTER_ID: connection.advertised},
    )


def get_topic_list(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with all topics, system topics included."""
    return command.reply(body=TopicList(connection.broker.topics.names()).encode())


def get_topics_by_cluster(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the topics of a cluster, which are none if it is not ours."""
    header = ClusterRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    names = broker.topics.names() if header.cluster == broker.config.cluster_name else []
    return command.reply(body=TopicList(names).encode())


def get_system_topic_list(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the system topics, and with the broker's address, which tools ask next.

    RocketMQ's name server lists cluster and broker names only, and its broker the rest; here both lists are the whole.
    """
    names = sorted(connection.broker.topics.system_topics)
    return command.reply(body=TopicList(names, broker_addr=connection.advertised).encode())


def delete_topic(_connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Accept what a tool sends after it deleted the topic in the broker: the route has gone with it.

    A topic that the broker still has keeps its route, as in RocketMQ from the broker's next registration on.
    """
    TopicRequestHeader.decode(command.ext_fields)
    return command.reply()


def get_kv_config(_connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Refuse a look-up in the key-value table (101, 219): this name-server role keeps none."""
    header = KvConfigRequestHeader.decode(command.ext_fields)
    key = f" Key: {header.key}" if header.key is not None else ""
    raise RequestRefusedError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}{key}")
