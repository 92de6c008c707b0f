"""Notices when the wall clock is set, by comparing it with a clock that is never set."""

import logging
import time
from collections.abc import Callable
from typing import Final

LOGGER: Final = logging.getLogger("triomq.broker.services.clock_watch")

_LEAST_JUMP_MS: Final = 1000  # a clock that is adjusted gradually moves by half a millisecond a second
_TRUSTED_AFTER_MS: Final = 3_600_000


def elapsed_ms() -> int:
    """Return a clock, in ms, that is never set; it also counts while the machine is suspended, if the system can."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


def steady_ms() -> int:
    """Return a clock, in ms, that is never set."""
    return time.monotonic_ns() // 1_000_000


class ClockWatch:
    """Compares both clocks whenever ``check`` is called.

    Attributes:
        clock_ms: the wall clock.
        jump_ms: how far it was set last, backwards if negative; 0: it was not set.
    """

    def __init__(self, clock_ms: Callable[[], int], elapsed_clock_ms: Callable[[], int] = elapsed_ms) -> None:
        self.clock_ms = clock_ms
        self._elapsed_ms = elapsed_clock_ms
        self._jumped_at = elapsed_clock_ms()
        self._difference_ms = self._start_ms = clock_ms() - self._jumped_at
        self.jump_ms = 0

    def even_ms(self) -> int:
        """Return the wall clock as it would be if it were not set since the start: for durations."""
        return self._start_ms + self._elapsed_ms()

    @property
    def jump_age_ms(self) -> int:
        """How long ago the wall clock was set last; the age of this object if it was not."""
        return self._elapsed_ms() - self._jumped_at

    @property
    def is_trusted(self) -> bool:
        """Whether the clock was not set forward within the last hour; deletion by age waits that long."""
        return self.jump_ms <= 0 or self.jump_age_ms >= _TRUSTED_AFTER_MS

    def begin(self, newest_ms: int) -> None:
        """Compare the clock with the store time of the newest message, when the broker starts."""
        if newest_ms - self.clock_ms() >= _LEAST_JUMP_MS:
            self._report(self.clock_ms() - newest_ms, "the newest message is of the future")

    def check(self) -> None:
        """Compare the clocks; call it once a second."""
        jump_ms = self.clock_ms() - self._elapsed_ms() - self._difference_ms
        self._difference_ms += jump_ms
        if abs(jump_ms) >= _LEAST_JUMP_MS:
            self._report(jump_ms, "it was set")

    def _report(self, jump_ms: int, reason: str) -> None:
        self.jump_ms, self._jumped_at = jump_ms, self._elapsed_ms()
        LOGGER.warning("wall clock jumped seconds=%+.1f reason=%s", jump_ms / 1000, reason)
