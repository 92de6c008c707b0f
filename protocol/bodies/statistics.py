"""Bodies for administration: offsets of topics and groups, connections, counters.

Source: wire.md 9.6, 9.10.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from triomq.protocol.bodies.client import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.codes import LanguageCode
from triomq.protocol.message_queue import MessageQueue


@dataclass(slots=True)
class OffsetWrapper(JsonBody):
    """A group's progress in one queue; ``last_timestamp``: store time of the last message it consumed, 0 if none.

    Only triomq's brokers send the other members; Apache's tools ignore them.

    Attributes:
        lock_owner: client id that holds the queue's lock; absent without one.
        progress_timestamp: when the offset last changed, in ms; 0: not since the broker started.
        stalled_timestamp: when messages began to wait without progress, in ms; 0: not stalled.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    lock_owner: str | None = None
    progress_timestamp: int | None = None
    stalled_timestamp: int | None = None

    @property
    def lag(self) -> int:
        """The number of messages that wait in the queue."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(slots=True)
class ConsumeStats(JsonBody):
    """Answer to GET_CONSUME_STATS (208).  Source: ConsumeStats.java."""

    irregular: ClassVar = True

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(slots=True)
class QuerySubscriptionBody(JsonBody):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345 of 5.x).  Source: QuerySubscriptionResponseBody.java."""

    subscription_data: SubscriptionData | None = None
    group: str = ""
    topic: str = ""


@dataclass(slots=True)
class ConsumeStatsList(JsonBody):
    """Answer to GET_BROKER_CONSUME_STATS (317): of each group its progress.  Source: ConsumeStatsList.java."""

    irregular: ClassVar = True

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str = ""
    total_diff: int = 0


@dataclass(slots=True)
class TopicOffset(JsonBody):
    """The contents of one queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True)
class TopicStatsTable(JsonBody):
    """Answer to GET_TOPIC_STATS_INFO (202).  Source: TopicStatsTable.java."""

    irregular: ClassVar = True

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


@dataclass(slots=True)
class QueueTimeSpan(JsonBody):
    """Store times (ms) of a queue's first and newest message and of the last one that a group consumed.

    Attributes:
        message_queue: the queue.
        min_time_stamp: of the first message, -1 without messages.
        max_time_stamp: of the newest message, -1 without messages.
        consume_time_stamp: of the last message that the group consumed, of the first one before it consumed any.
        delay_time: age of the next message for the group, 0 if none waits.
        min_time_stamp_str, max_time_stamp_str, consume_time_stamp_str: the same times as text, in the broker's local
            time, such as ``2026-01-31#12:00:00:000``.
    """

    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str = ""
    max_time_stamp_str: str = ""
    consume_time_stamp_str: str = ""


@dataclass(slots=True)
class QueryConsumeTimeSpanBody(JsonBody):
    """Answer to QUERY_CONSUME_TIME_SPAN (303).  Source: QueryConsumeTimeSpanBody.java, QueueTimeSpan.java."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@dataclass(slots=True)
class QueryCorrectionOffsetBody(JsonBody):
    """Answer to QUERY_CORRECTION_OFFSET (308): queue id to offset.  Source: QueryCorrectionOffsetBody.java."""

    irregular: ClassVar = True

    correction_offsets: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerStatsItem(JsonBody):
    """A counter over a span of time: the sum, the rate per second, and the average per event."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True)
class BrokerStatsData(JsonBody):
    """Answer to VIEW_BROKER_STATS_DATA (315): the last minute, hour and day.  Source: BrokerStatsData.java."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


@dataclass(slots=True)
class Connection(JsonBody):
    """One client's connection; ``client_addr`` is ``ip:port``.  Source: Connection.java.

    Only triomq's brokers send ``subscription_set``, the subscriptions of this consumer.
    """

    client_id: str = ""
    client_addr: str = ""
    language: LanguageCode = LanguageCode.OTHER
    version: int = 0
    subscription_set: list[SubscriptionData] | None = None


@dataclass(slots=True)
class ProducerConnection(JsonBody):
    """Answer to GET_PRODUCER_CONNECTION_LIST (204).  Source: ProducerConnection.java."""

    connection_set: list[Connection] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerConnection(JsonBody):
    """Answer to GET_CONSUMER_CONNECTION_LIST (203).  Source: ConsumerConnection.java."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


@dataclass(slots=True)
class ConsumeQueueData(JsonBody):
    """One unit of a consume queue; ``eval``: the group's filter accepts its tags code."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False


@dataclass(slots=True)
class QueryConsumeQueueResponseBody(JsonBody):
    """Answer to QUERY_CONSUME_QUEUE (321).  Source: QueryConsumeQueueResponseBody.java.

    Attributes:
        max_queue_index: queue offset after the newest unit.
        min_queue_index: queue offset of the oldest one.
        queue_data: the units asked for.
        subscription_data: the group's subscription to the topic, if a group was named and has members.
        filter_data: a remark on the group.
    """

    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
