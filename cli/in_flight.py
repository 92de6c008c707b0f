"""As many requests in flight as the round trip needs."""

import math
from collections.abc import Callable
from typing import Final, TypeAlias

Answered: TypeAlias = Callable[[float], None]
"""Takes the seconds that a request took."""

_LEAST: Final = 32
_MOST: Final = 2048
_MOST_BYTES: Final = 64 * 1024**2
_QUEUED: Final = 1.5  # times the quickest answer: requests wait for each other


class InFlight:
    """Starts tasks that each send one request after another.

    While the usual answer takes less than 1.5 times as long as the quickest one, requests do not wait for each other,
    and every fourth answer starts another task.  So the number grows by a quarter in each round trip until the broker,
    the network or this process is busy.

    Attributes:
        tasks: the number of tasks so far.
    """

    def __init__(self, start: Callable[[Answered], None], fixed: int | None = None, request_bytes: int = 0) -> None:
        """Start the first tasks.

        Args:
            start: starts another task, which calls its argument with the time that each request took.
            fixed: the number of tasks; ``None``: at least 32, and more if the round trip needs them.
            request_bytes: approximate size of a request; all together may have 64 MiB.
        """
        self.tasks = 0
        self._start = start
        self._most = fixed or max(_LEAST, min(_MOST, _MOST_BYTES // max(request_bytes, 1)))
        self._answers = 0
        self._quickest_s = math.inf
        self._usual_s = 0.0
        for _ in range(fixed or _LEAST):
            self._add()

    def _answered(self, took_s: float) -> None:
        self._answers += 1
        self._quickest_s = min(self._quickest_s, took_s)
        if self._answers <= _LEAST:  # these have waited for the connection, too
            self._usual_s = took_s
            return
        self._usual_s += (took_s - self._usual_s) / self.tasks  # the average of a round trip
        if self._answers % 4 == 0 and self.tasks < self._most and self._usual_s < _QUEUED * self._quickest_s:
            self._add()

    def _add(self) -> None:
        self.tasks += 1
        self._start(self._answered)
