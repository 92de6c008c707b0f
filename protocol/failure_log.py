"""Logs a failure that repeats: when it starts, and once a minute, not at each attempt."""

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

_MAX_KEYS: Final = 1000
_MAX_CAUSES: Final = 3
_INTERVAL_S: Final = 60.0


@dataclass(slots=True)
class _Failure:
    causes: set[str] = field(default_factory=set)
    silent_until: float = 0.0
    suppressed: int = 0


class FailureLog:
    """Remembers which operations fail, so that a lasting failure is logged once, and then once a minute with a count.

    It is logged again after a success, or for some causes when there is another one.  Operations that fail
    independently have keys, of which it remembers a thousand: a peer may choose them.
    """

    __slots__ = ("_failures", "_level", "_logger", "_message", "_recovery", "_traceback")

    def __init__(
        self,
        logger: logging.Logger,
        message: str,
        level: int = logging.ERROR,
        *,
        recovery: str = "",
        traceback: bool = False,
    ) -> None:
        """Take the message of a failure, and optionally that of the first success after it."""
        self._logger = logger
        self._message = message
        self._level = level
        self._recovery = recovery
        self._traceback = traceback
        self._failures: dict[Hashable, _Failure] = {}

    def failed(self, *args: object, key: Hashable = None, cause: str = "", level: int | None = None) -> None:
        """Log the message with its arguments, unless this failure was logged within the last minute.

        If the log was made with ``traceback``, that of the exception being handled follows.
        """
        if key not in self._failures and len(self._failures) >= _MAX_KEYS:
            del self._failures[next(iter(self._failures))]
        failure, now = self._failures.setdefault(key, _Failure()), monotonic()
        message = self._message
        if cause not in failure.causes and len(failure.causes) < _MAX_CAUSES:
            failure.causes.add(cause)
        elif now < failure.silent_until:
            failure.suppressed += 1
            return
        elif failure.suppressed:
            message += " (and %d more like this)"
            args, failure.suppressed = (*args, failure.suppressed), 0
        failure.silent_until = now + _INTERVAL_S
        self._logger.log(self._level if level is None else level, message, *args, exc_info=self._traceback)

    def worked(self, *args: object, key: Hashable = None) -> None:
        """Log the recovery message with its arguments, if the operation had failed and there is such a message."""
        if self._failures.pop(key, None) is not None and self._recovery:
            self._logger.log(self._level, self._recovery, *args)
