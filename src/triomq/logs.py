"""Logging of the programs (not of the library, which adds no handler): one line per event, floods cut short."""

import logging
import time
from collections.abc import Callable
from typing import Final

from triomq.protocol.errors import ConfigError

BURST: Final = 20
WINDOW_S: Final = 10.0


class RepeatFilter(logging.Filter):
    """Lets ``burst`` records of one kind pass per window and counts the others.

    A kind is a logger with its constant text: what a peer can vary (its port, its bytes) is in the arguments, so a
    hostile one cannot make more kinds, and the memory is bounded by the code.  The count stands behind the next record
    of the kind.
    """

    def __init__(
        self, burst: int = BURST, window_s: float = WINDOW_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._burst = burst
        self._window_s = window_s
        self._clock_s = clock_s
        self._kinds: dict[tuple[str, str], list[float]] = {}  # window's end, passed, suppressed

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one record; called by logging."""
        now = self._clock_s()
        kind = self._kinds.setdefault((record.name, str(record.msg)), [now + self._window_s, 0, 0])
        if now >= kind[0]:
            if kind[2]:
                record.msg = f"{record.msg} (and {kind[2]:.0f} more like this)"
            kind[:] = [now + self._window_s, 0, 0]
        if kind[1] >= self._burst:
            kind[2] += 1
            return False
        kind[1] += 1
        return True


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z WARNING triomq.broker.server text``: UTC, control characters made visible."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        """Return the record's time in UTC with milliseconds."""
        seconds = time.strftime(datefmt or "%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03}Z"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line; a peer's text must not look like a line of ours, nor steer the terminal that shows it."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def configure(level: str, log_file: str | None = None) -> None:
    """Log everything of triomq from ``level`` on to stderr, or to a file that may be renamed while it is in use.

    Raises:
        ConfigError: the file cannot be opened.
    """
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler()
    else:
        from logging.handlers import WatchedFileHandler  # 5 ms of start-up, only for who logs to a file

        try:
            handler = WatchedFileHandler(log_file, encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"log file {log_file}: {exc.strerror}; give another one with --log-file") from exc
    handler.setFormatter(LineFormatter())
    handler.addFilter(RepeatFilter())
    logger = logging.getLogger("triomq")
    logger.setLevel(level.upper())
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.propagate = False
