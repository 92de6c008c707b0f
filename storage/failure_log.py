"""Logs a failure that repeats: once when it begins, and again only after a success in between."""

import logging


class FailureLog:
    """The state of one kind of operation: it works, or its failure is in the log already."""

    __slots__ = ("_is_failing", "_level", "_logger", "_message")

    def __init__(self, logger: logging.Logger, message: str, level: int = logging.ERROR) -> None:
        self._logger = logger
        self._message = message
        self._level = level
        self._is_failing = False

    def failed(self, *args: object) -> None:
        """Log the message with its arguments, unless the attempt before failed too."""
        if not self._is_failing:
            self._logger.log(self._level, self._message, *args)
        self._is_failing = True

    def worked(self) -> None:
        """Log the next failure again."""
        self._is_failing = False
