"""Logs an event that a peer or a broken disk can cause without end: at once, then once a minute with a count."""

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

_MAX_KEYS: Final = 1000
_MAX_CAUSES: Final = 3
_INTERVAL_S: Final = 60.0


@dataclass(slots=True)
class _Lasting:
    causes: set[str] = field(default_factory=set)
    silent_until: float = 0.0
    suppressed: int = 0


class EventLog:
    """Logs one kind of event.

    An event that lasts is logged once a minute, and at once for each of the first three causes.  After its end, the
    next one is logged at once again.  Keys separate events that begin and end independently; the log remembers the
    newest thousand of them, because peers may choose them.
    """

    __slots__ = ("_lasting", "_level", "_logger", "_message", "_recovery", "_traceback")

    def __init__(
        self,
        logger: logging.Logger,
        message: str,
        level: int = logging.ERROR,
        *,
        recovery: str = "",
        traceback: bool = False,
    ) -> None:
        """Create a log without events.

        Args:
            logger: takes the lines.
            message: of an event, with placeholders.
            level: of the message.
            recovery: message of the end of an event, at most a warning; "": the end is not logged.
            traceback: whether the traceback of the exception being handled follows the message.
        """
        self._logger = logger
        self._message = message
        self._level = level
        self._recovery = recovery
        self._traceback = traceback
        self._lasting: dict[Hashable, _Lasting] = {}

    def occurred(self, *args: object, key: Hashable = None, cause: str = "", level: int | None = None) -> None:
        """Log the message with its arguments, unless it is too early for another one."""
        if key not in self._lasting and len(self._lasting) >= _MAX_KEYS:
            del self._lasting[next(iter(self._lasting))]
        event, now = self._lasting.setdefault(key, _Lasting()), monotonic()
        message = self._message
        if cause not in event.causes and len(event.causes) < _MAX_CAUSES:
            event.causes.add(cause)
        elif now < event.silent_until:
            event.suppressed += 1
            return
        elif event.suppressed:
            message += " (and %d more like this)"
            args, event.suppressed = (*args, event.suppressed), 0
        event.silent_until = now + _INTERVAL_S
        self._logger.log(self._level if level is None else level, message, *args, exc_info=self._traceback)

    def ended(self, *args: object, key: Hashable = None) -> None:
        """Log the recovery with its arguments, if the event had occurred; do nothing otherwise."""
        if self._lasting.pop(key, None) is not None and self._recovery:
            self._logger.log(min(self._level, logging.WARNING), self._recovery, *args)
