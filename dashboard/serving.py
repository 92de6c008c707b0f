"""Runs the dashboard: its sockets, and in one nursery the server of HTTP and the tasks that watch clusters."""

import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from anycorn import Config

from triomq.client.nursery import open_service_nursery
from triomq.common.tls import load_identity, make_context
from triomq.dashboard.app import Application
from triomq.dashboard.connections import Connections
from triomq.dashboard.security import Gate
from triomq.dashboard.settings import DEFAULT_PORT, Address, Settings
from triomq.dashboard.watched import Accounts, Watched
from triomq.protocol.errors import ConfigError

_BACKLOG: Final = 128
_KEEP_ALIVE_S: Final = 30
_READ_S: Final = 60
_GRACE_S: Final = 1
#: Where this machine reaches a listener on all of its addresses.
_LOOPBACKS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_UNREAD_MS: Final = 30_000


class Dashboard:
    """A dashboard that serves.

    Attributes:
        address: where it listens.
        gate: who may see it.
    """

    def __init__(self, settings: Settings, address: Address, gate: Gate) -> None:
        self.address = address
        self.gate = gate
        scheme = "http" if settings.cert is None else "https"
        dialled = Address(_LOOPBACKS.get(address.host, address.host), address.port)
        self._page = f"{scheme}://{dialled}/"

    @property
    def link(self) -> str:
        """Address for a browser on this machine; with the one-time token, unless there is a password."""
        return self._page if self.gate.token is None else f"{self._page}?token={self.gate.token}"


def bind(listen: Address | None) -> socket.socket:
    """Return a listening socket: at ``listen``, or else at port 8233 of 127.0.0.1 or any free port there.

    Raises:
        ConfigError: the address cannot be bound.
    """
    wanted = listen or Address("127.0.0.1", DEFAULT_PORT)
    try:
        return _bind(wanted)
    except OSError as exc:
        if listen is not None:
            raise ConfigError(f"cannot listen on {wanted}: {exc.strerror or exc}") from None
    return _bind(Address(wanted.host, 0))


def _bind(address: Address) -> socket.socket:
    family, kind, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit both.  The second ends connections whose browser does not read.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        sock.bind(place)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


@asynccontextmanager
async def open_dashboard(settings: Settings) -> AsyncGenerator[Dashboard, None]:
    """Serve while the block runs.

    Raises:
        ConfigError: the address cannot be bound, or a file of TLS cannot be used.
    """
    if settings.cert is not None and settings.key is not None:
        load_identity(make_context(is_server=True), settings.cert, settings.key)  # raises errors that people read
    sock = bind(settings.listen)
    host, port = sock.getsockname()[:2]
    gate, own = Gate(settings), Watched(settings)
    async with open_service_nursery() as nursery:
        accounts = Accounts(settings, nursery)
        application = Application(settings, gate, own, accounts, cookie=f"triomq_dashboard_{port}")
        await nursery.start(own.run)
        nursery.start_soon(accounts.run)
        nursery.start_soon(application.renderer.compile)
        connections = Connections(application.asgi, _config(settings))
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        async with trio.open_nursery() as server, trio.open_nursery() as accepting:
            serve = partial(trio.serve_listeners, connections.serve, [listener], handler_nursery=server)
            accepting.start_soon(serve)
            try:
                yield Dashboard(settings, Address(host, port), gate)
            finally:
                accepting.cancel_scope.cancel()
                server.cancel_scope.deadline = trio.current_time() + _GRACE_S
                with trio.CancelScope(shield=True):
                    await connections.stop()


def _config(settings: Settings) -> Config:
    config = Config()
    config.certfile = None if settings.cert is None else str(settings.cert)
    config.keyfile = None if settings.key is None else str(settings.key)
    config.accesslog = None  # the first address has the token
    config.errorlog = logging.getLogger("triomq.dashboard.http")
    config.errorlog.setLevel(logging.ERROR)
    config.include_server_header = False
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.read_timeout = _READ_S
    return config
