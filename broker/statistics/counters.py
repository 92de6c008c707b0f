"""Counters of a broker: totals since the start, rates, durations, and the counts of the last minute, hour and day.

Counters are plain numbers that the hot path adds to; rates cost nothing per message, and a duration is a search among a
dozen numbers, 0.2 us.  For the last minute, hour and day, which tools query by VIEW_BROKER_STATS_DATA (315), totals are
copied at intervals, as often as in RocketMQ, and compared with the present ones.

Source: wire.md 7; StatsItem.java, BrokerStatsManager.java.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from itertools import accumulate
from math import inf
from operator import sub
from typing import Annotated, Any, Final, TypeAlias

from triomq.protocol.bodies.statistics import BrokerStatsData, BrokerStatsItem

_WINDOWS_S: Final = (10, 60, 600)  # the three rates of putTps and getTransferedTps
_KEPT_SAMPLES: Final = _WINDOWS_S[-1] + 1
#: Pairs of a topic and a group that are counted; peers may pull any topic for any group, and history copies the tables.
MAX_PAIRS: Final = 10_000
_STEP_BOUNDS_S: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_SPANS: Final = ((10.0, 6), (600.0, 6), (3600.0, 24))  # s, steps: a minute, an hour, a day
#: The divisor of the average of a statistic; that of a number of messages is 1.
_EVENTS: Final = {
    "TOPIC_PUT_SIZE": "TOPIC_PUT_NUMS",
    "GROUP_GET_SIZE": "GROUP_GET_NUMS",
    "GROUP_GET_LATENCY": "GROUP_GET_TIMES",
}

StatsKey: TypeAlias = str | tuple[str, str]
"""A topic, a topic and a group, or ``""`` for the broker."""

Counters: TypeAlias = Mapping[str, Mapping[Any, float]]
"""By the name of a statistic, and by ``StatsKey``: the totals since the start."""


class Histogram:
    """Counts durations by size.

    Attributes:
        sum_s: of all together.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(_STEP_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(_STEP_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Return the number of durations up to each bound, and of all (``+Inf``)."""
        return list(zip((*map(repr, _STEP_BOUNDS_S), "+Inf"), accumulate(self._counts), strict=True))

    def up_to(self, seconds: float) -> int:
        """Return the number of durations up to the greatest bound that is not above ``seconds``; ``inf``: of all."""
        return sum(self._counts[: bisect_right((*_STEP_BOUNDS_S, inf), seconds)])

    def bound_s(self, share: float) -> float:
        """Return the bound that this share of the durations (0 to 1) does not exceed; above the last, the last."""
        wanted = share * self.up_to(inf)
        for bound_s, number in zip(_STEP_BOUNDS_S, accumulate(self._counts), strict=False):
            if number >= wanted:
                return bound_s if number else 0.0
        return _STEP_BOUNDS_S[-1]


class Flushes(Histogram):
    """Flushes of the store, those that have ended and those that have not."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[Hashable, float] = {}

    def begin(self, flush: Hashable, now: float) -> None:
        """Record the start of a flush, or of its retry; ``now`` is of any steady clock in seconds."""
        self._began.setdefault(flush, now)

    def end(self, flush: Hashable, now: float) -> None:
        """Record that the data of a flush is on the disk."""
        self.observe(now - self._began.pop(flush))

    def waiting_s(self, now: float) -> float:
        """Return the age of the oldest flush that has not ended, 0 without one."""
        return now - min(self._began.values(), default=now)


class StatsHistory:
    """Compares counters with their earlier values.

    In RocketMQ an average is per client call; here each message is one event.
    """

    def __init__(self) -> None:
        # For each span its samples, at most one more than it has steps, and the seconds between them.
        self._spans: tuple[tuple[float, deque[tuple[float, Counters]]], ...] = tuple(
            (step_s, deque(maxlen=steps + 1)) for step_s, steps in _SPANS
        )
        self._now = 0.0

    def sample(self, now: float, counters: Counters) -> None:
        """Record the counters if it is time; call it once a second with a steady clock in seconds."""
        self._now = now
        due = [samples for step_s, samples in self._spans if not samples or now - samples[-1][0] >= step_s]
        if due:
            sample = now, {name: dict(table) for name, table in counters.items()}
            for samples in due:
                samples.append(sample)

    def data(self, counters: Counters, name: str, key: StatsKey) -> BrokerStatsData | None:
        """Return the counts of the spans; ``None`` if nothing was ever counted, or the statistic is unknown."""
        if key not in counters.get(name, {}):
            return None
        items = []
        for _, samples in self._spans:
            began, before = samples[0] if samples else (self._now, counters)
            count, events = (
                max(counters[each].get(key, 0) - before[each].get(key, 0), 0)  # a topic may have been deleted
                for each in (name, _EVENTS.get(name, name))
            )
            seconds = self._now - began
            average = count / events if events and key else 0.0
            items.append(BrokerStatsItem(round(count), count / seconds if seconds > 0 else 0.0, average))
        return BrokerStatsData(*items)


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
    disk_timeouts: Annotated[int, "answers that did not wait longer for the disk"] = 0
    slave_timeouts: Annotated[int, "answers that did not wait longer for a slave"] = 0
    without_slave: Annotated[int, "answers that should have waited for a slave, but none was connected"] = 0
    name_conflicts: Annotated[int, "registrations of a second broker under one name"] = 0
    copy_misfits: Annotated[int, "connections closed because the master's data do not continue the slave's log"] = 0
    copy_refusals: Annotated[int, "connections closed because the slave's disk refused the master's data"] = 0

    def events(self) -> dict[str, int]:
        """Return the number of each event."""
        return {name: getattr(self, name) for name in Events.__annotations__}


class BrokerStatistics(Events):
    """Counters of one broker.

    Attributes:
        day_totals: messages put and got since the start, at midnight before yesterday and before today; 0 for a
            midnight before the start.
        sends, pulls, flushes: how long they take; ``METRICS`` says from when to when.
    """

    def __init__(self, start_ms: int) -> None:
        self.start_ms: Final = start_ms
        self.put_messages = self.copied_messages = 0
        self.put_bytes = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.committed = self.rolled_back = 0  # transactions
        self.sends = Histogram()
        self.pulls = Histogram()
        self.flushes = Flushes()
        self.put_by_topic = defaultdict[str, int](int)
        self.put_bytes_by_topic = defaultdict[str, int](int)  # of bodies
        self.get_by_group = defaultdict[tuple[str, str], int](int)
        self.get_bytes_by_group = defaultdict[tuple[str, str], int](int)
        self.pulls_by_group = defaultdict[tuple[str, str], int](int)  # that got messages
        self.pull_ms_by_group = defaultdict[tuple[str, str], float](float)  # from arrival, or pull, to the answer
        self.sent_back_by_group = defaultdict[tuple[str, str], int](int)
        self.pulled: dict[tuple[str, str], dict[int, int]] = {}  # the next offset by queue
        self.day_totals = ((0, 0), (0, 0))
        self._history = StatsHistory()
        self._day: int | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_KEPT_SAMPLES)

    def put(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count stored messages."""
        self.put_messages += messages
        self.put_bytes += size_bytes
        self.put_by_topic[topic] += messages
        self.put_bytes_by_topic[topic] += size_bytes

    def put_run(self, sizes_bytes: Mapping[str, list[int]]) -> None:
        """Count stored messages of several topics at once, by the sizes of their bodies."""
        by_topic, bytes_by_topic = self.put_by_topic, self.put_bytes_by_topic
        for topic, sizes in sizes_bytes.items():  # calls would cost more than the counting
            messages, size_bytes = len(sizes), sum(sizes)
            self.put_messages += messages
            self.put_bytes += size_bytes
            by_topic[topic] += messages
            bytes_by_topic[topic] += size_bytes

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
            self.get_by_group[key] += messages
            self.get_bytes_by_group[key] += size_bytes
            self.pulls_by_group[key] += 1
            self.pull_ms_by_group[key] += pull_ms

    def send_back(self, group: str, topic: str) -> None:
        """Count a message of a topic that a consumer of a group sent back."""
        key = (topic, group)
        if key in self.sent_back_by_group or len(self.sent_back_by_group) < MAX_PAIRS:
            self.sent_back_by_group[key] += 1

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
            self.day_totals = (self.day_totals[1], (self.put_messages, self.get_messages))
        self._day = day

    def rates(self) -> list[tuple[float, float]]:
        """Return messages put and got per second in the last 10, 60 and 600 s; right after the start since then."""
        samples, rates = self._samples, []
        for window_s in _WINDOWS_S:
            seconds = put = get = 0.0
            if samples:
                seconds, put, get = map(sub, samples[-1], samples[max(0, len(samples) - 1 - window_s)])
            rates.append((put / seconds, get / seconds) if seconds > 0 else (0.0, 0.0))
        return rates

    def group_rate(self, group: str, topic: str) -> float:
        """Return the messages of a topic that a group received per second in the last minute."""
        found = self._history.data(self._counters(), "GROUP_GET_NUMS", (topic, group))
        return 0.0 if found is None else found.stats_minute.tps
