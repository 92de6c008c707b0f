"""Answers HTTP requests about a server: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for a supervisor.

Rules: it answers from before the store is opened until after the last request; it changes nothing and shows no
messages; the text of ``/metrics`` is made at most twice a second.

The HTTP server is a small one.  A connection is one GET or HEAD without a body, and ends with its answer; it has a few
seconds for both.  Above ``MAX_CONNECTIONS`` the oldest ends, so that idle ones exclude no other peer.  Only the path of
a request is used: the rest of HTTP is not needed.  Source: RFC 9112.
"""

import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol, TypeAlias

import trio

from triomq.broker.addresses import Address
from triomq.broker.config import DEFAULT_METRICS
from triomq.broker.network.client_requests import LIMIT as MAX_CLIENT_REQUESTS
from triomq.broker.network.connection import ConnectionContext
from triomq.broker.network.listeners import accept_loop, listen
from triomq.broker.statistics.exposition import CONTENT_TYPE, Exposition, label
from triomq.protocol.errors import ConfigError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.services.monitor")


MAX_CONNECTIONS: Final = 16
MAX_REQUEST_BYTES: Final = 8192
TIME_LIMIT_S: Final = 10.0  # of a connection
_SEND_BYTES: Final = 64 * 1024
_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]\r\n")


class Reply(NamedTuple):
    """An answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def head(self) -> bytes:
        """Return status line and header fields."""
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *(["Allow: GET, HEAD"] if self.status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        )
        return "\r\n".join((*lines, "", "")).encode()


Answer: TypeAlias = Callable[[str], Awaitable[Reply]]
"""Answers a path."""


class HttpServer:
    """Serves one listening socket."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open: dict[trio.CancelScope, None] = {}  # the oldest first
        self._log = EventLog(LOGGER, "metrics not served error=%r", logging.WARNING)

    async def run(self, listener: socket.socket) -> None:
        """Serve until cancelled; then close the socket."""
        async with trio.open_nursery() as nursery:

            def accepted(sock: socket.socket) -> None:
                scope = trio.CancelScope(deadline=trio.current_time() + TIME_LIMIT_S)
                self._open[scope] = None
                if len(self._open) > MAX_CONNECTIONS:
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    oldest.cancel()
                nursery.start_soon(self._serve, trio.SocketStream(trio.socket.from_stdlib_socket(sock)), scope)

            await accept_loop(listener, accepted)

    async def _serve(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with stream:
                    head = b""  # up to the end of the header fields, of the connection, or of the accepted size
                    while _END not in head and len(head) <= MAX_REQUEST_BYTES:
                        data = await stream.receive_some(MAX_REQUEST_BYTES)
                        if not data:
                            break
                        head += data
                    is_head, reply = await self._reply(head)
                    await stream.send_all(reply.head())
                    for at in range(0, 0 if is_head else len(reply.body), _SEND_BYTES):  # others run in between
                        await stream.send_all(memoryview(reply.body)[at : at + _SEND_BYTES])
        except trio.BrokenResourceError:  # the peer is gone
            pass
        finally:
            self._open.pop(scope, None)

    async def _reply(self, head: bytes) -> tuple[bool, Reply]:
        """Return whether the method is HEAD, and the answer."""
        if len(head) > MAX_REQUEST_BYTES:
            return False, _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        line = _REQUEST_LINE.match(head)
        if line is None or _END not in head:
            return False, _error(HTTPStatus.BAD_REQUEST)
        method, target = line.groups()
        if method not in (b"GET", b"HEAD"):
            return False, _error(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            reply = await self._answer(target.partition(b"?")[0].decode())
        except Exception as exc:  # noqa: BLE001  # boundary: no request ends the server
            self._log.occurred(exc)
            reply = _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return method == b"HEAD", reply


def _error(status: HTTPStatus) -> Reply:
    return Reply(status, f"{status.phrase}\n".encode())


_FRESH_S: Final = 0.5
_INDEX: Final = "/metrics: metrics for Prometheus\n/healthz: whether it works\n/readyz: whether it serves\n"


Table: TypeAlias = tuple[str, int, int | None]
"""Name, size and limit of a table; ``None``: it has no limit of its own."""


class Watched(Protocol):
    """A server."""

    def failure(self) -> str:
        """Return the reason to start it again; "" while loop and disk work."""

    def not_ready(self) -> str:
        """Return the reason why it does not serve now; "" while it does."""

    async def metrics(self) -> bytes:
        """Return all metrics, as text."""


class Monitor:
    """Answers about one server.

    Attributes:
        address: where it listens, with the port really used.
        watched: the server, as soon as there is one.
    """

    def __init__(self, address: Address, node_type: str) -> None:
        """Begin to listen.

        The default port is a proposal: where it is in use, as for the second broker of a machine, it is another one.

        Raises:
            ConfigError: the address cannot be bound.
        """
        try:
            self._listener = listen(address)
        except ConfigError as exc:
            if address is not DEFAULT_METRICS:  # it was asked for
                raise
            LOGGER.info("metrics are at another port: %s", exc)
            self._listener = listen(address._replace(port=0))
        self.address: Final = Address(address.host, self._listener.getsockname()[1])
        self.watched: Watched | None = None
        self._node_type = node_type
        self._making = trio.Lock()
        self._made = b""
        self._stale_at = 0.0
        if not address.is_loopback:
            LOGGER.warning("metrics open to the network address=%s: they name topics and groups", address)

    async def run(self) -> None:
        """Answer until cancelled."""
        await HttpServer(self._answer).run(self._listener)

    async def _answer(self, path: str) -> Reply:
        match path:
            case "/metrics":
                async with self._making:
                    if self.watched is None:
                        exposition = Exposition(node_type=self._node_type)
                        exposition.put_process()
                        return Reply(HTTPStatus.OK, exposition.encode(), CONTENT_TYPE)
                    if trio.current_time() >= self._stale_at:
                        self._made = await self.watched.metrics()
                        self._stale_at = trio.current_time() + _FRESH_S
                    return Reply(HTTPStatus.OK, self._made, CONTENT_TYPE)
            case "/healthz":
                return _verdict("" if self.watched is None else self.watched.failure())
            case "/readyz":
                return _verdict("the store is being opened" if self.watched is None else self.watched.not_ready())
            case "/":
                return Reply(HTTPStatus.OK, _INDEX.encode())
        return Reply(HTTPStatus.NOT_FOUND, _INDEX.encode())


def put_server(text: Exposition, context: ConnectionContext, exposure: str, tables: Iterable[Table]) -> None:
    """Add the metrics that every server has: limits, trouble with peers, its process."""
    tables = [
        ("connections", len(context.connections), context.connection_limits.limit()),
        ("client_requests", len(context.client_requests), MAX_CLIENT_REQUESTS),
        *tables,
    ]
    text.put_all("triomq_table_size", ((label("table", name), size) for name, size, _ in tables))
    limits = ((label("table", name), limit) for name, _, limit in tables if limit is not None)
    text.put_all("triomq_table_limit", limits)
    budget = context.budget
    used = (("held", budget.held_bytes), ("reserved", budget.reserved_bytes))
    text.put_all("triomq_memory_budget_bytes", ((label("use", use), size) for use, size in used))
    text.put("triomq_memory_budget_limit_bytes", budget.limit_bytes)
    events = context.statistics.events().items()
    text.put_all("triomq_events_total", ((label("event", event), count) for event, count in events))
    text.put("triomq_open_to_network", int(bool(exposure)))
    text.put_process()


def _verdict(problem: str) -> Reply:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
    return Reply(status, f"{problem or 'ok'}\n".encode())
