"""Listening sockets, and an accept loop that survives a full table of file descriptors."""

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio

from triomq.broker.addresses import Address
from triomq.protocol.errors import ConfigError

LOGGER: Final = logging.getLogger("triomq.broker.network.sockets")

_BACKLOG: Final = 1024
_ACCEPTS_PER_STEP: Final = 64
_CAPACITY_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_CAPACITY_PAUSE_S: Final = 0.1
#: RocketMQ clients with the VIP channel enabled use the broker's port minus this.
VIP_PORT_DISTANCE: Final = 2
_FREE_PORT_TRIES: Final = 32


class Wire(Protocol):
    """The socket of a connection: non-blocking, plain or with TLS."""

    def fileno(self) -> int:
        """Return the file descriptor; -1 after it was closed."""

    def recv(self, size: int, /) -> bytes:
        """Receive; b"" at the end."""

    def send(self, data: bytes, /) -> int:
        """Write; return how many bytes are gone."""

    def sendmsg(self, chunks: Iterable[bytes | memoryview], /) -> int:
        """Write buffers; return how many bytes are gone."""

    def close(self) -> None:
        """Close the socket."""


def listen(address: Address) -> socket.socket:
    """Open a non-blocking listening socket.

    Raises:
        ConfigError: the address cannot be bound; the text says why and what to do.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        sock = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as exc:
        raise ConfigError(f"cannot listen on {address}: {_advice(exc, address)}") from exc
    sock.setblocking(False)
    return sock


def _advice(exc: OSError, address: Address) -> str:
    if exc.errno == errno.EADDRINUSE:
        return f"port {address.port} is in use; stop its user, choose another port, or port 0 for a free one"
    if exc.errno == errno.EACCES:
        return f"this user may not open port {address.port}; choose one above 1023"
    if exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror):
        return f"{address.host} is not an address of this machine"
    return exc.strerror or str(exc)


def listen_with_vip(address: Address) -> tuple[socket.socket, socket.socket | None]:
    """Open a broker port and the VIP port below it.

    With port 0, a broker port is chosen whose VIP port is free, too.  The VIP port of a given port may be in use.
    Then it is omitted, which only affects clients that enabled the VIP channel.
    """
    if address.port != 0:
        sock = listen(address)
        return sock, _listen_vip(address.host, address.port)
    for _ in range(_FREE_PORT_TRIES):
        sock = listen(address)
        vip = _listen_vip(address.host, sock.getsockname()[1])
        if vip is not None:
            return sock, vip
        sock.close()
    return listen(address), None


def _listen_vip(host: str, broker_port: int) -> socket.socket | None:
    port = broker_port - VIP_PORT_DISTANCE
    if port <= 0:
        return None
    try:
        return listen(Address(host, port))
    except ConfigError as exc:
        LOGGER.info("no VIP port: %s", exc)
        return None


async def accept_loop(listener: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
    """Pass every new connection to ``accepted`` until cancelled; then close the listener."""
    try:
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(_ACCEPTS_PER_STEP):
                try:
                    sock, _peer = listener.accept()
                except BlockingIOError:
                    break
                except OSError as exc:
                    if exc.errno in _CAPACITY_ERRNOS:
                        LOGGER.error("cannot accept connections: %s; raise the limit of open files", exc)
                        await trio.sleep(_CAPACITY_PAUSE_S)
                        break
                    continue  # this connection was closed before it was accepted
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                accepted(sock)
    finally:
        trio.lowlevel.notify_closing(listener)
        listener.close()
