"""Which queues there are, and what brokers have of them.

Source: spark.md 3.3 (4), 3.7.
"""

import re
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from triomq.client.cluster.instance import ClientInstance
from triomq.client.sync import Admin, PullConsumer
from triomq.protocol.bodies.route import ClusterInfo
from triomq.protocol.errors import ConfigError, NoBrokerError, NoRouteError, TriomqError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.system_names import topic_kind
from triomq.spark.options.options import Options
from triomq.spark.retry import Patience

_OTHER_TOPICS: Final = "%"
_SHOWN_TOPICS: Final = 5


class QueueBounds(NamedTuple):
    """First offset of a queue, and the one that its next message will get."""

    low: int
    high: int


class Bounds(NamedTuple):
    """What brokers said, and the error of each that did not answer."""

    queues: dict[MessageQueue, QueueBounds]
    errors: dict[str, TriomqError]


class Discovery:
    """Asks name servers and brokers, through one client; its calls block."""

    def __init__(self, options: Options, instance: ClientInstance, consumer: PullConsumer) -> None:
        """Take an open client and a pull consumer of it."""
        self._options = options
        self._instance = instance
        self.consumer = consumer

    def patience(self, *, one_try: bool = False) -> Patience:
        """Return the patience for one call of the planner; or none, where it can go on without an answer."""
        return Patience(
            0.0 if one_try else self._options["planTimeoutMs"] / 1000,
            f"finding queues and offsets of {self._wanted_text()} at {self._options['nameServer']}"
            " (option 'planTimeoutMs')",
        )

    def queues(self, patience: Patience, *, may_be_gone: bool = False) -> tuple[MessageQueue, ...]:
        """Return the queues that the options ask for, as name servers and brokers know them now, sorted.

        Args:
            patience: for all of it.
            may_be_gone: leave out topics and queues that do not exist any more, unless none is left.

        Raises:
            NoRouteError: a topic does not exist.
            RequestTimeoutError: name servers did not answer in time, or knew no broker: it may come back.
            ConfigError: an assigned queue does not exist.
        """
        assigned: tuple[MessageQueue, ...] | None = self._options["assign"]
        found: list[MessageQueue] = []
        gone: NoRouteError | None = None
        for topic in self._topics(patience):
            try:
                found += self._queues_of(topic, patience)
            except NoRouteError as exc:
                if not may_be_gone:
                    raise
                gone = exc
        if gone is not None and not found:
            raise gone
        if assigned is None:
            return tuple(found)
        left = tuple(queue for queue in assigned if queue in found)
        if may_be_gone and left:
            return left
        for queue in assigned:
            if queue not in found:
                near = ", ".join(str(one) for one in found if one.topic == queue.topic)
                raise ConfigError(f"option 'assign': there is no queue {queue}; its topic has: {near or 'none'}")
        return assigned

    def is_wanted(self, queue: MessageQueue) -> bool:
        """Whether the options ask for a queue, be it there or not."""
        names, assigned = self._options["subscribe"], self._options["assign"]
        if names is not None:
            return queue.topic in names
        if assigned is not None:
            return queue in assigned
        return re.fullmatch(self._options["subscribePattern"], queue.topic) is not None

    def bounds(self, queues: Iterable[MessageQueue], patience: Patience) -> Bounds:
        """Return offsets of the queues: one request for each topic and broker.

        Brokers that do not answer are tried again while none does.

        Raises:
            RequestTimeoutError: no broker answered in time.
        """
        wanted = frozenset(queues)
        topics = sorted({queue.topic for queue in wanted})
        while True:
            began = time.monotonic()
            bounds = Bounds({}, {})
            for topic in topics:
                found = self.consumer.bounds(topic)
                bounds.errors.update(found.errors)
                for queue, offset in found.offsets.items():
                    if queue in wanted:
                        bounds.queues[queue] = QueueBounds(offset.min_offset, offset.max_offset)
            if bounds.queues or not bounds.errors:
                return bounds
            patience.failed(next(iter(bounds.errors.values())), time.monotonic() - began)

    def all_bounds(self, queues: Iterable[MessageQueue], patience: Patience) -> dict[MessageQueue, QueueBounds]:
        """Return offsets of all the queues.

        Raises:
            RequestTimeoutError: a broker did not answer in time, or left the route and did not come back.
        """
        wanted = tuple(queues)
        while True:
            began = time.monotonic()
            bounds = self.bounds(wanted, patience)
            unknown = [queue for queue in wanted if queue not in bounds.queues]
            if not unknown:
                return bounds.queues
            left_route = NoRouteError(f"queue {unknown[0]}: its broker has left the route")
            patience.failed(next(iter(bounds.errors.values()), left_route), time.monotonic() - began)

    def first_at(self, queue: MessageQueue, bounds: QueueBounds, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; the queue's end if there is none.

        Raises:
            RequestTimeoutError: the broker did not answer in time.
        """
        if bounds.low >= bounds.high:
            return bounds.high
        patience = self.patience()
        while True:
            began = time.monotonic()
            try:
                return self.consumer.offset_for_timestamp(queue, timestamp_ms)
            except TriomqError as exc:
                patience.failed(exc, time.monotonic() - began)

    def _wanted_text(self) -> str:
        names = self._named_topics()
        if names is None:
            return "the pattern's topics"
        more = f" and {len(names) - _SHOWN_TOPICS} more" if len(names) > _SHOWN_TOPICS else ""
        return ", ".join(names[:_SHOWN_TOPICS]) + more

    def _named_topics(self) -> tuple[str, ...] | None:
        names: tuple[str, ...] | None = self._options["subscribe"]
        assigned: tuple[MessageQueue, ...] | None = self._options["assign"]
        if names is not None:
            return tuple(sorted(names))
        return None if assigned is None else tuple(sorted({queue.topic for queue in assigned}))

    def _topics(self, patience: Patience) -> tuple[str, ...]:
        names = self._named_topics()
        if names is not None:
            return names
        pattern = re.compile(self._options["subscribePattern"])
        topics, cluster = self._all_topics(patience)
        own_names = {*cluster.cluster_addr_table, *cluster.broker_addr_table}
        everything = pattern.pattern.startswith(_OTHER_TOPICS)
        return tuple(
            topic
            for topic in topics
            if pattern.fullmatch(topic) and (everything or topic_kind(topic, own_names) == "normal")
        )

    def _all_topics(self, patience: Patience) -> tuple[list[str], ClusterInfo]:
        with Admin(instance=self._instance) as admin:
            while True:
                began = time.monotonic()
                try:
                    topics, cluster = admin.topics(), admin.cluster()
                except TriomqError as exc:
                    patience.failed(exc, time.monotonic() - began)
                else:
                    if cluster.broker_addr_table:
                        return topics, cluster
                    patience.failed(
                        NoBrokerError(f"no broker is registered at {self._options['nameServer']}; is one running?")
                    )

    def _queues_of(self, topic: str, patience: Patience) -> tuple[MessageQueue, ...]:
        while True:
            began = time.monotonic()
            try:
                return self.consumer.queues(topic, refresh=True)
            except NoBrokerError as exc:
                patience.failed(exc, time.monotonic() - began)
            except NoRouteError:
                if self._options["subscribePattern"] is not None:
                    return ()  # it was deleted since the list was made
                raise
            except TriomqError as exc:
                patience.failed(exc, time.monotonic() - began)
