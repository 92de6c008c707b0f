"""Headers of requests about messages: send, pull, look up, send back, transactions.

Source: wire.md 5, 6.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.requests.offsets import GroupQueueRequestHeader
from triomq.protocol.wire.headers import Header, Int32, Resource, Wire


@dataclass(slots=True)
class MessageHeader(Header):
    """The fields that a send and a reply pushed to its requester have in common."""

    producer_group: str
    topic: Annotated[str, Resource.TOPIC]
    default_topic: str  # the template for automatic creation, normally TBW102
    default_topic_queue_nums: Int32
    queue_id: Int32  # below 0: the broker chooses
    sys_flag: Int32
    born_timestamp: int  # ms
    flag: Int32


@dataclass(slots=True)
class SendMessageRequestHeader(MessageHeader):
    """Long names, code 10.  Source: SendMessageRequestHeader.java."""

    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


@dataclass(slots=True)
class SendMessageRequestHeaderV2(SendMessageRequestHeader):
    """The same with one-letter names, codes 310, 320 and 325.  Source: SendMessageRequestHeaderV2.java."""

    has_letters: ClassVar = True


@dataclass(slots=True)
class PullMessageRequestHeader(GroupQueueRequestHeader):
    """Source: PullMessageRequestHeader.java."""

    queue_offset: QueueOffset  # first message wanted
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: QueueOffset
    suspend_timeout_millis: int  # how long the broker may hold the request
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    #: triomq's own: the most bytes of messages that the reader accepts at once; the limits of long pulls then apply.
    #: Apache's brokers ignore it.  Its own ``maxMsgBytes`` is useless: 5.x pull consumers send the greatest number.
    max_transfer_bytes: Annotated[Int32, Wire("triomqMaxTransferBytes")] | None = None


@dataclass(slots=True)
class PullMessageResponseHeader(Header):
    """Source: PullMessageResponseHeader.java."""

    suggest_which_broker_id: int
    next_begin_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset


@dataclass(slots=True)
class QueryMessageRequestHeader(Header):
    """Source: QueryMessageRequestHeader.java."""

    topic: Annotated[str, Resource.TOPIC]
    key: str
    max_num: Int32
    begin_timestamp: int  # ms, store time
    end_timestamp: int
    unique_key_query: Annotated[bool, Wire("_UNIQUE_KEY_QUERY")] = False


@dataclass(slots=True)
class QueryMessageResponseHeader(Header):
    """Progress of the index of keys; zeros if nothing was found.  Source: QueryMessageResponseHeader.java."""

    index_last_update_timestamp: int  # ms, store time
    index_last_update_phyoffset: PhysicalOffset


@dataclass(slots=True)
class ViewMessageRequestHeader(Header):
    """Source: ViewMessageRequestHeader.java."""

    offset: PhysicalOffset


@dataclass(slots=True)
class ConsumerSendMsgBackRequestHeader(Header):
    """Source: ConsumerSendMsgBackRequestHeader.java."""

    offset: PhysicalOffset
    group: Annotated[str, Resource.GROUP]
    delay_level: Int32  # 0: the broker decides; below 0: dead letter at once
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: Annotated[str, Wire("bname")] | None = None


@dataclass(slots=True)
class ConsumeMessageDirectlyRequestHeader(Header):
    """Source: ConsumeMessageDirectlyResultRequestHeader.java."""

    consumer_group: Annotated[str, Resource.GROUP]
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: Annotated[str, Resource.BROKER] | None = None


@dataclass(slots=True)
class EndTransactionRequestHeader(Header):
    """Source: EndTransactionRequestHeader.java."""

    producer_group: str
    tran_state_table_offset: QueueOffset
    commit_log_offset: PhysicalOffset
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    broker_name: Annotated[str, Wire("bname")] | None = None


@dataclass(slots=True)
class RecallMessageRequestHeader(Header):
    """Source: RecallMessageRequestHeader.java of 5.x."""

    topic: Annotated[str, Resource.TOPIC]
    recall_handle: str
    producer_group: str | None = None
    broker_name: Annotated[str, Wire("bname")] | None = None


@dataclass(slots=True)
class ResumeCheckHalfMessageRequestHeader(Header):
    """Source: ResumeCheckHalfMessageRequestHeader.java."""

    msg_id: str


@dataclass(slots=True)
class CheckTransactionStateRequestHeader(Header):
    """Broker to producer.  Source: CheckTransactionStateRequestHeader.java."""

    tran_state_table_offset: QueueOffset
    commit_log_offset: PhysicalOffset
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: Annotated[str, Wire("bname")] | None = None


@dataclass(slots=True)
class PushReplyMessageRequestHeader(MessageHeader):
    """Broker to the requester.  Source: ReplyMessageRequestHeader.java."""

    born_host: str  # ip:port
    store_host: str  # ip:port
    store_timestamp: int  # ms
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
