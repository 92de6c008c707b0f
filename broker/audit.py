"""The audit: a file with a JSON object for each administration request, denied request and login.

Rules: a line holds only names, of accounts, topics, groups and the like, so that secrets and messages stay out of the
file.  Requests never wait for the disk: a thread writes the lines, and lines beyond its queue are counted and reported.
"""

import json
import logging
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

import trio

from triomq.broker.config import ConnectionConfig
from triomq.broker.work import Signal
from triomq.common.log_file import LogFile
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ConfigError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Resource

LOGGER: Final = logging.getLogger("triomq.broker.audit")

MAX_WAITING: Final = 4096  # lines, of about 300 bytes each
#: In a minute: a flood of denied requests must not rotate everything else out of the files.
MAX_DENIED: Final = 1000
_MAX_TEXT: Final = 255
_BODY_BYTES: Final = 4096  # of which names are read
#: How to find names in a body without reading all of it.
_IN_BODY: Final = {
    Resource.SETTINGS: re.compile(rb"^\s*([A-Za-z.]{1,64})\s*=", re.MULTILINE),
    Resource.GROUP: re.compile(rb'"groupName"\s*:\s*"([\w%|-]{1,255})"'),
}


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
        self._waiting: deque[str] = deque()
        self._wanted = Signal()
        self._denied = (0, 0)  # a minute, and how many were denied in it
        self._dropped = 0  # lines that did not fit into the queue
        self._unwritten = 0  # lines that the disk refused; this and the next two are of the thread
        self._recorded = 0  # lost lines that the file reports
        self._logged = 0  # dropped lines that the log reports
        self._log = EventLog(LOGGER, "the audit file misses lines: %s")

    @property
    def lost(self) -> int:
        """Lines that did not fit into the queue, or that the disk refused, since the start."""
        return self._dropped + self._unwritten

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
        if event == "denied":
            minute = self._clock_ms() // 60_000
            self._denied = (minute, self._denied[1] + 1 if self._denied[0] == minute else 1)
        if len(self._waiting) >= MAX_WAITING or (event == "denied" and self._denied[1] > MAX_DENIED):
            self._dropped += 1
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
            resource=_resource(command),
            allowed=not refusal,
            **reason,
        )
        self._waiting.append(line)
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
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        lost = self.lost
        if lost > self._recorded:
            lines.append(self._line(event="lost", count=lost - self._recorded))
        if self._dropped > self._logged:
            self._logged = self._dropped
            self._log.occurred("more requests than it takes", key="queue")
        if not lines:
            return
        try:
            self._file.emit(logging.makeLogRecord({"msg": "\n".join(lines)}))
        except OSError as exc:
            self._unwritten += len(lines)
            self._log.occurred(exc, cause=str(exc))
        else:
            self._log.ended()
            self._recorded = lost


def _resource(command: RemotingCommand) -> dict[str, str]:
    """Return the names of topics, groups and other things in a request."""
    request = CATALOGUE.get(command.code)
    if request is None:
        return {}
    fields = command.ext_fields
    found = {
        resource.value: name[:_MAX_TEXT] for field, resource, _ in request.resources if (name := fields.get(field))
    }
    if request.in_body is not None and request.is_administration:
        names = [name.decode() for name in _IN_BODY[request.in_body].findall(bytes(command.body[:_BODY_BYTES]))]
        found[request.in_body.value] = ",".join(names)[:_MAX_TEXT]
    return found
