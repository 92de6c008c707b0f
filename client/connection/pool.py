"""All connections of a client instance: one per address, made on first use and shared by all callers.

:func:`~triomq.client.connection.pool.dial` is the only place where sockets are made.
"""

import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from triomq.client.config import ClientConfig, split_address
from triomq.client.connection.connection import ClientConnection, RequestHandler
from triomq.client.connection.tls import ClientTlsSocket
from triomq.common.tls import TlsSession
from triomq.protocol.errors import ClientClosedError, ConfigError, ConnectError, TriomqError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.client.connection.pool")


async def dial(
    address: str, timeout_s: float, hint: str = "", tls: ssl.SSLContext | None = None
) -> socket.socket | ClientTlsSocket:
    """Connect to ``host:port``, trying all addresses of the host; return a non-blocking socket.

    Raises:
        ConnectError: refused, unreachable, unknown host, too slow, or without TLS; ``hint`` ends the text.
    """
    reason = f"no connection{'' if tls is None else ' with TLS'} within {timeout_s:g} s"
    with trio.move_on_after(timeout_s):
        try:
            stream = await trio.open_tcp_stream(*split_address(address))
        except OSError as exc:
            causes = exc.__cause__.exceptions if isinstance(exc.__cause__, BaseExceptionGroup) else (exc,)
            reason = ", ".join(dict.fromkeys(map(_text_of, causes)))
        except (ConfigError, UnicodeError) as exc:  # UnicodeError: not a possible host name
            reason = str(exc)
        else:
            sock = socket.socket(fileno=stream.socket.detach())
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if tls is None else await _start_tls(sock, address, tls)
    raise ConnectError(f"cannot connect to {address}: {reason}{'; ' if hint else ''}{hint}")


async def _start_tls(sock: socket.socket, address: str, tls: ssl.SSLContext) -> ClientTlsSocket:
    made = ClientTlsSocket(sock, TlsSession(tls, host=split_address(address)[0]))
    try:
        await made.shake_hands()
    except OSError as exc:  # the peer was reached: no other hint is needed
        made.close()
        raise ConnectError(f"cannot connect to {address}: {exc.strerror or exc}") from exc
    except BaseException:
        made.close()
        raise
    return made


def _text_of(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, socket.gaierror):
        return os.strerror(cause.errno)  # trio's own text repeats the address
    return getattr(cause, "strerror", None) or str(cause)


def log_retry(log: EventLog, key: str, error: Exception) -> None:
    """Log that an operation failed and will be retried, as a warning unless the error ``is_logged_once``."""
    level = logging.INFO if isinstance(error, TriomqError) and error.is_logged_once else logging.WARNING
    log.occurred(key, error, key=key, cause=str(error), level=level)


class ConnectionObserver:
    """Ignores events of the connections of an instance; methods of subclasses must not block."""

    def connected(self, address: str) -> None:
        """A connection was made."""

    def disconnected(self, address: str, reason: str) -> None:
        """A connection has ended."""

    def unreachable(self, address: str, reason: str) -> None:
        """No connection could be made."""


class _Dialling:
    """A connection attempt that several callers wait for."""

    __slots__ = ("connection", "done", "error", "hint")

    def __init__(self, hint: str) -> None:
        self.done = trio.Event()
        self.connection: ClientConnection | None = None
        self.error = ""
        self.hint = hint


@dataclass(slots=True, eq=False)
class ConnectionTable:
    """Connections by address; each lives in a task of the instance's nursery.

    Attributes:
        config: time limits and sizes.
        nursery: where connections live.
        on_request: gets the peers' own requests; must not block, as the other hooks.
        probe: see :class:`ClientConnection`.
        target: returns for an address which one to dial, and a hint for the error if that fails.
        tls: settings of TLS; ``None``: plain connections.
        observer: notified of new, lost and failed connections.
    """

    config: ClientConfig
    nursery: trio.Nursery
    on_request: RequestHandler
    probe: Callable[[ClientConnection], None]
    target: Callable[[str], tuple[str, str]]
    tls: ssl.SSLContext | None
    observer: ConnectionObserver
    _open: dict[str, ClientConnection] = field(default_factory=dict)
    _dialling: dict[str, _Dialling] = field(default_factory=dict)
    _closed: bool = False

    def get(self, address: str) -> ClientConnection | None:
        """Return the open connection to an address, or ``None``."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    def addresses(self) -> frozenset[str]:
        """Return the addresses with an open connection."""
        return frozenset(self._open)

    async def connect(self, address: str, deadline: float) -> ClientConnection:
        """Return the connection to an address, a new one if none is open.

        A caller that is cancelled or late does not end the attempt for the others.

        Raises:
            ConnectError: no connection until the deadline.
            ClientClosedError: the instance was left.
        """
        if self._closed:
            raise ClientClosedError("the client instance is closed")
        if (connection := self.get(address)) is not None:
            return connection
        dialling = self._dialling.get(address)
        if dialling is None:
            to_dial, hint = self.target(address)
            dialling = self._dialling[address] = _Dialling(hint)
            self.nursery.start_soon(self._run, address, to_dial, dialling)
        with trio.move_on_at(deadline):
            await dialling.done.wait()
        if dialling.connection is not None:
            return dialling.connection
        raise ConnectError(dialling.error or f"cannot connect to {address}: no connection in time; {dialling.hint}")

    def close(self) -> None:
        """Close all connections and refuse new ones."""
        self._closed = True
        for connection in tuple(self._open.values()):
            connection.close("the client was closed")

    async def _run(self, address: str, to_dial: str, dialling: _Dialling) -> None:
        config = self.config
        try:
            sock = await dial(to_dial, config.connect_timeout_s, dialling.hint, self.tls)
        except ConnectError as exc:
            dialling.error = str(exc)
            self.observer.unreachable(address, dialling.error)
            return
        except trio.Cancelled:
            dialling.error = f"cannot connect to {address}: the client was closed"
            raise
        finally:
            del self._dialling[address]
            if dialling.error:
                dialling.done.set()
        connection = ClientConnection(sock, address, config, self.on_request, self.probe)
        dialling.connection = self._open[address] = connection
        dialling.done.set()
        LOGGER.info("connected peer=%s", to_dial)
        self.observer.connected(address)
        try:
            await connection.run()
        finally:
            if self._open.get(address) is connection:  # else there is a new one already
                del self._open[address]
            LOGGER.info("disconnected peer=%s reason=%s", to_dial, connection.closed)
            self.observer.disconnected(address, connection.closed)
