"""Notices when the wall clock is set, by comparing it with a clock that is never set."""

import logging
import time
from collections.abc import Callable
from typing import Final

LOGGER: Final = logging.getLogger("triomq.broker.services.clock_watch")

_LEAST_JUMP_MS: Final = 1000  # a clock that is adjusted gradually moves by half a millisecond a second
_TRUSTED_AFTER_MS: Final = 3_600_000


def elapsed_ms() -> int:
    """Return a clock, in ms, that is never set, and also counts while the machine is suspended, where that is known."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


def steady_ms() -> int:
    """Return a clock, in ms, that is never set."""
    return time.monotonic_ns() // 1_000_000


class ClockWatch:
    """Compares both clocks whenever ``check`` is called.

    Attributes:
        clock_ms: the wall clock.
        jump_ms: how far the wall clock was set last, backwards if negative; 0: it was not set.
        jumped_at_ms: what it showed when that was noticed.
    """

    def __init__(self, clock_ms: Callable[[], int], elapsed_clock_ms: Callable[[], int] = elapsed_ms) -> None:
        self.clock_ms = clock_ms
        self._elapsed_ms = elapsed_clock_ms
        self._difference_ms = self._start_ms = clock_ms() - elapsed_clock_ms()
        self._set_forward_at: int | None = None
        self.jump_ms = self.jumped_at_ms = 0

    def even_ms(self) -> int:
        """Return the wall clock as it would be if it were not set since the start: for durations."""
        return self._start_ms + self._elapsed_ms()

    @property
    def is_trusted(self) -> bool:
        """Whether the clock was not set forward within the last hour: what is deleted by age waits so long."""
        since = self._set_forward_at
        return since is None or self._elapsed_ms() - since >= _TRUSTED_AFTER_MS

    def begin(self, newest_ms: int) -> None:
        """Compare the clock with the store time of the newest message, when the broker starts."""
        if newest_ms - self.clock_ms() >= _LEAST_JUMP_MS:
            self._note(self.clock_ms() - newest_ms, "the newest message is of the future")

    def check(self) -> None:
        """Compare the clocks; call it once a second."""
        now_ms, elapsed = self.clock_ms(), self._elapsed_ms()
        jump_ms = now_ms - elapsed - self._difference_ms
        self._difference_ms += jump_ms
        if abs(jump_ms) >= _LEAST_JUMP_MS:
            self._set_forward_at = elapsed if jump_ms > 0 else None
            self._note(jump_ms, "it was set")

    def _note(self, jump_ms: int, reason: str) -> None:
        self.jump_ms, self.jumped_at_ms = jump_ms, self.clock_ms()
        LOGGER.warning("wall clock jumped seconds=%+.1f reason=%s", jump_ms / 1000, reason)
