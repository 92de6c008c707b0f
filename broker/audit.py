"""The audit: a file with a JSON object for each administration request, denied request and login.

Rules: a line holds only names, of accounts, topics, groups and the like, so that secrets and messages stay out of the
file.  They are read as the processor reads them, and the line counts those that it does not show in full.
Requests never wait for the disk: a thread writes the lines, and lines beyond its queue are counted and reported.
"""

import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

import trio

from triomq.broker.config import ConnectionConfig
from triomq.broker.work import Signal
from triomq.common.log_file import LogFile
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Resource

LOGGER: Final = logging.getLogger("triomq.broker.audit")

MAX_WAITING: Final = 4096  # lines, of about 300 bytes each
#: Denied requests, and logins, in a minute: a flood of them must not rotate everything else out of the files.
MAX_IN_MINUTE: Final = 1000
_ADMINISTRATION: Final = "administration"  # not limited by the minute
_MAX_TEXT: Final = 255
_MAX_NAMES: Final = 2048  # characters in a line; the names of all settings are 1,300
#: Other text before "=" may be a secret.
_SETTING: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}")


class Peer(Protocol):
    """The sender of a request."""

    peer: str
    logins: frozenset[str]


class _File(LogFile):
    """Hands errors to the caller."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        stream, self.stream = self.stream, None  # the next record opens it again
        if stream is not None:  # this is called twice on the way up
            with suppress(OSError):
                stream.close()
        raise  # called while an error is handled


class Audit:
    """Writes the file; opened before the first request, and closed after the last one."""

    def __init__(self, config: ConnectionConfig, clock_ms: Callable[[], int]) -> None:
        """Write to the file that the settings name; nothing is opened."""
        self._config = config
        self._clock_ms = clock_ms
        self._file: _File | None = None
        self._waiting: deque[tuple[str, str]] = deque()  # events and lines
        self._wanted = Signal()
        self._minute = 0
        self._in_minute: Counter[str] = Counter()  # lines by event
        self._dropped: Counter[str] = Counter()  # lines that did not fit into the queue, by event
        self._unwritten: Counter[str] = Counter()  # those that the disk refused; this and the next two are the thread's
        self._recorded: Counter[str] = Counter()  # lost lines that the file reports
        self._logged = 0  # dropped lines that the log reports
        self._log = EventLog(LOGGER, "the audit file misses lines: %s")

    @property
    def lost(self) -> int:
        """Lines that did not fit into the queue, or that the disk refused, since the start."""
        return self._dropped.total() + self._unwritten.total()

    def open(self) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be written.
        """
        config = self._config
        assert config.audit is not None
        try:
            self._file = _File(config.audit, maxBytes=config.audit_file_bytes, backupCount=config.audit_files)
        except OSError as exc:
            raise ConfigError(f"audit file {config.audit}: {exc.strerror}; choose another one with --audit") from exc

    def login(self, peer: Peer, command: RemotingCommand, account: str) -> None:
        """Record the first request of an account on a connection; "": the address needs no account."""
        if account not in peer.logins:
            peer.logins |= {account}
            self.note("login", peer, command, account)

    def note(self, event: str, peer: Peer, command: RemotingCommand, account: str | None, refusal: str = "") -> None:
        """Record a request; ``refusal`` is the reason if it was denied."""
        minute, room = self._clock_ms() // 60_000, MAX_WAITING
        if event != _ADMINISTRATION:
            if minute != self._minute:
                self._minute = minute
                self._in_minute.clear()
            self._in_minute[event] += 1
            room = MAX_WAITING // 2 if self._in_minute[event] <= MAX_IN_MINUTE else 0
        if len(self._waiting) >= room:
            self._dropped[event] += 1
            return
        try:
            request = RequestCode(command.code).name
        except ValueError:
            request = str(command.code)
        reason = {"reason": refusal[:_MAX_TEXT]} if refusal else {}
        line = self._line(
            event=event,
            account=account or None,
            address=peer.peer,
            request=request,
            **_names(command),
            allowed=not refusal,
            **reason,
        )
        self._waiting.append((event, line))
        self._wanted.set()

    def _line(self, **fields: object) -> str:
        time = datetime.fromtimestamp(self._clock_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, **fields}, separators=(",", ":"))

    async def run(self) -> None:
        """Write until cancelled; :meth:`close` writes the remaining lines."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await trio.to_thread.run_sync(self._write)

    def close(self) -> None:
        """Write the waiting lines, and close the file."""
        if self._file is not None:
            self._write()
            self._file.close()

    def _write(self) -> None:
        """Write the waiting lines, in one thread at a time, while the loop may add more."""
        assert self._file is not None
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        lines = [line for _, line in waiting]
        dropped = self._dropped.copy()
        lost = dropped + self._unwritten
        if unreported := lost - self._recorded:
            lines.append(self._line(event="lost", count=unreported.total(), events=unreported))
        if dropped.total() > self._logged:
            self._logged = dropped.total()
            self._log.occurred("more requests than it takes", key="queue")
        if not lines:
            return
        try:
            self._file.emit(logging.makeLogRecord({"msg": "\n".join(lines)}))
        except OSError as exc:
            self._unwritten.update(event for event, _ in waiting)
            self._log.occurred(exc, cause=str(exc))
        else:
            self._log.ended()
            self._recorded = lost


def _names(command: RemotingCommand) -> dict[str, object]:
    """Return the names of topics, groups and other things in a request, and how many of them are not shown in full."""
    request = CATALOGUE.get(command.code)
    if request is None:
        return {"resource": {}}
    fields = command.ext_fields
    names = [(resource, name) for field, resource, _ in request.resources if (name := fields.get(field))]
    found, room, cut = dict[str, str](), _MAX_NAMES, 0
    if request.names_in is not None and request.is_administration:
        is_read = len(command.body) <= request.max_body_bytes  # a longer body is not served, but may be denied before
        try:
            names += request.names_in(command.body) if is_read else ()
        except ProtocolError:
            is_read = False
        cut += not is_read
    for resource, name in names:
        is_shown = resource is not Resource.SETTINGS or _SETTING.fullmatch(name)
        text = name[: min(_MAX_TEXT, room)] if is_shown else ""
        room -= len(text)
        cut += not text or text != name
        if text:
            before = found.get(resource.value)
            found[resource.value] = f"{before},{text}" if before else text
    return {"resource": found, **({"cut": cut} if cut else {})}
