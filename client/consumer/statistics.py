"""Counters of a consumer, and the immutable snapshots that users and tools get.

Counters are plain attributes, incremented where the work is done; rates are computed from samples on request.

Source: behaviour.md B.16 (client statistics), ConsumerStatsManager.java.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from triomq.protocol.bodies.client import ConsumeStatus
from triomq.protocol.message_queue import MessageQueue, QueueOffset

SAMPLE_INTERVAL_S: Final = 10.0
_SAMPLES: Final = 7  # one minute


class _Sample(NamedTuple):
    at: float
    succeeded: int
    failed: int
    busy_s: float
    pulls: int
    pulled: int
    pulling_s: float


class TopicCounters:
    """Counts of one topic since the consumer started.

    Attributes:
        succeeded: messages that a handler accepted.
        failed: messages for which a handler failed or raised.
        busy_s: time spent in handlers, summed over messages (a batch counts once).
        pulls: pulls that found messages.
        pulled: messages that came with them.
        pulling_s: time of these pulls, including the broker's hold.
        filtered: messages of these with another tag of the same hash code.
    """

    __slots__ = ("_samples", "busy_s", "failed", "filtered", "pulled", "pulling_s", "pulls", "succeeded")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.busy_s = 0.0
        self.pulls = 0
        self.pulled = 0
        self.pulling_s = 0.0
        self.filtered = 0
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)

    def sample(self, now: float) -> None:
        """Record the counts; call it every :data:`SAMPLE_INTERVAL_S`."""
        self._samples.append(self._now(now))

    def rates(self, now: float) -> ConsumeStatus:
        """Return the rates since a minute ago, or since the first sample, and the number of failures."""
        new = self._now(now)
        old = self._samples[0] if self._samples else new
        elapsed = max(new.at - old.at, 0.001)
        handled = new.succeeded - old.succeeded + new.failed - old.failed
        pulls = new.pulls - old.pulls
        return ConsumeStatus(
            pull_rt=(new.pulling_s - old.pulling_s) * 1000 / pulls if pulls else 0.0,
            pull_tps=(new.pulled - old.pulled) / elapsed,
            consume_rt=(new.busy_s - old.busy_s) * 1000 / handled if handled else 0.0,
            consume_ok_tps=(new.succeeded - old.succeeded) / elapsed,
            consume_failed_tps=(new.failed - old.failed) / elapsed,
            consume_failed_msgs=new.failed,
        )

    def _now(self, now: float) -> _Sample:
        return _Sample(now, self.succeeded, self.failed, self.busy_s, self.pulls, self.pulled, self.pulling_s)


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue held by the consumer.

    Attributes:
        next_pull_offset: where the next pull begins.
        committed_offset: the group's progress, stored now or within seconds.
        broker_max_offset: end of the queue as the last pull saw it.
        lag: messages between the committed offset and that end.
        cached_messages: pulled, not consumed.
        cached_bytes: size of these.
        in_flight: messages that a handler is processing.
        pulls: pull requests sent.
        last_pull_age_s: seconds since the pull loop last made progress.
        waiting_for: why the queue is not pulled now, "" if it is.
    """

    next_pull_offset: QueueOffset
    committed_offset: QueueOffset
    broker_max_offset: QueueOffset
    lag: int
    cached_messages: int
    cached_bytes: int
    in_flight: int
    pulls: int
    last_pull_age_s: float
    waiting_for: str


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Statistics of a consumer since its start.

    Attributes:
        succeeded: messages that handlers accepted.
        failed: messages for which handlers failed or raised.
        sent_back: failed messages stored for another try.
        filtered: messages dropped because only their tag's hash code matched.
        in_flight: messages that handlers are processing.
        cached_messages: messages in memory, including those in flight.
        cached_bytes: size of these.
        pulls: pulls that found messages.
        rebalances: rebalance rounds.
        offset_corrections: times that a broker refused an offset as out of range.
        is_suspended: whether the consumer was suspended.
        queues: the queues held now.
    """

    succeeded: int
    failed: int
    sent_back: int
    filtered: int
    in_flight: int
    cached_messages: int
    cached_bytes: int
    pulls: int
    rebalances: int
    offset_corrections: int
    is_suspended: bool
    queues: Mapping[MessageQueue, QueueStatistics]


@dataclass(frozen=True, slots=True)
class LitePullStatistics:
    """Statistics of a lite pull consumer since its first subscription or assignment.

    Attributes:
        polled: messages that were polled.
        filtered: messages dropped because only their tag's hash code matched.
        cached_messages: messages pulled and not polled.
        cached_bytes: size of these.
        pulls: pulls that found messages.
        rebalances: rebalance rounds.
        offset_corrections: times that a broker refused an offset as out of range.
        queues: the queues held now.
    """

    polled: int
    filtered: int
    cached_messages: int
    cached_bytes: int
    pulls: int
    rebalances: int
    offset_corrections: int
    queues: Mapping[MessageQueue, QueueStatistics]
