"""Counters of a consumer, and the immutable snapshots that users and tools get.

Counters are plain attributes, incremented where the work is done; rates are computed from samples on request.

Source: behaviour.md B.16 (client statistics), ConsumerStatsManager.java.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from triomq.protocol.bodies.client import ConsumeStatus
from triomq.protocol.message_queue import MessageQueue, QueueOffset

SAMPLE_INTERVAL_S: Final = 10.0
_SAMPLES: Final = 7  # one minute


@dataclass(slots=True)
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

    succeeded: int = 0
    failed: int = 0
    busy_s: float = 0.0
    pulls: int = 0
    pulled: int = 0
    pulling_s: float = 0.0
    filtered: int = 0
    #: Times, and the counts then.
    _samples: "deque[tuple[float, TopicCounters]]" = field(default_factory=lambda: deque(maxlen=_SAMPLES), init=False)

    def sample(self, now: float) -> None:
        """Record the counts; call it every :data:`SAMPLE_INTERVAL_S`."""
        self._samples.append((now, replace(self)))

    def rates(self, now: float) -> ConsumeStatus:
        """Return the rates since a minute ago, or since the first sample, and the number of failures."""
        began, old = self._samples[0] if self._samples else (now, self)
        elapsed = max(now - began, 0.001)
        handled = self.succeeded - old.succeeded + self.failed - old.failed
        pulls = self.pulls - old.pulls
        return ConsumeStatus(
            pull_rt=(self.pulling_s - old.pulling_s) * 1000 / pulls if pulls else 0.0,
            pull_tps=(self.pulled - old.pulled) / elapsed,
            consume_rt=(self.busy_s - old.busy_s) * 1000 / handled if handled else 0.0,
            consume_ok_tps=(self.succeeded - old.succeeded) / elapsed,
            consume_failed_tps=(self.failed - old.failed) / elapsed,
            consume_failed_msgs=self.failed,
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStatistics:
    """The statistics that consumers of all kinds have.

    Attributes:
        filtered: messages dropped because only their tag's hash code matched.
        cached_messages: messages in memory, in a push consumer including those in flight.
        cached_bytes: size of these.
        pulls: pulls that found messages.
        rebalances: rebalance rounds.
        offset_corrections: times that a broker refused an offset as out of range.
        queues: the queues held now.
    """

    filtered: int
    cached_messages: int
    cached_bytes: int
    pulls: int
    rebalances: int
    offset_corrections: int
    queues: Mapping[MessageQueue, QueueStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics(PullStatistics):
    """Statistics of a push consumer since its start, with those of all consumers.

    Attributes:
        succeeded: messages that handlers accepted.
        failed: messages for which handlers failed or raised.
        sent_back: failed messages stored for another try.
        in_flight: messages that handlers are processing.
        is_suspended: whether the consumer was suspended.
    """

    succeeded: int
    failed: int
    sent_back: int
    in_flight: int
    is_suspended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullStatistics(PullStatistics):
    """Statistics of a lite pull consumer since its first subscription or assignment, with those of all consumers.

    Attributes:
        polled: messages that were polled.
    """

    polled: int
