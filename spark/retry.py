"""Trying again until a time is over, for code that blocks."""

import time
from collections.abc import Callable
from typing import Final

from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import BrokerResponseError, ClientError, DataLossError, RequestTimeoutError, TriomqError

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_BUSY_CODES: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))


def is_busy(error: TriomqError) -> bool:
    """Whether a broker refused for a moment only."""
    return isinstance(error, BrokerResponseError) and error.code in _BUSY_CODES


def is_transient(error: TriomqError) -> bool:
    """Whether a later try may succeed: the broker is busy, or there was no answer."""
    return is_busy(error) or (isinstance(error, ClientError) and not isinstance(error, DataLossError))


class Patience:
    """How long one thing is tried."""

    def __init__(
        self,
        limit_s: float,
        what: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin now.

        Args:
            limit_s: from the first failure after the last success.
            what: for the error: ``"reading queue X (option 'readTimeoutMs')"``.
            clock: tells seconds.
            sleep: waits seconds.
        """
        self._limit_s = limit_s
        self._what = what
        self._clock = clock
        self._sleep = sleep
        self._began: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def success(self) -> None:
        """Begin anew with the next failure."""
        self._began = None
        self._pause_s = _FIRST_PAUSE_S

    def failed(self, error: TriomqError, took_s: float = 0.0) -> None:
        """Wait a little longer than the last time.

        Args:
            error: why it failed.
            took_s: how long the try took; it counts, and none is begun that would end too late if it took as long.

        Raises:
            TriomqError: ``error`` itself if trying again is senseless.
            RequestTimeoutError: the time is over; ``error`` is its cause and in its text.
        """
        if not is_transient(error):
            raise error
        now = self._clock()
        if self._began is None:
            self._began = now - took_s
        if now + self._pause_s + took_s > self._began + self._limit_s:
            raise RequestTimeoutError(
                f"{self._what}: given up after {now - self._began:.1f} s; the last error: {error}"
            ) from error
        self._sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
