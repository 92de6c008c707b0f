"""Retries with a deadline, for blocking code."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from triomq.protocol.errors import BrokerResponseError, NoBrokerError, NoRouteError, RequestTimeoutError, TriomqError

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 2.0


def is_busy(error: TriomqError) -> bool:
    """Whether a broker rejected a request only because it is busy."""
    return error.is_retriable and isinstance(error, BrokerResponseError)


def is_missing_topic(error: TriomqError) -> bool:
    """Whether the name server knows brokers, but not the topic."""
    return isinstance(error, NoRouteError) and not isinstance(error, NoBrokerError)


class Retry:
    """Repeats an operation, with growing pauses, until it succeeds or its time is up."""

    def __init__(self, limit_s: float, what: str) -> None:
        """Set the limit; its time starts with the first failure.

        Args:
            limit_s: seconds from the first failure after the last success.
            what: the operation, for the error: ``"reading queue X (option 'readTimeoutMs')"``.
        """
        self._limit_s = limit_s
        self._what = what
        self._began: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def call(self, action: Callable[[], T], *, is_final: Callable[[TriomqError], bool] = lambda _: False) -> T:
        """Call ``action`` until it succeeds, or fails with a final error.

        Raises:
            TriomqError: the final error, else as :meth:`failed`.
        """
        while True:
            began = time.monotonic()
            try:
                return action()
            except TriomqError as exc:
                if is_final(exc):
                    raise
                self.failed(exc, time.monotonic() - began)

    def success(self) -> None:
        """Start over: the next failure is a first one."""
        self._began = None
        self._pause_s = _FIRST_PAUSE_S

    def failed(self, error: TriomqError, took_s: float = 0.0) -> None:
        """Pause before the next attempt, each time a little longer.

        Args:
            error: why the attempt failed.
            took_s: how long it took.  It counts, and no attempt starts that would end too late if it took as long.

        Raises:
            TriomqError: ``error`` itself if another attempt cannot help.
            RequestTimeoutError: the time is up; ``error`` is its cause and part of its text.
        """
        if not error.is_retriable:
            raise error
        now = time.monotonic()
        if self._began is None:
            self._began = now - took_s
        pause_s = max(self._pause_s, getattr(error, "retry_after_s", None) or 0.0)  # a busy broker may say when
        if now + pause_s + took_s > self._began + self._limit_s:
            raise RequestTimeoutError(
                f"{self._what}: given up after {now - self._began:.1f} s; the last error: {error}"
            ) from error
        time.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
