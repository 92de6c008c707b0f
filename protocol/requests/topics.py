"""Headers of requests about topics, routes and settings of brokers and name servers.

Source: wire.md 7, 8.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from triomq.protocol.wire.headers import Header, Int32, Resource, Wire


@dataclass(slots=True)
class CreateTopicRequestHeader(Header):
    """Source: CreateTopicRequestHeader.java."""

    topic: Annotated[str, Resource.TOPIC]
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None  # 5.x: changes, such as ``+message.type=FIFO``


@dataclass(slots=True)
class TopicRequestHeader(Header):
    """Names one topic: codes 202, 215, 216, 300 and 351."""

    topic: Annotated[str, Resource.TOPIC]
    cluster_name: str | None = None


@dataclass(slots=True)
class GetRouteInfoRequestHeader(Header):
    """Source: GetRouteInfoRequestHeader.java of the name server."""

    topic: Annotated[str, Resource.TOPIC]
    accept_standard_json_only: bool = False


@dataclass(slots=True)
class ClusterRequestHeader(Header):
    """Source: GetTopicsByClusterRequestHeader.java."""

    cluster: str


@dataclass(slots=True)
class BrokerNameRequestHeader(Header):
    """Codes 205 and 327.  Source: WipeWritePermOfBrokerRequestHeader.java."""

    broker_name: Annotated[str, Resource.BROKER]


@dataclass(slots=True)
class BrokerRequestHeader(BrokerNameRequestHeader):
    """Names one broker: codes 104 and 322.  Source: UnRegisterBrokerRequestHeader.java."""

    broker_addr: str
    cluster_name: str
    broker_id: int


#: When a broker was promoted to the master, in ms since 1970; ours, in a registration and an answer.
PROMOTED: Final = "triomqPromotedMs"
#: Whether it has registered since its start, as far as its name servers answer.
REGISTERED: Final = "triomqRegistered"


@dataclass(slots=True)
class RegisterBrokerRequestHeader(BrokerRequestHeader):
    """Source: RegisterBrokerRequestHeader.java."""

    ha_server_addr: str
    compressed: bool = False
    body_crc32: Int32 = 0  # 0: not checked
    enable_acting_master: bool | None = None  # 5.x; older brokers do not send it
    promoted_ms: Annotated[int, Wire(PROMOTED)] | None = None  # of a master that was promoted


@dataclass(slots=True)
class PromoteRequestHeader(Header):
    """Makes a slave the master; ``force``: although its master answers.  Ours."""

    role: str = "async-master"
    force: bool = False


@dataclass(slots=True)
class KvNamespaceRequestHeader(Header):
    """Source: GetKVListByNamespaceRequestHeader.java."""

    namespace: Annotated[str, Resource.NAMESPACE]


@dataclass(slots=True)
class KvConfigRequestHeader(KvNamespaceRequestHeader):
    """Names one value: codes 101 and 102.  Source: GetKVConfigRequestHeader.java."""

    key: Annotated[str, Resource.KEY]


@dataclass(slots=True)
class PutKvConfigRequestHeader(KvConfigRequestHeader):
    """Source: PutKVConfigRequestHeader.java."""

    value: str


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader(Header):
    """Source: ViewBrokerStatsDataRequestHeader.java."""

    stats_name: str  # e.g. TOPIC_PUT_NUMS
    stats_key: str  # a topic, ``topic@group`` or the cluster, depending on the name
