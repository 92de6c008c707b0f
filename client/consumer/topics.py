"""The topics of a consumer: its subscriptions and their form in heartbeats, its counters, and snapshots of these.

Counters are plain attributes, incremented where the work is done; rates are computed from samples on request.

Source: behaviour.md A.11 (filters), B.5 step 2 (retry topic), B.7 (versions), B.16 (client statistics); wire.md 9.3;
ConsumerStatsManager.java.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from triomq.protocol.bodies.client import ConsumeStatus, SubscriptionData
from triomq.protocol.errors import ConfigError
from triomq.protocol.filters.filter_types import (
    SUBSCRIBE_ALL,
    FilterExpression,
    MessageFilter,
    TagFilter,
    filter_of,
    filter_type,
)
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import retry_topic, validate_topic
from triomq.protocol.record.message import MessageExt

SAMPLE_INTERVAL_S: Final = 10.0
_SAMPLES: Final = 7  # one minute


@dataclass(slots=True, eq=False)
class Subscription:
    """One topic with its filter.

    Attributes:
        topic: the topic.
        message_filter: which messages.
        pull_version: the version in pulls; a broker that knows only an older one answers 25.
        version: the version in heartbeats; raised whenever brokers must replace the subscription.
    """

    topic: str
    message_filter: MessageFilter
    pull_version: int
    version: int

    def announced(self) -> None:
        """Record that brokers know the newest version, so that pulls may name it."""
        self.pull_version = self.version

    def data(self) -> SubscriptionData:
        """Return it as heartbeats carry it."""
        message_filter = self.message_filter
        return SubscriptionData(
            topic=self.topic,
            sub_string=message_filter.expression,
            tags_set=list(message_filter.tags) if isinstance(message_filter, TagFilter) else [],
            code_set=sorted(message_filter.codes or ()),
            sub_version=self.version,
            expression_type=filter_type(message_filter),
        )


def select(message_filter: MessageFilter, messages: list[MessageExt]) -> list[MessageExt]:
    """Return the messages whose tag is wanted: brokers compare hash codes of tags, but SQL they evaluate."""
    if not isinstance(message_filter, TagFilter) or not message_filter.tags:
        return messages
    wanted = message_filter.matches_tag
    return [message for message in messages if wanted(message.tags)]


class Subscriptions:
    """All subscriptions of a consumer; in clustering they include its group's retry topic.

    Versions are milliseconds of ``clock``, as Java's: members of a group that are of different kinds compare them.
    """

    def __init__(
        self,
        group: str,
        expressions: Mapping[str, FilterExpression],
        clock: Callable[[], int],
        *,
        with_retry_topic: bool = True,
        may_be_empty: bool = False,
    ) -> None:
        """Parse filter expressions by topic.

        Raises:
            ConfigError: no topic is given.
            IllegalNameError: a topic has an impossible name.
            SubscriptionParseError: an expression cannot be read.
        """
        if not expressions and not may_be_empty:
            raise ConfigError('subscriptions: no topic given; write subscriptions={"Topic": "*"}')
        self._clock = clock
        self.retry_topic: Final = retry_topic(group)
        self._table: Final[dict[str, Subscription]] = {}
        own: dict[str, FilterExpression] = {self.retry_topic: SUBSCRIBE_ALL} if with_retry_topic else {}
        for topic, expression in {**expressions, **own}.items():
            self._add(topic, filter_of(expression))

    def _add(self, topic: str, message_filter: MessageFilter) -> Subscription:
        validate_topic(topic)
        version = self._clock()
        added = self._table[topic] = Subscription(topic, message_filter, version, version)
        return added

    def __getitem__(self, topic: str) -> Subscription:
        return self._table[topic]

    def __contains__(self, topic: str) -> bool:
        return topic in self._table

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics."""
        return tuple(self._table)

    def put(self, topic: str, expression: FilterExpression) -> tuple[Subscription, bool]:
        """Add a topic, or change its expression, also for its running pull loops.

        Pulls name the previous version until :meth:`Subscription.announced`.

        Returns:
            The subscription, and whether pulls in flight have another filter.  Only those are to be sent again: the
            broker answers the abandoned pull, too, and a one-time answer, such as a reset (5.x), would be lost.

        Raises:
            ConfigError: it is the retry topic, which is the consumer's own.
            IllegalNameError: the topic has an impossible name.
            SubscriptionParseError: the expression cannot be read.
        """
        if topic == self.retry_topic:
            raise ConfigError(f"subscribe: {topic} is consumed anyway")
        message_filter = filter_of(expression)
        if (subscription := self._table.get(topic)) is None:
            return self._add(topic, message_filter), False
        is_changed = subscription.message_filter != message_filter
        subscription.message_filter = message_filter
        self.renew(topic)
        return subscription, is_changed

    def remove(self, topic: str) -> None:
        """Remove a topic.

        Raises:
            ConfigError: it is not subscribed, or it is the retry topic.
        """
        if topic == self.retry_topic or topic not in self._table:
            raise ConfigError(f"unsubscribe: {topic!r} is not subscribed")
        del self._table[topic]

    def renew(self, topic: str) -> None:
        """Make the next heartbeat replace the brokers' subscription of the topic."""
        if (subscription := self._table.get(topic)) is not None:  # else it was removed meanwhile
            subscription.version = max(self._clock(), subscription.version + 1)

    def data(self) -> list[SubscriptionData]:
        """Return all as heartbeats carry them."""
        return [subscription.data() for subscription in self._table.values()]


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
