"""Logs a failure that repeats: once when it starts, not at each attempt."""

import logging
from collections.abc import Hashable
from typing import Final

_MAX_KEYS: Final = 1000


class FailureLog:
    """Remembers which operations fail, so that a lasting failure is logged once.

    It is logged again after a success, or when its cause changes.  Operations that fail independently have keys, of
    which it remembers a thousand: a peer may choose them.
    """

    __slots__ = ("_causes", "_level", "_logger", "_message", "_recovery")

    def __init__(self, logger: logging.Logger, message: str, level: int = logging.ERROR, *, recovery: str = "") -> None:
        """Take the message of a failure, and optionally that of the first success after it."""
        self._logger = logger
        self._message = message
        self._level = level
        self._recovery = recovery
        self._causes: dict[Hashable, str] = {}

    def failed(self, *args: object, key: Hashable = None, cause: str = "", level: int | None = None) -> None:
        """Log the message with its arguments, unless this failure was logged already."""
        if self._causes.get(key) != cause:
            if len(self._causes) >= _MAX_KEYS:
                del self._causes[next(iter(self._causes))]
            self._causes[key] = cause
            self._logger.log(self._level if level is None else level, self._message, *args)

    def worked(self, *args: object, key: Hashable = None) -> None:
        """Log the recovery message with its arguments, if the operation had failed and there is such a message."""
        if self._causes.pop(key, None) is not None and self._recovery:
            self._logger.log(self._level, self._recovery, *args)
