"""Counters of a broker: totals since the start, and rates computed from them once a second.

Counters are plain numbers that the hot path adds to; rates cost nothing per message.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from triomq.broker.statistics.history import Counters, StatsHistory
from triomq.protocol.bodies.statistics import BrokerStatsData

_WINDOWS_S: Final = (10, 60, 600)  # the three figures of putTps and getTransferedTps
_KEPT_SAMPLES: Final = _WINDOWS_S[-1] + 1
_GROUP_WINDOW_S: Final = 60


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


class BrokerStatistics:
    """Counters of one broker.

    Attributes:
        day_totals: totals at midnight before yesterday and before today, 0 for a midnight before the start.
    """

    def __init__(self, start_ms: int) -> None:
        self.start_ms: Final = start_ms
        self.put_messages = 0
        self.put_bytes = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.bad_frames = 0  # each closed a connection
        self.failed_requests = 0  # answered with an error of a processor
        self.unmatched_responses = 0
        self.stalled_peers = 0  # closed because they did not read
        self.refused_connections = 0
        self.idle_closed = 0
        self.put_by_topic: dict[str, int] = {}
        self.get_by_group: dict[tuple[str, str], int] = {}
        self.sent_back_by_group: dict[tuple[str, str], int] = {}
        self.day_totals = (Totals(), Totals())
        self._history = StatsHistory()
        self._day: int | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_KEPT_SAMPLES)
        self._group_marks: deque[tuple[float, dict[tuple[str, str], int]]] = deque(maxlen=2)

    def put(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count stored messages."""
        self.put_messages += messages
        self.put_bytes += size_bytes
        by_topic = self.put_by_topic
        by_topic[topic] = by_topic.get(topic, 0) + messages

    def put_run(self, counts: Mapping[str, int], size_bytes: int) -> None:
        """Count stored messages of several topics at once."""
        by_topic = self.put_by_topic
        for topic, messages in counts.items():
            self.put_messages += messages
            by_topic[topic] = by_topic.get(topic, 0) + messages
        self.put_bytes += size_bytes

    def get(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages sent to consumers."""
        self.get_messages += messages
        self.get_bytes += size_bytes
        key = (topic, group)
        by_group = self.get_by_group
        by_group[key] = by_group.get(key, 0) + messages

    def send_back(self, group: str, topic: str) -> None:
        """Count a message of a topic that a consumer of a group sent back."""
        key = (topic, group)
        self.sent_back_by_group[key] = self.sent_back_by_group.get(key, 0) + 1

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self.put_by_topic.pop(topic, None)
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_deleted: Callable[[tuple[str, str]], bool]) -> None:
        for counters in (self.get_by_group, self.sent_back_by_group):
            for key in [key for key in counters if is_deleted(key)]:
                del counters[key]

    def sample(self, now: float) -> None:
        """Record the totals; call it once a second with a steady clock in seconds."""
        self._samples.append((now, self.put_messages, self.get_messages))
        self._history.sample(now, self._counters())
        if not self._group_marks or now - self._group_marks[-1][0] >= _GROUP_WINDOW_S:
            self._group_marks.append((now, dict(self.get_by_group)))

    def _counters(self) -> Counters:
        """Return the counters that tools know by name."""
        return {
            "TOPIC_PUT_NUMS": self.put_by_topic,
            "GROUP_GET_NUMS": self.get_by_group,
            "SNDBCK_PUT_NUMS": self.sent_back_by_group,
            "BROKER_PUT_NUMS": {"": self.put_messages},
            "BROKER_GET_NUMS": {"": self.get_messages},
        }

    def window_stats(self, name: str, key: str, cluster_name: str) -> BrokerStatsData | None:
        """Return a statistic of RocketMQ for the last minute, hour and day.

        Args:
            name: such as ``TOPIC_PUT_NUMS``.
            key: a topic, ``topic@group`` or the cluster, depending on the name.
            cluster_name: ours.

        Returns:
            ``None`` if nothing was ever counted, or the statistic is unknown.
        """
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
        """Return how many messages of a topic a group receives per second, over the last one to two minutes."""
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
