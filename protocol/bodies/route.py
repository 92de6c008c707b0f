"""Routes, clusters, lists of names, the settings of topics and groups, and the body of REGISTER_BROKER (103).

Source: wire.md 8, 9.4, 9.5, 9.7, 9.8; RegisterBrokerBody.java, TopicConfig.java.
"""

import struct
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Annotated, ClassVar, Final, TypeAlias

from triomq.protocol.bodies.fastjson import dumps
from triomq.protocol.bodies.json_body import JsonBody, Wire
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.compression import inflate


@dataclass(slots=True)
class QueueData(JsonBody):
    """How many queues of a topic one broker has.  Source: QueueData.java."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@dataclass(slots=True)
class BrokerData(JsonBody):
    """Addresses of one broker by broker id; 0 is the master.  Source: BrokerData.java."""

    irregular: ClassVar = True

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False  # 5.x; some clients do not read a route without it


@dataclass(slots=True)
class TopicRouteData(JsonBody):
    """Answer to GET_ROUTEINFO_BY_TOPIC (105).  Source: TopicRouteData.java."""

    irregular: ClassVar = True

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)

    def encode(self, *, quoted_ids: bool = True) -> bytes:
        """Return compact JSON; unlike other bodies, with broker ids as text: every client of any version reads that."""
        return dumps(self.to_json(), quoted_ids=quoted_ids)


@dataclass(slots=True)
class MissingBroker(JsonBody):
    """A broker that left a name server of triomq without unregistering, and why."""

    broker_name: str = ""
    broker_id: int = 0
    broker_addr: str = ""
    seconds_ago: int = 0
    reason: str = ""


@dataclass(slots=True)
class NameConflict(JsonBody):
    """Brokers that register under the same name and id at a name server of triomq, by turns."""

    broker_name: str = ""
    broker_id: int = 0
    broker_addrs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ClusterInfo(JsonBody):
    """Answer to GET_BROKER_CLUSTER_INFO (106); other readers ignore our members.  Source: ClusterInfo.java."""

    irregular: ClassVar = True

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)
    missing_brokers: Annotated[list[MissingBroker] | None, Wire("triomqMissingBrokers")] = None
    name_conflicts: Annotated[list[NameConflict] | None, Wire("triomqNameConflicts")] = None


@dataclass(slots=True)
class TopicList(JsonBody):
    """Topic names.  Source: TopicList.java."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@dataclass(slots=True)
class GroupList(JsonBody):
    """Names of consumer groups.  Source: GroupList.java."""

    group_list: list[str] = field(default_factory=list)


@dataclass(slots=True)
class KVTable(JsonBody):
    """Text by text: runtime info (28), a namespace of the name server (219).  Source: KVTable.java."""

    table: dict[str, str] = field(default_factory=dict)


class TopicFilterType(IntEnum):
    """Whether messages of a topic have one tag; nothing looks at it.  Source: TopicFilterType.java."""

    SINGLE_TAG = 0
    MULTI_TAG = 1


@dataclass(slots=True)
class DataVersion(JsonBody):
    """Tells whether a table changed; both members together.  Source: DataVersion.java."""

    timestamp: int = 0  # ms
    counter: int = 0


@dataclass(slots=True)
class TopicConfig(JsonBody):
    """How a broker keeps a topic, on the wire and in ``topics.json``.  Source: TopicConfig.java."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None  # 5.x


@dataclass(slots=True)
class TopicConfigSerializeWrapper(JsonBody):
    """All topics of a broker (21).  Source: TopicConfigSerializeWrapper.java."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True)
class SubscriptionGroupConfig(JsonBody):
    """What a broker allows a consumer group; on the wire and in ``subscriptionGroup.json``.

    Source: SubscriptionGroupConfig.java.
    """

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@dataclass(slots=True)
class TopicConfigList(JsonBody):
    """Topics to set (18 of 5.x).  Source: CreateTopicListRequestBody.java."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


@dataclass(slots=True)
class GroupConfigList(JsonBody):
    """Groups to set (225 of 5.x).  Source: SubscriptionGroupList.java."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


@dataclass(slots=True)
class GroupNameList(JsonBody):
    """Groups to delete (5003 of 5.5.1).  Source: DeleteSubscriptionGroupListRequestBody.java."""

    group_name_list: list[str] = field(default_factory=list)
    clean_offset: bool = False


@dataclass(slots=True)
class SubscriptionGroupWrapper(JsonBody):
    """All consumer groups of a broker (201).  Source: SubscriptionGroupWrapper.java."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


_LENGTH: Final = Struct(">i")
_MAX_BYTES: Final = 64 * 1024**2


@dataclass(slots=True)
class RegisterBrokerBody(JsonBody):
    """The plain form.  Source: RegisterBrokerBody.java."""

    irregular: ClassVar = True  # 5.x: queue mappings of static topics
    max_irregular_bytes: ClassVar = 12 * 1024  # some ms: anybody can send one

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(default_factory=list)


def registration_crc(body: bytes | memoryview) -> int:
    """Return the checksum of a body as it is sent; Java's is never negative."""
    return zlib.crc32(body) & 0x7FFF_FFFF


Reading: TypeAlias = Generator[tuple[()], None, TopicConfigSerializeWrapper]
"""Yields nothing, at each place where it may pause."""


def read_registration(body: bytes | memoryview, *, compressed: bool) -> Reading:
    """Return the topics of a registration; none for an empty body.

    Raises:
        ProtocolError: damaged, or more than 64 MiB.
    """
    if compressed and body:
        try:
            return (yield from _read_compressed(inflate(bytes(body), _MAX_BYTES)))
        except (struct.error, ValueError) as exc:
            raise ProtocolError(f"compressed registration: {exc}") from exc
    topics: dict[str, TopicConfig] = {}
    version = DataVersion()
    for part in RegisterBrokerBody.parts(body, "topicConfigSerializeWrapper", "topicConfigTable") if body else ():
        topics |= part.topic_config_serialize_wrapper.topic_config_table
        version = part.topic_config_serialize_wrapper.data_version
        yield ()
    return TopicConfigSerializeWrapper(topics, version)


def _read_compressed(content: bytes) -> Reading:
    """Read the version and a line for each topic; what follows, also of 5.x brokers, means nothing here."""
    version, position = _part(content, 0)
    (count,) = _LENGTH.unpack_from(content, position)
    position += _LENGTH.size
    topics = {}
    for _ in range(count):
        line, position = _part(content, position)
        name, read_queues, write_queues, perm, *_ = line.decode().split(" ")
        topics[name] = TopicConfig(name, int(read_queues), int(write_queues), int(perm))
        yield ()
    return TopicConfigSerializeWrapper(topics, DataVersion.decode(version))


def _part(content: bytes, position: int) -> tuple[bytes, int]:
    """Return the part that follows its length, and the position after it."""
    (length,) = _LENGTH.unpack_from(content, position)
    begin = position + _LENGTH.size
    if not 0 <= length <= len(content) - begin:
        raise ValueError(f"a part of {length} bytes at {position} of {len(content)}")
    return content[begin : begin + length], begin + length
