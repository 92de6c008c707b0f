"""What a consumer subscribes to, and its form in heartbeats.

Source: behaviour.md A.11 (filters), B.5 step 2 (retry topic), B.7 (versions); wire.md 9.3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.errors import ConfigError
from triomq.protocol.filters.filter_types import (
    SUBSCRIBE_ALL,
    FilterExpression,
    MessageFilter,
    TagFilter,
    filter_of,
    filter_type,
)
from triomq.protocol.names import retry_topic, validate_topic
from triomq.protocol.record.message import MessageExt


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
        if (subscription := self._table.get(topic)) is None:  # removed meanwhile
            return
        subscription.version = max(self._clock(), subscription.version + 1)

    def data(self) -> list[SubscriptionData]:
        """Return all as heartbeats carry them."""
        return [subscription.data() for subscription in self._table.values()]
