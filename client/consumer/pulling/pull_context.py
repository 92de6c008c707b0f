"""What all pull loops of a consumer share, and the decision whether a queue is pulled now.

A limit is exceeded above its value: with 1,000 cached messages one more pull is made.  The limit on the span exists
because one slow message holds back the committed offset, and a crash would redeliver everything after it.

Source: behaviour.md B.9, DefaultMQPushConsumerImpl.pullMessage.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

import trio

from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.config import PullConfig
from triomq.client.consumer.hooks import FilterHook
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.client.consumer.pulling.progress import Progress
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    TriomqError,
)
from triomq.protocol.event_log import EventLog
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.client.consumer.pull")

#: Delay after which a broker that did not know the subscription, and gets a heartbeat now, is asked again.
_ANNOUNCED_DELAY_S: Final = 0.1
#: How often a pull that waits for room checks again by itself.
_RECHECK_S: Final = 1.0


_NO_LIMIT: Final = 2**63
#: Messages of one pull.  Source: pullBatchSize.
_BATCH_SIZE: Final = 32
#: Messages of one pull from a backlog, if a triomq broker answers it: cheaper than eight pulls of 32.
_BULK_SIZE: Final = 256
_BULK_BYTES: Final = 256 * 1024


class PullDecision(Enum):
    """What to do with a queue's next pull; all but ``PULL`` and ``END``: ask again after a change."""

    PULL = "pull"
    END = "the queue was given up"
    SUSPENDED = "the consumer is suspended"
    PAUSED = "the queue is paused"
    TOO_MANY_MESSAGES = "too many messages are cached"
    TOO_MANY_BYTES = "too many bytes are cached"
    TOO_WIDE_SPAN = "one message holds back too many after it"


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits of one queue."""

    messages: int
    size_bytes: int
    span: int

    @classmethod
    def of(cls, config: PullConfig, queues: int, *, orderly: bool = False) -> "FlowLimits":
        """Return the limits of each of ``queues`` queues; a limit for a topic, or for all, is divided among them.

        Orderly consumption has no limit on the span: it leaves nothing unfinished behind.
        """
        messages, size_bytes = config.max_cached_messages, config.max_cached_bytes
        if config.max_cached_messages_of_topic is not None:
            messages = max(1, config.max_cached_messages_of_topic // max(1, queues))
        if config.max_cached_bytes_of_topic is not None:
            size_bytes = max(1, config.max_cached_bytes_of_topic // max(1, queues))
        if config.max_cached_messages_in_all is not None:
            messages = min(messages, max(1, config.max_cached_messages_in_all // max(1, queues)))
        return cls(messages, size_bytes, _NO_LIMIT if orderly else config.max_span)


def pull_size(config: PullConfig, queue: ProcessQueue, limits: FlowLimits, backlog: int) -> tuple[int, int | None]:
    """Return the number of messages to ask for, and of their bytes; ``None``: the broker decides."""
    if config.pull_batch_size is not None:
        return config.pull_batch_size, None if config.pull_batch_size <= _BATCH_SIZE else _BULK_BYTES
    if backlog <= _BATCH_SIZE:
        return _BATCH_SIZE, None
    room = min(limits.messages - queue.cached_messages, limits.span - queue.span)
    return max(_BATCH_SIZE, min(room, _BULK_SIZE)), _BULK_BYTES


def decide_pull(
    queue: ProcessQueue, limits: FlowLimits, *, suspended: bool = False, paused: bool = False
) -> PullDecision:
    """Return the first reason not to pull, or ``PULL``."""
    if queue.dropped:
        return PullDecision.END
    if suspended:
        return PullDecision.SUSPENDED
    if paused:
        return PullDecision.PAUSED
    if queue.cached_messages > limits.messages:
        return PullDecision.TOO_MANY_MESSAGES
    if queue.cached_bytes > limits.size_bytes:
        return PullDecision.TOO_MANY_BYTES
    if queue.span > limits.span:
        return PullDecision.TOO_WIDE_SPAN
    return PullDecision.PULL


class Pause(NamedTuple):
    """What follows a failed pull.

    Attributes:
        delay_s: time until the next pull.
        complaint: the error, as a text that stays the same while the error lasts.
        level: of the log.
    """

    delay_s: float
    complaint: str
    level: int


def pause_after(error: TriomqError, config: PullConfig, complaint_before: str) -> Pause:
    """Return the pause after a failed pull; ``complaint_before`` is the error of the previous pull, or ""."""
    complaint, delay_s = str(error).partition("\n")[0], config.pull_error_delay_s
    level = logging.INFO if error.is_logged_once else logging.WARNING
    if isinstance(error, SubscriptionNotExistError | SubscriptionNotLatestError):
        if complaint != complaint_before:  # the first time: the heartbeat follows
            return Pause(min(delay_s, _ANNOUNCED_DELAY_S), complaint, logging.INFO)
    elif isinstance(error, BrokerResponseError) and error.code == ResponseCode.FLOW_CONTROL:
        delay_s = config.broker_flow_control_delay_s
    elif isinstance(error, BrokerResponseError) and error.retry_after_s is not None:
        delay_s, complaint = error.retry_after_s, error.remark  # without the time, which differs
    return Pause(delay_s, complaint, level)


class ConsumeService(Protocol):
    """Takes the messages."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Take messages that were put into a process queue."""

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Count the messages that handlers are processing."""


@dataclass(slots=True)
class PullContext:
    """What all pull loops of a consumer share.

    Attributes:
        requests: how to reach brokers.
        offsets: where progress is kept.
        progress: what moves it.
        service: where messages go.
        config: settings.
        announce: requests a heartbeat soon, because a broker does not know the subscription.
        orderly: whether consumption is orderly.
        filters: choose among the messages of each pull.
        suspended: nothing is pulled.
        limits: limits of each queue; replaced when the number of queues changes.
        corrections: offsets that brokers refused.
        gone_topics: were deleted since the consumer began: a queue taken later begins at its first message.
        complaints: present errors of pulls, and how many queues have each.
        failures: logs them, whichever queues have them.
    """

    requests: QueueRequests
    offsets: OffsetStore
    progress: Progress
    service: ConsumeService
    config: PullConfig
    announce: Callable[[], None]
    orderly: bool = False
    filters: Sequence[FilterHook] = ()
    suspended: bool = False
    limits: FlowLimits = field(init=False)
    corrections: int = 0
    gone_topics: set[str] = field(default_factory=set)
    complaints: Counter[str] = field(default_factory=Counter)
    failures: EventLog = field(
        default_factory=lambda: EventLog(LOGGER, "pull failed, retrying queue=%s error=%s", logging.WARNING)
    )

    def __post_init__(self) -> None:
        self.share_limits(1)

    async def wait_for_room(self, process_queue: ProcessQueue, is_room: Callable[[], bool]) -> None:
        """Return when a removal has made room, or after a time: limits may have changed."""
        room = trio.Event()

        def look() -> None:
            if is_room():
                room.set()

        process_queue.on_removal = look
        try:
            with trio.move_on_after(_RECHECK_S):
                await room.wait()
        finally:
            process_queue.on_removal = None

    def share_limits(self, queues: int) -> None:
        """Divide the limits among this many queues."""
        self.limits = FlowLimits.of(self.config, queues, orderly=self.orderly)

    def complain(self, queue: MessageQueue, before: str, complaint: str, level: int) -> None:
        """Record and log why the last pull of a queue failed, and the one before; "": it did not."""
        if complaint:
            self.failures.occurred(queue, complaint, key=complaint, level=level)
        if complaint == before:
            return
        if complaint:
            self.complaints[complaint] += 1
        if before and self.withdraw(before) and not complaint:
            self.failures.ended(key=before)
            LOGGER.info("pulls work again queue=%s error=%s", queue, before)

    def withdraw(self, complaint: str) -> bool:
        """Record that a queue no longer has this error; return whether it was the last one."""
        self.complaints[complaint] -= 1
        if self.complaints[complaint]:
            return False
        del self.complaints[complaint]
        return True
