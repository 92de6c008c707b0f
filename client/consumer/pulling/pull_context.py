"""The state that all pull loops of a consumer share, the decision to pull a queue now, and the buffer of polls.

A limit is exceeded above its value: with 1,000 cached messages one more pull is made.  The limit on the span exists
because one slow message holds back the committed offset, and a crash would redeliver everything after it.

Source: behaviour.md B.9, DefaultMQPushConsumerImpl.pullMessage; B.15, DefaultLitePullConsumerImpl.java.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

import trio

from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.consumer.config import PullConfig
from triomq.client.consumer.handlers import FilterHook
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.processing.process_queue import ProcessQueue
from triomq.protocol.bodies.client import ConsumeResult
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


def pause_after(error: TriomqError, config: PullConfig, complaint_before: str) -> tuple[float, str, int]:
    """Return the seconds until a failed pull is repeated, a text that stays while the error lasts, and its log level.

    ``complaint_before`` is the text of the previous pull's error, or "".
    """
    complaint, delay_s = str(error).partition("\n")[0], config.pull_error_delay_s
    level = logging.INFO if error.is_logged_once else logging.WARNING
    if isinstance(error, SubscriptionNotExistError | SubscriptionNotLatestError):
        if complaint != complaint_before:  # the first time: the heartbeat follows
            return min(delay_s, _ANNOUNCED_DELAY_S), complaint, logging.INFO
    elif isinstance(error, BrokerResponseError) and error.code == ResponseCode.FLOW_CONTROL:
        delay_s = config.broker_flow_control_delay_s
    elif isinstance(error, BrokerResponseError) and error.retry_after_s is not None:
        delay_s, complaint = error.retry_after_s, error.remark  # without the time, which differs
    return delay_s, complaint, level


class ConsumeService(Protocol):
    """Takes the messages of a kind of consumer."""

    @property
    def concurrency(self) -> int | None:
        """How many handlers run at a time; ``None`` without a handler: the user polls."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Take messages that were put into a process queue."""

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Count the messages that handlers are processing."""

    async def consume_directly(self, message: MessageExt, queue: MessageQueue) -> tuple[ConsumeResult, str]:
        """Handle one message apart from queues and offsets; return the result and a remark."""


#: When there are this many units, those of queues that were given up are removed.
_MAX_UNCHECKED: Final = 256


class PollBuffer:
    """Messages that a lite pull consumer has pulled and its user has not polled; the pull loops limit them.

    A unit is the messages of one pull.  Units are polled in the order of their arrival.
    """

    concurrency: Final = None  # no handler

    def __init__(self) -> None:
        self._units: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()
        self._arrived = trio.Event()
        self._closed = False
        self._max_units = _MAX_UNCHECKED

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Add messages that were put into a process queue."""
        self._units.append((process_queue, messages))
        if len(self._units) > self._max_units:  # else units of lost queues would stay until polled
            self._units = deque(unit for unit in self._units if not unit[0].dropped)
            self._max_units = max(_MAX_UNCHECKED, 2 * len(self._units))
        self._arrived.set()

    async def consume_directly(self, _message: MessageExt, _queue: MessageQueue) -> tuple[ConsumeResult, str]:
        """Refuse, for lack of a handler."""
        await trio.lowlevel.checkpoint()
        return ConsumeResult.CR_THROW_EXCEPTION, "a lite pull consumer has no handler: its user polls"

    def in_flight(self, process_queue: ProcessQueue | None = None) -> int:
        """Return 0: polled messages are the user's responsibility."""
        return 0

    def take(self) -> list[MessageExt]:
        """Return the oldest unit, or an empty list; units of queues that were given up are dropped."""
        while self._units:
            process_queue, messages = self._units.popleft()
            if not process_queue.dropped:
                process_queue.remove_all(messages)
                process_queue.last_consumed_at = trio.current_time()
                process_queue.counters.succeeded += len(messages)
                return messages
        return []

    async def wait(self) -> None:
        """Return once there is a unit, or the buffer is closed."""
        while not (self._units or self._closed):
            if self._arrived.is_set():
                self._arrived = trio.Event()
            await self._arrived.wait()

    def close(self) -> None:
        """End all waits: no more units will arrive."""
        self._closed = True
        self._arrived.set()


@dataclass(slots=True)
class PullContext:
    """What all pull loops of a consumer share.

    Attributes:
        requests: how to reach brokers.
        offsets: where progress is kept.
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

    @property
    def is_lite(self) -> bool:
        """Whether the user polls, and only commits move the progress; else the results of handlers do."""
        return self.service.concurrency is None

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
