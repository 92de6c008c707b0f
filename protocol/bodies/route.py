"""Bodies of the name server: routes, clusters, lists, and what a broker registers.

Source: wire.md 8, 9.4, 9.5, 9.7, 9.8.
"""

import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import ClassVar, Final, Self

from triomq.protocol.bodies.fastjson import dumps, loads
from triomq.protocol.bodies.json_body import JsonBody
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.compression import inflate

_LENGTH: Final = Struct(">i")
_TOPIC_WORDS: Final = 5
_BEST_LEVEL: Final = 9  # what Java uses here


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
class ClusterInfo(JsonBody):
    """Answer to GET_BROKER_CLUSTER_INFO (106).  Source: ClusterInfo.java."""

    irregular: ClassVar = True

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


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
class SubscriptionGroupWrapper(JsonBody):
    """All consumer groups of a broker (201).  Source: SubscriptionGroupWrapper.java."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True)
class RegisterBrokerBody(JsonBody):
    """REGISTER_BROKER (103): as JSON, or compressed if the header says so.  Source: RegisterBrokerBody.java."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(default_factory=list)

    def encode_compressed(self) -> bytes:
        """Return the compressed form: length-prefixed parts in one zlib stream, a line of five words for each topic."""
        wrapper = self.topic_config_serialize_wrapper
        parts = [_prefixed(wrapper.data_version.encode()), _LENGTH.pack(len(wrapper.topic_config_table))]
        parts += [_prefixed(_topic_words(config).encode()) for config in wrapper.topic_config_table.values()]
        parts.append(_prefixed(dumps(self.filter_server_list)))
        return zlib.compress(b"".join(parts), _BEST_LEVEL)

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        """Read the compressed form.

        Raises:
            ProtocolError: damaged, truncated or far too large.
        """
        reader = _Parts(inflate(data))
        version = DataVersion.decode(reader.part())
        configs = [_topic_of_words(reader.part()) for _ in range(reader.count())]
        servers = loads(reader.part())
        if not isinstance(servers, list):
            raise ProtocolError("RegisterBrokerBody: the filter servers are no list")
        table = {config.topic_name: config for config in configs}
        return cls(TopicConfigSerializeWrapper(table, version), list(map(str, servers)))


def _prefixed(part: bytes) -> bytes:
    return _LENGTH.pack(len(part)) + part


class _Parts:
    """Reads length-prefixed parts; every length is compared with what is left."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def count(self) -> int:
        if len(self._body) - self._position < _LENGTH.size:
            raise ProtocolError(f"RegisterBrokerBody: truncated at {self._position}")
        (number,) = _LENGTH.unpack_from(self._body, self._position)
        self._position += _LENGTH.size
        if not 0 <= number <= len(self._body) - self._position:
            raise ProtocolError(f"RegisterBrokerBody: length {number} at {self._position - _LENGTH.size}")
        return int(number)

    def part(self) -> bytes:
        length = self.count()
        self._position += length
        return self._body[self._position - length : self._position]


def _topic_words(config: TopicConfig) -> str:
    numbers = f"{config.read_queue_nums} {config.write_queue_nums} {config.perm}"
    return f"{config.topic_name} {numbers} {config.topic_filter_type.name}"


def _topic_of_words(line: bytes) -> TopicConfig:
    words = str(line, "utf-8", "replace").split(" ")
    if len(words) < _TOPIC_WORDS:
        raise ProtocolError(f"RegisterBrokerBody: topic of {len(words)} words")
    names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
    return TopicConfig.from_json(dict(zip(names, words, strict=False)))
