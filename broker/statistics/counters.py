"""Counters of a broker: totals since the start, and rates computed from them once a second.

Counters are plain numbers that the hot path adds to; rates cost nothing per message.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from triomq.broker.statistics.history import Counters, StatsHistory
from triomq.broker.statistics.timing import Flushes, Histogram
from triomq.protocol.bodies.statistics import BrokerStatsData

_WINDOWS_S: Final = (10, 60, 600)  # the three rates of putTps and getTransferedTps
_KEPT_SAMPLES: Final = _WINDOWS_S[-1] + 1
_GROUP_WINDOW_S: Final = 60
#: Pairs of a topic and a group that are counted; peers may pull any topic for any group, and history copies the tables.
MAX_PAIRS: Final = 10_000
_Key = TypeVar("_Key")
_Number = TypeVar("_Number", int, float)


def _add(counters: dict[_Key, _Number], key: _Key, count: _Number) -> None:
    counters[key] = counters.get(key, 0) + count


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second over the last 10, 60 and 600 seconds."""

    put: tuple[float, float, float]
    get: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Totals:
    """Messages since start, at one moment."""

    put_messages: int = 0
    get_messages: int = 0


class Events:
    """Troubles with peers, counted: each attribute is a value of the label ``event`` and a row in docs/metrics.md."""

    bad_frames: Annotated[int, "connections closed because of a frame that cannot be read"] = 0
    denied_requests: Annotated[int, "requests denied by accounts"] = 0
    limited_requests: Annotated[int, "requests above a limit or quota"] = 0
    failed_requests: Annotated[int, "requests answered with an error of their processor"] = 0
    unmatched_responses: Annotated[int, "answers to no request of the broker"] = 0
    stalled_peers: Annotated[int, "connections closed because the peer does not read"] = 0
    given_up_peers: Annotated[int, "connections closed to free memory"] = 0
    refused_connections: Annotated[int, "connections above a limit"] = 0
    idle_closed: Annotated[int, "connections closed without a request for too long"] = 0
    shed_sends: Annotated[int, "sends refused while the broker was overloaded"] = 0
    name_conflicts: Annotated[int, "registrations of a second broker under one name"] = 0

    def events(self) -> dict[str, int]:
        """Return the number of each event."""
        return {name: getattr(self, name) for name in Events.__annotations__}


class BrokerStatistics(Events):
    """Counters of one broker.

    Attributes:
        day_totals: totals at midnight before yesterday and before today, 0 for a midnight before the start.
        sends, pulls, flushes: how long they take; ``METRICS`` says from when to when.
    """

    def __init__(self, start_ms: int) -> None:
        self.start_ms: Final = start_ms
        self.put_messages = 0
        self.put_bytes = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.committed = self.rolled_back = 0  # transactions
        self.sends = Histogram()
        self.pulls = Histogram()
        self.flushes = Flushes()
        self.put_by_topic: dict[str, int] = {}
        self.put_bytes_by_topic: dict[str, int] = {}  # of bodies
        self.get_by_group: dict[tuple[str, str], int] = {}
        self.get_bytes_by_group: dict[tuple[str, str], int] = {}
        self.pulls_by_group: dict[tuple[str, str], int] = {}  # that got messages
        self.pull_ms_by_group: dict[tuple[str, str], float] = {}  # from the arrival of messages or pull to the answer
        self.sent_back_by_group: dict[tuple[str, str], int] = {}
        self.pulled: dict[tuple[str, str], dict[int, int]] = {}  # the next offset by queue
        self.day_totals = (Totals(), Totals())
        self._history = StatsHistory()
        self._day: int | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_KEPT_SAMPLES)
        self._group_marks: deque[tuple[float, dict[tuple[str, str], int]]] = deque(maxlen=2)

    def put(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count stored messages."""
        self.put_messages += messages
        self.put_bytes += size_bytes
        _add(self.put_by_topic, topic, messages)
        _add(self.put_bytes_by_topic, topic, size_bytes)

    def put_run(self, sizes_bytes: Mapping[str, list[int]]) -> None:
        """Count stored messages of several topics at once, by the sizes of their bodies."""
        by_topic, bytes_by_topic = self.put_by_topic, self.put_bytes_by_topic
        for topic, sizes in sizes_bytes.items():  # calls would cost more than the counting
            messages, size_bytes = len(sizes), sum(sizes)
            self.put_messages += messages
            self.put_bytes += size_bytes
            by_topic[topic] = by_topic.get(topic, 0) + messages
            bytes_by_topic[topic] = bytes_by_topic.get(topic, 0) + size_bytes

    def pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Record how far a group has pulled a queue, unless too many pairs of a topic and a group are counted."""
        offsets = self.pulled.get((topic, group))
        if offsets is not None:
            offsets[queue_id] = next_offset
        elif len(self.pulled) < MAX_PAIRS:
            self.pulled[topic, group] = {queue_id: next_offset}

    def get(self, group: str, topic: str, messages: int, size_bytes: int, pull_ms: float = 0.0) -> None:
        """Count messages sent to consumers in the answer to a pull."""
        self.get_messages += messages
        self.get_bytes += size_bytes
        self.pulls.observe(pull_ms / 1000)
        key = (topic, group)
        if key in self.get_by_group or len(self.get_by_group) < MAX_PAIRS:
            _add(self.get_by_group, key, messages)
            _add(self.get_bytes_by_group, key, size_bytes)
            _add(self.pulls_by_group, key, 1)
            _add(self.pull_ms_by_group, key, pull_ms)

    def send_back(self, group: str, topic: str) -> None:
        """Count a message of a topic that a consumer of a group sent back."""
        key = (topic, group)
        if key in self.sent_back_by_group or len(self.sent_back_by_group) < MAX_PAIRS:
            _add(self.sent_back_by_group, key, 1)

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self.put_by_topic.pop(topic, None)
        self.put_bytes_by_topic.pop(topic, None)
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_deleted: Callable[[tuple[str, str]], bool]) -> None:
        for counters in (*self._by_group().values(), self.pulled):
            for key in [key for key in counters if is_deleted(key)]:
                del counters[key]

    def sample(self, now: float) -> None:
        """Record the totals; call it once a second with a steady clock in seconds."""
        self._samples.append((now, self.put_messages, self.get_messages))
        self._history.sample(now, self._counters())
        if not self._group_marks or now - self._group_marks[-1][0] >= _GROUP_WINDOW_S:
            self._group_marks.append((now, dict(self.get_by_group)))

    def _by_group(self) -> dict[str, dict[tuple[str, str], Any]]:
        return {
            "GROUP_GET_NUMS": self.get_by_group,
            "GROUP_GET_SIZE": self.get_bytes_by_group,
            "GROUP_GET_TIMES": self.pulls_by_group,
            "GROUP_GET_LATENCY": self.pull_ms_by_group,
            "SNDBCK_PUT_NUMS": self.sent_back_by_group,
        }

    def _counters(self) -> Counters:
        """Return the counters that tools know by name."""
        return {
            **self._by_group(),
            "TOPIC_PUT_NUMS": self.put_by_topic,
            "TOPIC_PUT_SIZE": self.put_bytes_by_topic,
            "BROKER_PUT_NUMS": {"": self.put_messages},
            "BROKER_GET_NUMS": {"": self.get_messages},
        }

    def window_stats(self, name: str, key: str, cluster_name: str) -> BrokerStatsData | None:
        """Return a statistic of RocketMQ for the last minute, hour and day.

        Args:
            name: such as ``TOPIC_PUT_NUMS``.
            key: a topic, ``topic@group`` or the cluster, depending on the name.  The latency of
                ``queueId@topic@group`` is that of the group in all queues.
            cluster_name: ours.

        Returns:
            ``None`` if nothing was ever counted, or the statistic is unknown.
        """
        if name == "GROUP_GET_LATENCY":
            key = key.partition("@")[2]
        topic, separator, group = key.partition("@")
        if name.startswith("BROKER_"):
            return self._history.data(self._counters(), name, "") if key == cluster_name else None
        return self._history.data(self._counters(), name, (topic, group) if separator else topic)

    def note_day(self, day: int) -> None:
        """Keep the totals whenever ``day``, a number that changes at midnight, has changed."""
        if self._day is not None and day != self._day:
            self.day_totals = (self.day_totals[1], Totals(self.put_messages, self.get_messages))
        self._day = day

    def rates(self) -> Rates:
        """Return the rates of the last windows; right after the start of the time since then."""
        puts, gets = [], []
        for window_s in _WINDOWS_S:
            put, get = self._rate(window_s)
            puts.append(put)
            gets.append(get)
        return Rates((puts[0], puts[1], puts[2]), (gets[0], gets[1], gets[2]))

    def group_rate(self, group: str, topic: str) -> float:
        """Return the rate at which a group receives messages of a topic, over the last one to two minutes."""
        if not self._group_marks:
            return 0.0
        began, counts = self._group_marks[0]
        seconds = self._samples[-1][0] - began
        key = (topic, group)
        messages = self.get_by_group.get(key, 0) - counts.get(key, 0)
        return messages / seconds if seconds > 0 and messages > 0 else 0.0

    def _rate(self, window_s: int) -> tuple[float, float]:
        samples = self._samples
        if len(samples) < 2:  # a rate needs two points
            return 0.0, 0.0
        last = samples[-1]
        first = samples[max(0, len(samples) - 1 - window_s)]
        seconds = last[0] - first[0]
        if seconds <= 0:
            return 0.0, 0.0
        return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds
