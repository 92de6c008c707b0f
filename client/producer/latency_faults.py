"""Which brokers a producer avoids for a while because they answered slowly (``send_latency_fault_enable``).

Source: behaviour.md B.3 (latency fault table).
"""

from collections.abc import Callable, Collection
from typing import Final

#: How long a broker is avoided after an answer that took this long, in seconds, from the top.
_AVOIDED_S_BY_LATENCY_S: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))


class LatencyFaults:
    """Slow brokers by name.

    Unlike RocketMQ's table it does not hold brokers that failed, so one that comes back is used at once.

    Attributes:
        slow: latency of the last answer in seconds, and until when the broker is avoided.
    """

    __slots__ = ("_clock", "slow")

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a clock in seconds."""
        self._clock = clock
        self.slow: dict[str, tuple[float, float]] = {}

    def answered(self, broker_name: str, latency_s: float) -> None:
        """Note how long a broker took to answer, or how long it did not."""
        for limit_s, avoided_s in _AVOIDED_S_BY_LATENCY_S:
            if latency_s >= limit_s:
                self.slow[broker_name] = latency_s, self._clock() + avoided_s
                return
        self.slow.pop(broker_name, None)

    def prefer(self, broker_names: Collection[str]) -> Collection[str]:
        """Return those of the brokers that are not avoided; if all are, the quicker half of them."""
        now = self._clock()
        for name in [name for name, (_, until) in self.slow.items() if until <= now]:
            del self.slow[name]
        quick = [name for name in broker_names if name not in self.slow]
        return quick or sorted(broker_names, key=self.slow.__getitem__)[: (len(broker_names) + 1) // 2]
