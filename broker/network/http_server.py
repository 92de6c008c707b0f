"""A small HTTP server for metrics and health.

A connection is one GET or HEAD without a body, and ends with its answer; it has a few seconds for both.  Above
``MAX_CONNECTIONS`` the oldest ends, so that idle ones exclude no other peer.  Only the path of a request is used: the
rest of HTTP is not needed.

Source: RFC 9112.
"""

import logging
import re
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias

import trio

from triomq.broker.network.sockets import accept_loop
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.network.http_server")

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
                    is_head, reply = await self._reply(await _read_head(stream))
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


async def _read_head(stream: trio.SocketStream) -> bytes:
    """Return the request up to the end of its header fields, of the connection, or of the accepted size."""
    head = b""
    while _END not in head and len(head) <= MAX_REQUEST_BYTES:
        data = await stream.receive_some(MAX_REQUEST_BYTES)
        if not data:
            break
        head += data
    return head


def _error(status: HTTPStatus) -> Reply:
    return Reply(status, f"{status.phrase}\n".encode())
