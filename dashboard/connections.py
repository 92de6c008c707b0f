"""The connections of browsers, and a limit for them, because each takes memory.

Anycorn serves each connection, but knows no limit: so this module accepts them.
"""

import gc
import logging
import socket
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import anyio
import trio
from anycorn import Config
from anycorn.tcp_server import tcp_server_handler
from anycorn.typing import ConnectionState
from anycorn.utils import wrap_app
from anycorn.worker_context import WorkerContext
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from anycorn.typing import ASGIFramework

LOGGER: Final = logging.getLogger("triomq.dashboard.connections")

MOST_CONNECTIONS: Final = 100
#: Closed connections leave cycles of up to 60 KiB each, which Python alone would collect late.
_COLLECTED: Final = 32
_HANDSHAKE_S: Final = 10.0
_REFUSED_S: Final = 1.0
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
_READ_BYTES: Final = 16 * 1024


@dataclass(slots=True)
class _Connection:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    requests: int = 0


class Connections:
    """Serves connections.

    At the limit, the connection that has had no request for the longest time is closed for a new one: a browser opens
    another when it needs it.  If all are busy, the new one is answered with 503.
    """

    def __init__(self, app: ASGIApp, config: Config) -> None:
        """Take the application and the settings of anycorn."""
        self._app = app
        self._tls = config.create_ssl_context()
        self._context = WorkerContext(None)
        self._closed = 0
        self._open: OrderedDict[tuple[str, int], _Connection] = OrderedDict()  # by the address of the browser
        wrapped = wrap_app(cast("ASGIFramework", self._answer), config.wsgi_max_body_size, "asgi")
        self._serve = tcp_server_handler(wrapped, config, self._context, ConnectionState({}))

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends."""
        try:
            client = stream.socket.getpeername()[:2]
            if len(self._open) >= MOST_CONNECTIONS and not self._close_idle():
                await _refuse(stream)
                return
            connection = self._open[client] = _Connection()
            try:
                with connection.scope:
                    await self._serve(await self._encrypted(stream))
            finally:
                self._open.pop(client, None)
                self._closed += 1
                if not self._closed % _COLLECTED:
                    gc.collect()
        except Exception:  # boundary: browsers can cause it at will, by handshakes that fail
            LOGGER.debug("connection failed", exc_info=True)

    async def stop(self) -> None:
        """Close the connections without a request, and the others after their answers."""
        await self._context.terminated.set()

    def _close_idle(self) -> bool:
        """Close the connection that has had no request for the longest time, if there is one."""
        for connection in self._open.values():
            if not connection.requests and not connection.scope.cancel_called:
                connection.scope.cancel()
                return True
        return False

    async def _encrypted(self, stream: trio.SocketStream) -> SocketStream | TLSStream:
        plain = await SocketStream.from_socket(socket.socket(fileno=stream.socket.detach()))
        if self._tls is None:
            return plain
        try:
            with anyio.fail_after(_HANDSHAKE_S):
                return await TLSStream.wrap(plain, server_side=True, ssl_context=self._tls)
        except BaseException:
            await anyio.aclose_forcefully(plain)
            raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = tuple(scope["client"])
        connection = self._open[client]
        connection.requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            connection.requests -= 1
            if client in self._open:
                self._open.move_to_end(client)


async def _refuse(stream: trio.SocketStream) -> None:
    """Answer with 503, and wait until the browser closes: unread data would reset the connection.

    A browser that expects TLS sees a connection that failed.
    """
    async with stream:
        with trio.move_on_after(_REFUSED_S):
            await stream.send_all(_REFUSAL)
            await stream.send_eof()
            while await stream.receive_some(_READ_BYTES):
                pass
