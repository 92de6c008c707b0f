"""Headers of requests about queues and the offsets of groups in them.

Source: wire.md 5, 6, 7.
"""

from dataclasses import dataclass
from typing import Annotated

from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.wire.headers import Header, Int32, Resource


@dataclass(slots=True)
class GroupQueueRequestHeader(Header):
    """Names a queue that a group consumes: the first fields of several headers."""

    consumer_group: Annotated[str, Resource.GROUP]
    topic: Annotated[str, Resource.TOPIC]
    queue_id: Int32


@dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(GroupQueueRequestHeader):
    """Source: QueryConsumerOffsetRequestHeader.java."""

    set_zero_if_not_found: bool | None = None  # 5.x


@dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(GroupQueueRequestHeader):
    """Source: UpdateConsumerOffsetRequestHeader.java."""

    commit_offset: QueueOffset


@dataclass(slots=True)
class QueueRequestHeader(Header):
    """Names one queue: codes 30, 31 and 32.  Source: GetMaxOffsetRequestHeader.java and its siblings."""

    topic: Annotated[str, Resource.TOPIC]
    queue_id: Int32


@dataclass(slots=True)
class SearchOffsetRequestHeader(QueueRequestHeader):
    """Source: SearchOffsetRequestHeader.java."""

    timestamp: int  # ms


@dataclass(slots=True)
class GetBrokerConsumeStatsRequestHeader(Header):
    """Source: GetConsumeStatsInBrokerHeader.java."""

    is_order: bool


@dataclass(slots=True)
class QueryCorrectionOffsetHeader(Header):
    """Source: QueryCorrectionOffsetHeader.java."""

    topic: Annotated[str, Resource.TOPIC]
    compare_group: str | None = None
    filter_groups: str | None = None  # names between commas


@dataclass(slots=True)
class OffsetResponseHeader(Header):
    """Answers codes 14, 29, 30 and 31."""

    offset: QueueOffset


@dataclass(slots=True)
class TimestampResponseHeader(Header):
    """Answers code 32."""

    timestamp: int  # ms; -1 without messages


@dataclass(slots=True)
class ResetOffsetRequestHeader(Header):
    """Codes 220 and 222.  Source: ResetOffsetRequestHeader.java."""

    topic: Annotated[str, Resource.TOPIC]
    group: Annotated[str, Resource.GROUP]
    timestamp: int  # ms; -1: the end of the queue
    is_force: bool


@dataclass(slots=True)
class GetConsumerStatusRequestHeader(Header):
    """Codes 221 and 223.  Source: GetConsumerStatusRequestHeader.java."""

    topic: Annotated[str, Resource.TOPIC]
    group: Annotated[str, Resource.GROUP]
    client_addr: str | None = None


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(Header):
    """Source: CloneGroupOffsetRequestHeader.java."""

    src_group: Annotated[str, Resource.GROUP]
    dest_group: Annotated[str, Resource.GROUP]
    topic: Annotated[str, Resource.TOPIC] | None = None
    offline: bool = False


@dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(Header):
    """Source: QueryConsumeTimeSpanRequestHeader.java."""

    topic: Annotated[str, Resource.TOPIC]
    group: Annotated[str, Resource.GROUP]


@dataclass(slots=True)
class GetConsumeStatsRequestHeader(Header):
    """Source: GetConsumeStatsRequestHeader.java."""

    consumer_group: Annotated[str, Resource.GROUP]
    topic: Annotated[str, Resource.TOPIC] | None = None


@dataclass(slots=True)
class QueryConsumeQueueRequestHeader(QueueRequestHeader):
    """Source: QueryConsumeQueueRequestHeader.java."""

    index: int
    count: Int32
    consumer_group: Annotated[str, Resource.GROUP] | None = None


@dataclass(slots=True)
class LogChecksumRequestHeader(Header):
    """A piece of the commit log, from one physical offset to another; an empty one asks for the ends of the log."""

    begin: int
    end: int


@dataclass(slots=True)
class LogChecksum(Header):
    """The answer: the CRC-32 of the piece, and the ends of the log; -1 and 0 without files."""

    crc32: int
    min_offset: int
    max_offset: int
