"""Bodies between clients and brokers: heartbeats, locks, group members, offset resets, running info.

Source: wire.md 6, 9.3, 9.9, 9.11.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from triomq.protocol.bodies.fastjson import dumps, queue_to_json
from triomq.protocol.bodies.json_body import JsonBody, Wire
from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, TAG, TagFilter
from triomq.protocol.java import tags_code
from triomq.protocol.message_queue import MessageQueue


class ConsumeType(StrEnum):
    """How a group receives messages; in Java's order, because a peer may send the ordinal."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"  # pull
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"  # push
    CONSUME_POP = "CONSUME_POP"  # 5.x


class MessageModel(StrEnum):
    """Whether every member of a group receives every message; in Java's order."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without offsets begins; in Java's order."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"  # deprecated
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"  # deprecated
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"  # deprecated
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(slots=True)
class SubscriptionData(JsonBody):
    """A group's subscription to one topic.

    The sender derives ``code_set`` and ``tags_set`` from ``sub_string``; Go sends the codes as text.  Our broker keeps
    neither.  ``sub_version`` is a time, in ms from Java and in ns from Go; it is only compared.
    """

    topic: str = ""
    sub_string: str = SUBSCRIBE_ALL
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False

    def with_tags(self) -> Self:
        """Return a copy with the tags and codes of the expression; without any if it cannot be read."""
        tags: tuple[str, ...] = ()
        if self.expression_type == TAG:
            with suppress(SubscriptionParseError):
                tags = TagFilter.parse(self.sub_string).tags
        return replace(self, tags_set=list(tags), code_set=list(map(tags_code, tags)))


@dataclass(slots=True)
class ProducerData(JsonBody):
    """One producer group of a client."""

    group_name: str = ""


@dataclass(slots=True)
class ConsumerData(JsonBody):
    """One consumer group of a client."""

    group_name: str = ""
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@dataclass(slots=True)
class HeartbeatData(JsonBody):
    """HEART_BEAT (34): all groups of a client.  Source: HeartbeatData.java."""

    client_id: Annotated[str, Wire("clientID")] = ""
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)


@dataclass(slots=True)
class CheckClientRequestBody(JsonBody):
    """CHECK_CLIENT_CONFIG (46): whether the broker supports the filter.  Source: CheckClientRequestBody.java."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


@dataclass(slots=True)
class ConsumerIdList(JsonBody):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (38).  Source: GetConsumerListByGroupResponseBody.java."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LockBatchRequestBody(JsonBody):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).  Source: LockBatchRequestBody.java, UnlockBatchRequestBody.java.

    ``ends_with_connection`` is triomq's own: the client stops consuming the queues when its connection ends.
    """

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    ends_with_connection: bool | None = None


@dataclass(slots=True)
class LockBatchResponseBody(JsonBody):
    """Answer to LOCK_BATCH_MQ: the queues of the request that the client now holds."""

    lock_ok_mq_set: Annotated[list[MessageQueue], Wire("lockOKMQSet")] = field(default_factory=list)


@dataclass(slots=True)
class ResetOffsetBody(JsonBody):
    """New offset of each queue: RESET_CONSUMER_CLIENT_OFFSET (220), answer to 222; read in all its spellings."""

    irregular: ClassVar = True

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def encode_for_cpp(self) -> bytes:
        """Return the form that C++ clients read: a list.  Source: ResetOffsetBodyForC.java."""
        entries: list[dict[str, Any]] = []
        for queue, offset in self.offset_table.items():
            members = queue_to_json(queue)
            entries.append({"brokerName": members.pop("brokerName"), "offset": offset, **members})
        return dumps({"offsetTable": entries})


@dataclass(slots=True)
class LocalOffsets(JsonBody):
    """Progress of a broadcasting consumer in its file.  Source: OffsetSerializeWrapper.java."""

    irregular: ClassVar = True

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True)
class GetConsumerStatusBody(JsonBody):
    """Offsets of a member by queue (answer to 221), of all members by client id and queue (answer to 223)."""

    irregular: ClassVar = True

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@dataclass(slots=True)
class ProcessQueueInfo(JsonBody):
    """A consumer's state of one queue.  Source: ProcessQueueInfo.java."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: Annotated[int, Wire("cachedMsgSizeInMiB")] = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: Annotated[bool, Wire("droped")] = False  # Java's spelling
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(slots=True)
class ConsumeStatus(JsonBody):
    """A consumer's rates for one topic.  Source: ConsumeStatus.java."""

    pull_rt: Annotated[float, Wire("pullRT")] = 0.0
    pull_tps: Annotated[float, Wire("pullTPS")] = 0.0
    consume_rt: Annotated[float, Wire("consumeRT")] = 0.0
    consume_ok_tps: Annotated[float, Wire("consumeOKTPS")] = 0.0
    consume_failed_tps: Annotated[float, Wire("consumeFailedTPS")] = 0.0
    consume_failed_msgs: int = 0


@dataclass(slots=True)
class ConsumerRunningInfo(JsonBody):
    """Answer to GET_CONSUMER_RUNNING_INFO (307).  Source: ConsumerRunningInfo.java."""

    irregular: ClassVar = True

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """Outcome of a message consumed on request; in Java's order.  Source: CMResult.java."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(slots=True)
class ConsumeMessageDirectlyResult(JsonBody):
    """Answer to CONSUME_MESSAGE_DIRECTLY (309); "mills" is Java's spelling."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0
