"""What tools ask about topics, groups and clients: 202, 208, 300, 303, 315, 203, 204, 328.

Source: behaviour.md A.15; wire.md 7, 9.6, 9.10; AdminBrokerProcessor.java.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from triomq.broker.network.refusal import RequestRefusedError
from triomq.broker.pulls.lookups import in_steps
from triomq.protocol.bodies import fastjson
from triomq.protocol.bodies.client import ConsumeFromWhere, ConsumeType, MessageModel
from triomq.protocol.bodies.route import GroupList
from triomq.protocol.bodies.statistics import Connection as ConnectionInfo
from triomq.protocol.bodies.statistics import (
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    ProducerConnection,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from triomq.protocol.codes import LanguageCode, ResponseCode
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests.admin_requests import (
    GetConsumeStatsRequestHeader,
    ProducerGroupRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    TopicRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from triomq.protocol.requests.requests import ConsumerGroupRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Lookup

if TYPE_CHECKING:
    from triomq.broker.groups.members import Member
    from triomq.broker.network.connection import Connection
    from triomq.broker.server import Broker


@in_steps
def get_topic_stats_info(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with first and next offset of every write queue, and when its newest message was stored."""
    topic = TopicRequestHeader.decode(command.ext_fields).topic
    broker = connection.broker
    config = broker.topics.get(topic)
    if config is None:
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    table = {}
    for queue_id in range(config.write_queue_nums):
        max_offset = broker.store.reader.max_offset_in_queue(topic, queue_id)
        table[MessageQueue(topic, broker.config.broker_name, queue_id)] = TopicOffset(
            min_offset=broker.store.reader.min_offset_in_queue(topic, queue_id),
            max_offset=max_offset,
            last_update_timestamp=(yield from _store_time(broker, topic, queue_id, max_offset - 1)),
        )
    return command.reply(body=TopicStatsTable(table).encode())


def _store_time(broker: "Broker", topic: str, queue_id: int, queue_offset: int) -> Lookup[int]:
    """Return when a message was stored, in ms; 0 if it is not there."""
    if queue_offset < 0:
        return 0
    return max((yield from broker.store.reader.store_time(topic, queue_id, queue_offset)), 0)


@in_steps
def get_consume_stats(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with what a group has consumed of each read queue, of one topic or of all it has offsets in."""
    header = GetConsumeStatsRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    group = header.consumer_group
    topics = [header.topic] if header.topic else list(broker.offsets.of_group(group))
    stats = ConsumeStats()
    for topic in topics:
        config = broker.topics.get(topic)
        if config is None or not _is_subscribed(broker, group, topic):
            continue
        for queue_id in range(config.read_queue_nums):
            queue = MessageQueue(topic, broker.config.broker_name, queue_id)
            stats.offset_table[queue] = yield from _offset_wrapper(broker, group, queue)
        stats.consume_tps += broker.statistics.group_rate(group, topic)
    return command.reply(body=stats.encode())


def _offset_wrapper(broker: "Broker", group: str, queue: MessageQueue) -> Lookup[OffsetWrapper]:
    topic, _, queue_id = queue
    consumer_offset = broker.offsets.query(group, topic, queue_id) or 0
    return OffsetWrapper(
        broker_offset=broker.store.reader.max_offset_in_queue(topic, queue_id),
        consumer_offset=consumer_offset,
        last_timestamp=(yield from _store_time(broker, topic, queue_id, consumer_offset - 1)),
        lock_owner=broker.locks.owner(group, queue),
        progress_timestamp=broker.offsets.changed_ms(group, topic, queue_id),
        stalled_timestamp=broker.stalls.since_ms(group, queue),
    )


def _is_subscribed(broker: "Broker", group: str, topic: str) -> bool:
    """Whether a group's offsets in a topic still mean something: a live group may have given it up."""
    live = broker.consumer_groups.get(group)
    return live is None or not live.subscriptions or topic in live.subscriptions


def query_topic_consume_by_who(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the groups that subscribe to a topic now or have offsets in it."""
    topic = TopicRequestHeader.decode(command.ext_fields).topic
    broker = connection.broker
    groups = {group.name for group in broker.consumer_groups if topic in group.subscriptions}
    groups.update(broker.offsets.groups_of_topic(topic))
    return command.reply(body=GroupList(sorted(groups)).encode())


@in_steps
def query_consume_time_span(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with the times of what a topic's write queues hold, and of what a group has consumed of it."""
    header = QueryConsumeTimeSpanRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    config = broker.topics.get(header.topic)
    if config is None:
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    spans = []
    for queue_id in range(config.write_queue_nums):
        spans.append((yield from _time_span(broker, header.group, header.topic, queue_id)))  # noqa: PERF401  # it yields
    return command.reply(body=QueryConsumeTimeSpanBody(spans).encode())


def _time_span(broker: "Broker", group: str, topic: str, queue_id: int) -> Lookup[QueueTimeSpan]:
    store = broker.store
    first, end = store.reader.min_offset_in_queue(topic, queue_id), store.reader.max_offset_in_queue(topic, queue_id)
    # RocketMQ takes a missing offset for -1, and the delay for the time since 1970.
    offset = max(broker.offsets.query(group, topic, queue_id) or 0, first)
    earliest = yield from store.reader.earliest_store_time(topic, queue_id)
    newest = yield from store.reader.store_time(topic, queue_id, end - 1)
    consumed = (yield from store.reader.store_time(topic, queue_id, offset - 1)) if offset > first else earliest
    following = (yield from store.reader.store_time(topic, queue_id, offset)) if offset < end else broker.clock_ms()
    return QueueTimeSpan(
        MessageQueue(topic, broker.config.broker_name, queue_id),
        min_time_stamp=earliest,
        max_time_stamp=newest,
        consume_time_stamp=consumed,
        delay_time=broker.clock_ms() - following if offset < end else 0,
        min_time_stamp_str=_time_text(earliest),
        max_time_stamp_str=_time_text(newest),
        consume_time_stamp_str=_time_text(consumed),
    )


def _time_text(time_ms: int) -> str:
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(time_ms // 1000))}:{time_ms % 1000:03d}"


def view_broker_stats_data(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with what was counted in the last minute, hour and day."""
    header = ViewBrokerStatsDataRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    data = broker.statistics.lately(header.stats_name, header.stats_key, broker.config.cluster_name)
    if data is None:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        )
    return command.reply(body=data.encode())


def get_consumer_connection_list(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the members of a consumer group and what they subscribe to."""
    name = ConsumerGroupRequestHeader.decode(command.ext_fields).consumer_group
    group = connection.broker.consumer_groups.get(name)
    if group is None:
        raise RequestRefusedError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnection(
        connection_set=_connections(group.members.items()),
        subscription_table={topic: each.data for topic, each in group.subscriptions.items()},
        consume_type=ConsumeType(group.consume_type),
        message_model=MessageModel(group.message_model),
        consume_from_where=ConsumeFromWhere(group.consume_from_where),
    )
    return command.reply(body=body.encode())


def get_producer_connection_list(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the members of a producer group."""
    name = ProducerGroupRequestHeader.decode(command.ext_fields).producer_group
    members = connection.broker.producer_groups.get(name)
    if members is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return command.reply(body=ProducerConnection(_connections(members.items())).encode())


def _connections(members: "Iterable[tuple[Connection, Member]]") -> list[ConnectionInfo]:
    return [
        ConnectionInfo(
            client_id=member.client_id,
            client_addr=connection.peer,
            language=_language(connection.language),
            version=connection.version,
            subscription_set=member.subscriptions or None,
        )
        for connection, member in members
    ]


def _language(number: int) -> LanguageCode:
    try:
        return LanguageCode(number)
    except ValueError:  # one that this version does not know
        return LanguageCode.OTHER


def get_all_producer_info(connection: "Connection", command: RemotingCommand) -> RemotingCommand:
    """Answer with the members of all producer groups."""
    groups = {
        group: [
            {
                "clientId": member.client_id,
                "language": _language(peer.language).name,
                "lastUpdateTimestamp": member.last_heartbeat_ms,
                "remoteIP": f"/{peer.peer}",
                "version": peer.version,
            }
            for peer, member in members.items()
        ]
        for group, members in connection.broker.producer_groups.all().items()
    }
    return command.reply(body=fastjson.dumps({"data": groups}))
