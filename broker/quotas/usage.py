"""What an account, or an address, uses at the moment."""

from collections.abc import Callable
from typing import Final

from triomq.broker.quotas.rules import Limits

_BURST_MS: Final = 1000
#: Java and Go clients pause for 3 s after a refused pull: with less they could not get all that they may.
_OUT_BURST_MS: Final = 4000


class Bucket:
    """Room that comes back at a steady rate.

    What wants more than there is leaves a debt, so that a large request passes as soon as a small one does; the next
    one waits for longer instead.
    """

    __slots__ = ("_burst_ms", "_cost_ms", "_full_at_ms")

    def __init__(self, burst_ms: float) -> None:
        """An unlimited one; it holds what comes in ``burst_ms``."""
        self._burst_ms = burst_ms
        self._cost_ms = 0.0  # of one unit
        self._full_at_ms = 0.0

    def set_rate(self, per_s: float | None) -> None:
        """Change the rate; a debt stays unless there is no limit any more."""
        self._cost_ms = 0.0 if per_s is None else 1000 / per_s
        if per_s is None:
            self._full_at_ms = 0.0

    def wait_ms(self, now_ms: float) -> float:
        """Return how long it takes until there is room; below 0: there is."""
        return self._full_at_ms - now_ms - self._burst_ms

    def take(self, units: float, now_ms: float) -> None:
        """Use some room."""
        self._full_at_ms = max(self._full_at_ms, now_ms) + units * self._cost_ms

    def is_full(self, now_ms: float) -> bool:
        """Whether all room is there."""
        return self._full_at_ms <= now_ms


class Usage:
    """One account, or an address whose requests nobody signs.

    Attributes:
        account: its name; "" for an address.
        host: the address; "" for an account.
        name: of it, with its kind, for errors and tables.
        connections: those whose newest request was its.
        sends, in_bytes, out_bytes: what they count.
        limits: its quotas.
    """

    __slots__ = ("_clock_ms", "account", "connections", "host", "in_bytes", "limits", "name", "out_bytes", "sends")

    def __init__(self, account: str, host: str, clock_ms: Callable[[], float]) -> None:
        """``clock_ms`` is a steady clock."""
        self.account = account
        self.host = "" if account else host
        self.name = f"account {account}" if account else f"address {host}"
        self.connections = 0
        self.limits = Limits()
        self.sends = Bucket(_BURST_MS)
        self.in_bytes = Bucket(_BURST_MS)
        self.out_bytes = Bucket(_OUT_BURST_MS)
        self._clock_ms = clock_ms

    def set_limits(self, limits: Limits) -> None:
        """Let other quotas count from now on."""
        self.limits = limits
        self.sends.set_rate(limits.sends_per_s)
        self.in_bytes.set_rate(limits.in_bytes_per_s)
        self.out_bytes.set_rate(limits.out_bytes_per_s)

    def wrote(self, size_bytes: int) -> None:
        """Count what was written to a connection."""
        self.out_bytes.take(size_bytes, self._clock_ms())

    def may_read(self) -> bool:
        """Whether it may get messages now."""
        return self.out_bytes.wait_ms(self._clock_ms()) < 0

    def is_idle(self, now_ms: float) -> bool:
        """Whether nothing has to be remembered."""
        return not self.connections and all(
            bucket.is_full(now_ms) for bucket in (self.sends, self.in_bytes, self.out_bytes)
        )
