"""Counts of the last minute, hour and day, which tools query by VIEW_BROKER_STATS_DATA (315).

Totals are copied at intervals, as often as in RocketMQ, and compared with the present ones; counting itself costs
nothing extra.

Source: wire.md 7; StatsItem.java, BrokerStatsManager.java.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from triomq.protocol.bodies.statistics import BrokerStatsData, BrokerStatsItem

StatsKey: TypeAlias = str | tuple[str, str]
"""A topic, a topic and a group, or ``""`` for the broker."""

Counters: TypeAlias = Mapping[str, Mapping[Any, float]]
"""By the name of a statistic, and by ``StatsKey``: the totals since the start."""

_EVENTS: Final = {
    "TOPIC_PUT_SIZE": "TOPIC_PUT_NUMS",
    "GROUP_GET_SIZE": "GROUP_GET_NUMS",
    "GROUP_GET_LATENCY": "GROUP_GET_TIMES",
}
"""The divisor of the average of a statistic; that of a number of messages is 1."""

_MINUTE: Final = (10.0, 6)
_HOUR: Final = (600.0, 6)
_DAY: Final = (3600.0, 24)


class _Sample(NamedTuple):
    time: float  # s, of a steady clock
    counters: Counters


class _Window:
    """Samples of one span of time, at most one more than it has steps."""

    def __init__(self, step_s: float, steps: int) -> None:
        self._step_s = step_s
        self._samples: deque[_Sample] = deque(maxlen=steps + 1)

    def is_due(self, now: float) -> bool:
        return not self._samples or now - self._samples[-1].time >= self._step_s

    def add(self, sample: _Sample) -> None:
        self._samples.append(sample)

    def item(self, now: float, counters: Counters, name: str, key: StatsKey) -> BrokerStatsItem:
        if not self._samples:
            return BrokerStatsItem()
        first = self._samples[0]
        count, events = (
            max(counters[each].get(key, 0) - first.counters[each].get(key, 0), 0)  # a topic may have been deleted
            for each in (name, _EVENTS.get(name, name))
        )
        seconds = now - first.time
        average = count / events if events and key else 0.0
        return BrokerStatsItem(round(count), count / seconds if seconds > 0 else 0.0, average)


class StatsHistory:
    """Compares counters with their earlier values.

    In RocketMQ an average is per client call; here each message is one event.
    """

    def __init__(self) -> None:
        self._windows = tuple(_Window(*steps) for steps in (_MINUTE, _HOUR, _DAY))
        self._now = 0.0

    def sample(self, now: float, counters: Counters) -> None:
        """Record the counters if it is time; call it once a second with a steady clock in seconds."""
        self._now = now
        due = [window for window in self._windows if window.is_due(now)]
        if due:
            sample = _Sample(now, {name: dict(table) for name, table in counters.items()})
            for window in due:
                window.add(sample)

    def data(self, counters: Counters, name: str, key: StatsKey) -> BrokerStatsData | None:
        """Return the counts of the windows; ``None`` if nothing was ever counted, or the statistic is unknown."""
        if key not in counters.get(name, {}):
            return None
        minute, hour, day = (window.item(self._now, counters, name, key) for window in self._windows)
        return BrokerStatsData(minute, hour, day)
