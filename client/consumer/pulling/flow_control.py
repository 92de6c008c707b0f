"""Whether a queue may be pulled now, and how much: pure decisions.

Limits are "greater than": with 1,000 messages cached one more pull is made.  The limit on the span exists
because one slow message holds back the committed offset, and a crash would redeliver everything after it.

Source: behaviour.md B.9, DefaultMQPushConsumerImpl.pullMessage.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from triomq.client.consumer.config import PullConfig
from triomq.client.consumer.processing.process_queue import ProcessQueue

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
    """Return how many messages, and how many bytes of them, to ask for; ``None``: the broker decides."""
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
