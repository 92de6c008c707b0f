"""Finds the queues that the options select, their bounds, and the offsets at which the options begin and end.

Source: spark.md 3.3 (4), 3.7, 4.1 (startingOffsets to endingTimestamp).
"""

import re
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, NamedTuple

from triomq.client.cluster.instance import ClientInstance
from triomq.client.sync import Admin, Producer, PullConsumer
from triomq.protocol.errors import ConfigError, NoBrokerError, NoRouteError, TopicNotExistError, TriomqError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import topic_kind
from triomq.spark.connections import Retry, borrow_client, close_clients
from triomq.spark.options.options import Options, Use, parse_options
from triomq.spark.options.values import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET
from triomq.spark.reading.planning import Ranges

#: A name server that has not answered yet gets this long, unless the user chose a planTimeoutMs: the address is wrong
#: more often than the server is late.
FIRST_CONTACT_S: Final = 5.0
_SYSTEM_TOPIC_PREFIX: Final = "%"
_SHOWN_TOPICS: Final = 5
_SHOWN_QUEUES: Final = 20


def is_missing_topic(error: TriomqError) -> bool:
    """Whether the name server knows brokers, but not the topic."""
    return isinstance(error, NoRouteError) and not isinstance(error, NoBrokerError)


class QueueBounds(NamedTuple):
    """First offset of a queue, and the one that its next message will get."""

    low: int
    high: int


class Bounds(NamedTuple):
    """Offsets from the brokers that answered, the errors of the others, and the queues without topic or route."""

    queues: dict[MessageQueue, QueueBounds]
    errors: dict[str, TriomqError]
    gone: set[MessageQueue]


#: Returns the first offset of a queue stored at a time (ms) or later, or the queue's end.
FirstAt = Callable[[MessageQueue, QueueBounds, int], int]


class Discovery:
    """Queries name servers and brokers through one client; its calls block.

    Attributes:
        instance: the client.
        consumer: makes the requests.
        missing: the topics and queues that the last lookup did not find, with the error to report.
        unmatched: the text of the error if no topic matched the pattern.
    """

    def __init__(self, options: Options, instance: ClientInstance, consumer: PullConsumer) -> None:
        """Use an open client and a pull consumer of it."""
        self._options = options
        self._has_contact = False
        self.instance = instance
        self.consumer = consumer
        self.missing: dict[MessageQueue | str, TriomqError] = {}
        self.unmatched: str | None = None

    def retry(self, limit_s: float | None = None) -> Retry:
        """Return the retries of one call of the planner, with a limit other than ``planTimeoutMs``."""
        names = self._named_topics()
        topics = "the pattern's topics" if names is None else ", ".join(names[:_SHOWN_TOPICS])
        if names is not None and len(names) > _SHOWN_TOPICS:
            topics += f" and {len(names) - _SHOWN_TOPICS} more"
        where = f"{topics} at {self._options['nameServer']}"
        limit_s = self._options["planTimeoutMs"] / 1000 if limit_s is None else limit_s
        return Retry(limit_s, f"finding queues and offsets of {where} (option 'planTimeoutMs')")

    def reach_name_server(self) -> None:
        """Return once a name server has answered.

        Raises:
            RequestTimeoutError: none did, within 5 s or the ``planTimeoutMs`` that the user chose.
        """
        if self._has_contact:
            return
        retry = self.retry(None if self._options.given("planTimeoutMs") else FIRST_CONTACT_S)
        with Admin(instance=self.instance) as admin:
            retry.call(admin.cluster)
        self._has_contact = True

    def queues(self, retry: Retry, *, may_be_gone: bool = False) -> tuple[MessageQueue, ...]:
        """Return the existing queues that the options select, sorted.

        Args:
            retry: for all of it.
            may_be_gone: leave out topics and queues that do not exist; :attr:`missing` has them.

        Raises:
            NoRouteError: a topic does not exist.
            RequestTimeoutError: name servers did not answer in time, or knew no broker.
            ConfigError: an assigned queue does not exist.
        """
        self.reach_name_server()
        assigned: tuple[MessageQueue, ...] | None = self._options["assign"]
        found: list[MessageQueue] = []
        self.missing = {}
        for topic in self._topics(retry):
            try:
                found += retry.call(partial(self.consumer.queues, topic, refresh=True), is_final=is_missing_topic)
            except NoRouteError as exc:
                if self._options["subscribePattern"] is None:  # else it was deleted after the list was made
                    self.missing[topic] = exc
        for queue in assigned or ():
            if queue not in found and queue.topic not in self.missing:
                near = ", ".join(str(one) for one in found if one.topic == queue.topic)
                error = ConfigError(f"option 'assign': there is no queue {queue}; its topic has: {near or 'none'}")
                self.missing[queue] = error
        if self.missing and not may_be_gone:
            raise next(iter(self.missing.values()))
        return tuple(found) if assigned is None else tuple(queue for queue in assigned if queue in found)

    def is_wanted(self, queue: MessageQueue) -> bool:
        """Whether the options select a queue, existing or not."""
        if (assigned := self._options["assign"]) is not None:
            return queue in assigned
        if (names := self._named_topics()) is not None:
            return queue.topic in names
        return re.fullmatch(self._options["subscribePattern"], queue.topic) is not None

    def bounds(self, queues: Collection[MessageQueue], retry: Retry, *, complete: bool = False) -> Bounds:
        """Return the offsets of the queues: one request for each topic and broker.

        Args:
            queues: the queues.
            retry: used while no broker answers.
            complete: retry while any queue is unknown.

        Raises:
            RequestTimeoutError: no broker answered in time; with ``complete``, one did not, or left the route for good.
        """

        def ask() -> Bounds:
            bounds = self._ask_bounds(queues)
            unknown = next((queue for queue in queues if queue not in bounds.queues), None)
            if unknown is not None and (complete or (bounds.errors and not bounds.queues)):
                left = NoRouteError(f"queue {unknown}: its broker has left the route, or no longer has the topic")
                raise next(iter(bounds.errors.values()), left)
            return bounds

        return retry.call(ask)

    def first_at(self, queue: MessageQueue, bounds: QueueBounds, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; else the queue's end.

        Raises:
            RequestTimeoutError: the broker did not answer in time.
        """
        if bounds.low >= bounds.high:
            return bounds.high
        return self.retry().call(lambda: self.consumer.offset_for_timestamp(queue, timestamp_ms))

    def _ask_bounds(self, queues: Collection[MessageQueue]) -> Bounds:
        wanted = frozenset(queues)
        bounds = Bounds({}, {}, set())
        for topic in sorted({queue.topic for queue in wanted}):
            try:
                found = self.consumer.bounds(topic)
            except NoRouteError as exc:
                if not is_missing_topic(exc):
                    raise
                bounds.gone.update(queue for queue in wanted if queue.topic == topic)
                continue
            for name, error in found.errors.items():
                if isinstance(error, TopicNotExistError):
                    bounds.gone.update(queue for queue in wanted if (queue.topic, queue.broker_name) == (topic, name))
                else:
                    bounds.errors[name] = error
            for queue, offset in found.offsets.items():
                if queue in wanted:
                    bounds.queues[queue] = QueueBounds(offset.min_offset, offset.max_offset)
        return bounds

    def _named_topics(self) -> tuple[str, ...] | None:
        names: tuple[str, ...] | None = self._options["subscribe"]
        assigned: tuple[MessageQueue, ...] | None = self._options["assign"]
        if names is not None:
            return tuple(sorted(names))
        if self._options["topic"] is not None:  # a write
            return (self._options["topic"],)
        return None if assigned is None else tuple(sorted({queue.topic for queue in assigned}))

    def _topics(self, retry: Retry) -> tuple[str, ...]:
        if (names := self._named_topics()) is not None:
            return names
        with Admin(instance=self.instance) as admin:

            def ask() -> tuple[list[str], set[str]]:
                topics, cluster = admin.topics(), admin.cluster()
                if not cluster.broker_addr_table:
                    name_server = self._options["nameServer"]
                    raise NoBrokerError(f"no broker is registered at {name_server}; is one running?")
                return topics, {*cluster.cluster_addr_table, *cluster.broker_addr_table}

            topics, own_names = retry.call(ask)
        pattern: str = self._options["subscribePattern"]
        if not pattern.startswith(_SYSTEM_TOPIC_PREFIX):
            topics = [topic for topic in topics if topic_kind(topic, own_names) == "normal"]
        found = tuple(topic for topic in topics if re.fullmatch(pattern, topic))
        self.unmatched = None
        if not found:
            meant = [topic for topic in topics if fnmatchcase(topic, pattern)][:_SHOWN_TOPICS]
            hint = f"; as a shell pattern it matches {', '.join(meant)}: write .* instead of *" if meant else ""
            listed = ", ".join(topics[:_SHOWN_TOPICS]) + (", ..." if len(topics) > _SHOWN_TOPICS else "")
            self.unmatched = f"option 'subscribePattern' matches no topic{hint}; the topics are: {listed or 'none'}"
        return found


def selected_offsets(
    options: Options, edge: str, bounds: Mapping[MessageQueue, QueueBounds], first_at: FirstAt, default: str
) -> dict[MessageQueue, int]:
    """Return where each queue starts, or its exclusive end.

    Args:
        options: of a read.
        edge: ``starting`` or ``ending``.
        bounds: of the queues.
        first_at: finds an offset by time.
        default: ``earliest`` or ``latest``, if no option gives a position.

    Raises:
        ConfigError: a position names a queue that is not read, omits one, or lies outside its queue.
    """
    if (time_ms := options[f"{edge}Timestamp"]) is not None:
        return {queue: first_at(queue, found, time_ms) for queue, found in bounds.items()}
    option = f"{edge}Offsets"
    wanted: Any = options[option] or default
    if wanted in (EARLIEST, LATEST):
        return {queue: found.low if wanted == EARLIEST else found.high for queue, found in bounds.items()}
    _check_queues(wanted, bounds, option)
    offsets = {}
    for queue, number in wanted.items():
        low, high = bounds[queue]
        offset = {EARLIEST_OFFSET: low, LATEST_OFFSET: high}.get(number, number)
        if not low <= offset <= high:
            raise ConfigError(f"option '{option}': {queue} has the offsets {low} to {high}, not {offset}")
        offsets[queue] = offset
    return offsets


def batch_ranges(options: Options, bounds: Mapping[MessageQueue, QueueBounds], first_at: FirstAt) -> Ranges:
    """Return the ranges of a batch.

    Raises:
        ConfigError: as :func:`selected_offsets`, or a start lies after its end.
    """
    begins = selected_offsets(options, "starting", bounds, first_at, EARLIEST)
    ends = selected_offsets(options, "ending", bounds, first_at, LATEST)
    for queue, begin in begins.items():
        if begin > ends[queue] and options.given("endingOffsets"):
            raise ConfigError(f"{queue}: starts at {begin}, after its end at {ends[queue]}")
    return {queue: (begin, max(begin, ends[queue])) for queue, begin in begins.items()}


def _check_queues(given: Mapping[MessageQueue, int], bounds: Collection[MessageQueue], option: str) -> None:
    names = [str(queue) for queue in sorted(bounds)]
    more = f" and {len(names) - _SHOWN_QUEUES} more" if len(names) > _SHOWN_QUEUES else ""
    listed = ", ".join(names[:_SHOWN_QUEUES]) + more
    for queue in sorted(given.keys() - bounds):
        raise ConfigError(f"option '{option}': queue {queue} is not read; those that are: {listed}")
    for queue in sorted(set(bounds) - given.keys()):
        raise ConfigError(
            f"option '{option}': queue {queue} is missing; give all queues that are read, "
            f"-2 for the earliest and -1 for the latest offset: {listed}"
        )


def find_topics(options: Mapping[Use, Mapping[str, str]], *, may_be_gone: bool) -> None:
    """Look up all topics before Spark starts: a task reports a wrong address or name much later.

    Args:
        options: by use.
        may_be_gone: a stream continues, and reports deleted topics itself.

    Raises:
        NoRouteError: a topic does not exist; for a write, no broker creates it either.
        RequestTimeoutError: no name server answered within 5 s, or none knew a broker within ``planTimeoutMs``.
    """
    for use, texts in options.items():
        given = parse_options(texts, use)
        with borrow_client(given) as instance, PullConsumer(given["readGroup"], instance=instance) as consumer:
            discovery = Discovery(given, instance, consumer)
            if use is not Use.WRITE:
                discovery.queues(discovery.retry(), may_be_gone=may_be_gone)
                continue
            discovery.reach_name_server()
            with Producer(given["readGroup"], instance=instance) as producer:
                discovery.retry().call(partial(producer.publish_queues, given["topic"]), is_final=is_missing_topic)
    close_clients()
