"""Typed headers of administration and of the name server, one class for each.

Requests that clients receive (307, 309) or send (38) too are in :mod:`triomq.protocol.requests.requests`.

Source: wire.md 7 (administration), 8 (name server).
"""

from dataclasses import dataclass
from typing import ClassVar

from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.headers import Header, Int32


@dataclass(slots=True)
class CreateTopicRequestHeader(Header):
    """Source: CreateTopicRequestHeader.java."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False


@dataclass(slots=True)
class TopicRequestHeader(Header):
    """Names one topic: codes 202, 215, 216, 300 and 351."""

    topic: str
    cluster_name: str | None = None


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(Header):
    """Source: DeleteSubscriptionGroupRequestHeader.java; 5.x calls the second field cleanOffset."""

    code: ClassVar[int] = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


@dataclass(slots=True)
class GetConsumeStatsRequestHeader(Header):
    """Source: GetConsumeStatsRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(Header):
    """Source: CloneGroupOffsetRequestHeader.java."""

    code: ClassVar[int] = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(slots=True)
class ProducerGroupRequestHeader(Header):
    """Source: GetProducerConnectionListRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


@dataclass(slots=True)
class GroupRequestHeader(Header):
    """Code 352 of 5.x.  Source: GetSubscriptionGroupConfigRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str


@dataclass(slots=True)
class QueryConsumeQueueRequestHeader(Header):
    """Source: QueryConsumeQueueRequestHeader.java."""

    code: ClassVar[int] = RequestCode.QUERY_CONSUME_QUEUE
    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None


@dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    """Source: QueryConsumeTimeSpanRequestHeader.java."""

    code: ClassVar[int] = RequestCode.QUERY_CONSUME_TIME_SPAN
    topic: str
    group: str


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader(Header):
    """Source: ViewBrokerStatsDataRequestHeader.java."""

    code: ClassVar[int] = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str  # e.g. TOPIC_PUT_NUMS
    stats_key: str  # a topic, ``topic@group`` or the cluster, depending on the name


@dataclass(slots=True)
class GetRouteInfoRequestHeader(Header):
    """Source: GetRouteInfoRequestHeader.java of the name server."""

    code: ClassVar[int] = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool = False


@dataclass(slots=True)
class KvConfigRequestHeader(Header):
    """Codes 100, 101, 102 and 219.  Source: PutKVConfigRequestHeader.java and its siblings."""

    namespace: str
    key: str | None = None
    value: str | None = None


@dataclass(slots=True)
class ClusterRequestHeader(Header):
    """Source: GetTopicsByClusterRequestHeader.java."""

    code: ClassVar[int] = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str
