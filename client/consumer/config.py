"""Settings of consumers, the statuses of handlers, and where a new group starts.

Source: behaviour.md B.5 (settings), B.6 (where to start), B.12 and B.13 (status, context).
"""

import os
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum, StrEnum
from os import PathLike
from typing import Final, Literal, Self, TypeAlias, TypeVar, get_args, get_origin

from triomq.protocol.bodies.client import ConsumeFromWhere
from triomq.protocol.errors import ConfigError
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp
from triomq.protocol.typed import check_fields

#: Delay level of a message sent back whose handler gave none: the broker decides by the number of failures.
BROKER_DECIDES: Final = 0
#: Delay level that sends a failed message to the dead-letter topic at once.
DEAD_LETTER: Final = -1


class ConsumeStatus(Enum):
    """What a handler returns.  Source: ConsumeConcurrentlyStatus.java, ConsumeOrderlyStatus.java."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"  # orderly: as SUSPEND_CURRENT_QUEUE_A_MOMENT
    # Only for orderly consumption:
    COMMIT = "COMMIT"  # with ``auto_commit`` off: consumes all messages delivered since the last commit
    ROLLBACK = "ROLLBACK"  # with ``auto_commit`` off: redelivers all of them
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"  # redelivers these messages after a pause


class StartPosition(StrEnum):
    """Where a group without committed offsets begins."""

    EARLIEST = "earliest"  # CONSUME_FROM_FIRST_OFFSET
    LATEST = "latest"  # CONSUME_FROM_LAST_OFFSET


Start: TypeAlias = StartPosition | Literal["earliest", "latest"] | datetime
StartOffset: TypeAlias = Start | int
"""Where a consumer begins; an offset applies to each queue."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where a group without committed offsets begins, checked.

    Attributes:
        position: first or next message; ``None`` if a time or an offset decides.
        timestamp: first message stored at or after this time.
        queue_offset: this offset in each queue, or the nearest that it has.
    """

    position: StartPosition | None
    timestamp: Timestamp | None = None
    queue_offset: QueueOffset | None = None

    @classmethod
    def parse(cls, start: StartOffset | str) -> Self:
        """Check the ``start`` of a consumer.

        Raises:
            ConfigError: neither "earliest" nor "latest" nor a datetime with a time zone nor an offset from 0 on.
        """
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return cls(None, queue_offset=QueueOffset(start))
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise ConfigError(f"start: {start} has no time zone; write datetime(..., tzinfo=UTC) or .astimezone()")
            return cls(None, Timestamp(round(start.timestamp() * 1000)))
        try:
            return cls(StartPosition(str(start)))
        except ValueError:
            raise ConfigError(f"start: {start!r} must be 'earliest', 'latest', a datetime or an offset") from None

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """RocketMQ's name for it, as in heartbeats (wire.md 9.3)."""
        if self.queue_offset is not None:
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET  # RocketMQ has no name for an offset
        return _CONSUME_FROM_WHERE[self.position]


_CONSUME_FROM_WHERE: Final = {
    StartPosition.EARLIEST: ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    StartPosition.LATEST: ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    None: ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}


@dataclass(slots=True)
class ConsumeContext:
    """What a batch handler gets beside its messages, and may change.  Source: ConsumeConcurrentlyContext.java.

    Attributes:
        queue: where the messages come from (the retry topic for messages that failed before).
        delay_level: delay of failed messages: -1 dead letter at once, 0 the broker decides, above 0 that level.
        ack_index: index of the last message that succeeded; ``None`` is all of them.  Ignored after a failure.
    """

    queue: MessageQueue
    delay_level: int = BROKER_DECIDES
    ack_index: int | None = None


@dataclass(slots=True)
class OrderlyContext:
    """What an orderly batch handler gets beside its messages, and may change.  Source: ConsumeOrderlyContext.java.

    Attributes:
        queue: where the messages come from.
        auto_commit: whether ``SUCCESS`` consumes the messages; else only ``COMMIT`` does.
        suspend_s: pause of the queue after a failure, 0.01 to 30; ``None``: ``suspend_queue_s``.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_s: float | None = None


#: Maximum of ``max_concurrency``.
MAX_CONCURRENCY: Final = 1_000
_MIB: Final = 1024**2
_DAY_S: Final = 24 * 3600.0
_T = TypeVar("_T")


def _within(default: _T, low: float, high: float) -> _T:
    """Declare a setting with its range; ``None`` is always allowed."""
    return field(default=default, metadata={"range": (low, high)})


OutOfRange: TypeAlias = Literal["nearest", "earliest", "latest", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig:
    """How push consumers and lite pull consumers rebalance and pull.

    Raises:
        ConfigError: a value is outside its range.
    """

    # pullBatchSize; None: 32, and up to 256 from our brokers if there is a backlog
    pull_batch_size: int | None = _within(None, 1, 1_024)
    pull_interval_s: float = _within(0.0, 0.0, 65.535)  # pullInterval
    max_cached_messages: int = _within(1_000, 1, 65_535)  # pullThresholdForQueue
    max_cached_bytes: int = _within(100 * 1024**2, 1, 1_024 * _MIB)  # pullThresholdSizeForQueue
    max_span: int = _within(2_000, 1, 65_535)  # consumeConcurrentlyMaxSpan, consumeMaxSpan
    max_cached_messages_of_topic: int | None = _within(None, 1, 6_553_500)  # pullThresholdForTopic
    max_cached_bytes_of_topic: int | None = _within(None, 1, 102_400 * _MIB)  # pullThresholdSizeForTopic
    max_cached_messages_in_all: int | None = _within(None, 1, 6_553_500)  # pullThresholdForAll
    out_of_range: OutOfRange = "nearest"  # nearest is what the broker corrects to
    suspend_s: float = _within(15.0, 0.001, 600.0)  # brokerSuspendMaxTimeMillis: how long the broker may hold a pull
    pull_timeout_s: float = _within(30.0, 0.001, 660.0)  # consumerTimeoutMillisWhenSuspend
    pull_error_delay_s: float = _within(1.0, 0.001, 60.0)  # pullTimeDelayMillsWhenException
    broker_flow_control_delay_s: float = _within(0.02, 0.001, 60.0)  # PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL
    # how long to wait for running handlers of a queue with a wrong offset
    offset_illegal_delay_s: float = _within(10.0, 0.0, 60.0)
    pull_expiry_s: float = _within(120.0, 1.0, _DAY_S)  # rocketmq.client.pull.pullMaxIdleTime
    missing_topic_interval_s: float = _within(5.0, 0.1, 600.0)  # how often the route of a missing topic is requested
    local_offset_dir: str | PathLike[str] | None = None  # rocketmq.client.localOffsetStoreDir, for broadcasting
    retry_interval_s: float = _within(1.0, 0.01, 600.0)  # delay before an incomplete rebalance is retried

    def __post_init__(self) -> None:
        check_fields(self)
        for field_ in fields(self):
            value = getattr(self, field_.name)
            if value is not None and "range" in field_.metadata:
                low, high = field_.metadata["range"]
                if not low <= value <= high:
                    raise ConfigError(f"{field_.name}: {value} must be within {low} and {high}")
            if get_origin(field_.type) is Literal and value not in get_args(field_.type):
                raise ConfigError(f"{field_.name}: {value!r} must be {' or '.join(map(repr, get_args(field_.type)))}")
        if self.pull_timeout_s <= self.suspend_s:
            raise ConfigError(f"pull_timeout_s: {self.pull_timeout_s} must be above suspend_s, {self.suspend_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(PullConfig):
    """Settings of a push consumer, each with its RocketMQ name.

    Raises:
        ConfigError: a value is outside its range.
    """

    # consumeThreadMin, consumeThreadMax; None: 20, and with processes as many as there are CPUs
    max_concurrency: int | None = _within(None, 1, MAX_CONCURRENCY)
    executor: Literal["thread", "process"] = "thread"  # where handlers that are plain functions run
    batch_max_size: int = _within(32, 1, 1_024)  # consumeMessageBatchMaxSize, there 1; for batch handlers only
    max_reconsume_times: int = _within(16, 0, 2**31 - 1)  # maxReconsumeTimes
    # consumeTimeout: messages of handlers that run longer are sent back
    consume_timeout_s: float = _within(15 * 60.0, 0.001, 30 * _DAY_S)
    orderly_max_reconsume_times: int = _within(2**31 - 1, 0, 2**31 - 1)  # maxReconsumeTimes of orderly consumption
    suspend_queue_s: float = _within(1.0, 0.01, 30.0)  # suspendCurrentQueueTimeMillis: pause of a queue after a failure
    # rocketmq.client.maxTimeConsumeContinuously: then other queues get their turn
    continuous_limit_s: float = _within(60.0, 0.001, _DAY_S)
    # rocketmq.client.rebalance.lockInterval: how often queue locks are renewed
    lock_interval_s: float = _within(20.0, 0.01, 30.0)
    # rocketmq.client.rebalance.lockMaxLiveTime: without renewal no message is handled after it; brokers: 60 s
    lock_life_s: float = _within(30.0, 0.01, 59.0)
    lock_timeout_s: float = _within(1.0, 0.001, 60.0)
    grace_s: float = _within(10.0, 0.0, _DAY_S)  # awaitTerminationMillisWhenShutdown, there 0
    send_back_timeout_s: float = _within(5.0, 0.001, 60.0)
    # delay before a message that could not be sent back is handled again
    resubmit_delay_s: float = _within(5.0, 0.001, 600.0)

    @property
    def workers(self) -> int:
        """Maximum handlers at a time."""
        return self.max_concurrency or (20 if self.executor == "thread" else os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig(PullConfig):
    """Settings of a lite pull consumer, each with its RocketMQ name.

    Raises:
        ConfigError: a value is outside its range.
    """

    max_cached_messages_in_all: int | None = _within(10_000, 1, 6_553_500)  # pullThresholdForAll
    suspend_s: float = _within(20.0, 0.001, 600.0)  # brokerSuspendMaxTimeMillis
    auto_commit_interval_s: float = _within(5.0, 1.0, _DAY_S)  # autoCommitIntervalMillis
