"""Logging of the programs (the library adds no handler): a line per event, as text or JSON, repeats suppressed."""

import logging
import re
import time
from typing import Any, Final

from triomq.protocol.errors import ConfigError

_BURST: Final = 20
_WINDOW_S: Final = 10.0
_STORM_WINDOW_S: Final = 60.0
_MAX_CHARACTERS: Final = 2000  # of a message, and of each of its fields in JSON
_MAX_TRACEBACK: Final = 20_000
_FIELD: Final = re.compile(r"(\w+)=%[^a-zA-Z]*[a-zA-Z]|%[^a-zA-Z%]*[a-zA-Z]")
_END_OF_ID: Final = re.compile(r"\s*\w+=|[%,:;(]")
_ID_CHARACTERS: Final = re.compile(r"[^a-z0-9]+")


class RepeatFilter(logging.Filter):
    """Passes 20 records of one kind in 10 s, and one a minute after more; counts the others.

    A kind is a logger with its constant text.  What a peer can vary (its port, its bytes) is in the arguments, so a
    hostile peer cannot create kinds, and memory and log are bounded.  The first record of the next window has the count
    as its attribute ``suppressed``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], list[float]] = {}  # window's end, still to pass, suppressed

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record passes; called by logging."""
        now = time.monotonic()
        kind = self._kinds.setdefault((record.name, str(record.msg)), [now + _WINDOW_S, _BURST, 0])
        if now >= kind[0]:
            if kind[2]:
                record.suppressed = int(kind[2])
                kind[:] = [now + _STORM_WINDOW_S, 1, 0]
            else:
                kind[:] = [now + _WINDOW_S, _BURST, 0]
        kind[1] -= 1
        kind[2] += kind[1] < 0
        return kind[1] >= 0


def _short(text: str, limit: int = _MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def escape_controls(text: str) -> str:
    """Return a text with control characters escaped, so that it cannot imitate a log line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z WARNING triomq.broker.server text``: UTC, control characters escaped, not too long."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        """Return the record's time in UTC with milliseconds."""
        seconds = time.strftime(datefmt or "%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03}Z"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Return the line."""
        record.message = _short(record.message)
        line = super().formatMessage(record)
        if suppressed := getattr(record, "suppressed", 0):
            line += f" (and {suppressed} more like this)"
        return escape_controls(line)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        """Return the traceback, indented: the text of the error may be a peer's."""
        lines = _short(super().formatException(ei), _MAX_TRACEBACK).split("\n")
        return "\n".join(f" {escape_controls(line)}" for line in lines)


def event_id(text: str) -> str:
    """Return the stable id of an event from the constant text of its records: ``docs/events.md`` lists them."""
    return _ID_CHARACTERS.sub("-", _END_OF_ID.split(text)[0].lower()).strip("-")


class JsonFormatter(LineFormatter):
    """One JSON object per line: ``time``, ``level``, ``logger``, ``event``, ``message``, then the event's own fields.

    ``event`` comes from the constant text: ``connection closed peer=%s`` gives ``connection-closed`` and ``peer``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        import orjson

        text = str(record.msg)
        arguments = record.args if isinstance(record.args, tuple) else ()
        fields = {}
        for found, value in zip(_FIELD.finditer(text), arguments, strict=False):
            if name := found[1]:
                is_short = value is None or isinstance(value, int | float)
                fields[f"{name}_" if name in _OWN_FIELDS else name] = value if is_short else _short(str(value))
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "event": event_id(text),
            "message": _short(record.getMessage()),
            **fields,
        }
        if suppressed := getattr(record, "suppressed", 0):
            line["suppressed"] = suppressed
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode(errors="replace")


_OWN_FIELDS: Final = frozenset(("time", "level", "logger", "event", "message", "suppressed", "traceback"))


def reopen_log_file() -> None:
    """Reopen the log file if it was renamed or removed."""
    for handler in logging.getLogger("triomq").handlers:
        if (reopen := getattr(handler, "reopenIfNeeded", None)) is not None:
            reopen()


def configure(
    level: str, log_file: str | None = None, log_format: str = "text", max_bytes: int = 0, backups: int = 0
) -> None:
    """Log triomq's records from ``level`` up to stderr, or to a file that may be renamed while it is in use.

    Above ``max_bytes``, if not 0, the file is renamed and a new one begins; ``backups`` of them are kept.

    Raises:
        ConfigError: the file cannot be opened.
    """
    handler: logging.Handler
    if log_file is None:
        handler = logging.StreamHandler()
    else:
        from triomq.common.log_file import LogFile  # 5 ms of start-up, only when logging to a file

        try:
            handler = LogFile(log_file, maxBytes=max_bytes, backupCount=backups)
        except OSError as exc:
            raise ConfigError(f"log file {log_file}: {exc.strerror}; choose another one with --log-file") from exc
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    handler.addFilter(RepeatFilter())
    logger = logging.getLogger("triomq")
    logger.setLevel(level.upper())
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.propagate = False
