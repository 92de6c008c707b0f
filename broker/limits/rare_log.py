"""Log lines about what any peer can cause as often as it likes."""

import logging
from collections.abc import Callable
from typing import Final

_INTERVAL_MS: Final = 60_000


class RareLog:
    """Logs at most one event of each kind a minute."""

    def __init__(
        self, logger: logging.Logger, message: str, clock_ms: Callable[[], int], level: int = logging.WARNING
    ) -> None:
        """Take the message; ``clock_ms`` is a steady clock."""
        self._logger = logger
        self._message = message
        self._level = level
        self._clock_ms = clock_ms
        self._next_ms: dict[str, int] = {}

    def note(self, *args: object, kind: str = "") -> None:
        """Log the message with its arguments, unless one of this kind was logged within the last minute."""
        now_ms = self._clock_ms()
        if now_ms >= self._next_ms.get(kind, now_ms):
            self._next_ms[kind] = now_ms + _INTERVAL_MS
            self._logger.log(self._level, self._message, *args)
