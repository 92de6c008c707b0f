"""TLS of a server: one port takes plain and TLS connections; the first byte shows the kind.

The problem
    A handshake takes several round trips, and each of its steps 0.5 ms of the processor.  Peers may begin thousands at
    once and finish none of them.

What was rejected
    - A task for each handshake: it costs memory for each peer that sends one byte, and a switch for each step.
    - Threads for handshakes: a connection would have two owners, and a storm of handshakes would take all processors.

What it is
    A new connection reads through ``_FirstRead``, which looks at the first byte without removing it, and then puts the
    socket itself or a ``_ServerTlsSocket`` in its own place.  The latter continues the handshake in :meth:`recv`,
    that is, in the step of the reader that finds bytes of this peer.  ``common/tls.py`` explains sessions.

The invariant
    - A turn of the reader contains at most four steps of handshakes.  Further ones raise ``BlockingIOError``: their
      bytes stay in the socket until the next turn.
    - A handshake ends within 10 s, its memory counts against the budget, and the number of TLS connections is limited.
    - Changed certificates are used for new connections; a wrong file changes nothing.

Source: wire.md 1.3; NettyRemotingServer.java, TlsSystemConfig.java, FileWatchService.java.
"""

import logging
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import trio

from triomq.broker.config import TlsConfig
from triomq.broker.limits.peers import ConnectionLimits
from triomq.broker.network.connection_reader import ConnectionReader
from triomq.broker.network.writing import Wire
from triomq.broker.watched_file import WatchedFiles
from triomq.common.tls import HANDSHAKE, TlsSession, TlsSocket, load_ca, load_identity, make_context, tls_reason
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.network.tls")

_HANDSHAKE_TIMEOUT_S: Final = 10.0
_TICK_S: Final = 1.0
_HANDSHAKE_BYTES: Final = 48 * 1024  # memory of OpenSSL for one, besides the received bytes
_STEPS_PER_TURN: Final = 4  # of handshakes: a storm of them must not delay the other connections
#: An alert, protocol_version: what a peer without TLS gets; a frame cannot begin so.
_USE_TLS: Final = bytes.fromhex("15 0303 0002 02 46")
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class _Connection(Protocol):
    peer: str
    peer_ip: str
    is_local: bool
    socket: Wire

    def close(self, reason: str) -> None: ...
    def count_held(self, received_bytes: int) -> None: ...


class ServerTls:
    """The certificate in use, and the unfinished handshakes.

    Attributes:
        identity: its certificate, and the settings of new connections.
        is_enforced: whether connections without TLS are refused.
        handshakes: deadlines of those that are neither complete nor closed.
        reader, connection_limits: of the server; set before there are connections.
    """

    reader: ConnectionReader
    connection_limits: ConnectionLimits

    def __init__(self, config: TlsConfig) -> None:
        """Read the files.

        Raises:
            ConfigError: one cannot be used.
        """
        self.is_enforced: Final = config.enforcing
        self.identity: Final = _Identity(config)
        self.identity.load()
        self.handshakes: Final[dict[_ServerTlsSocket, float]] = {}
        self._turn = self._steps = 0
        if config.client_auth == "require" and not config.enforcing:
            LOGGER.warning("clients without TLS need no certificate, as TLS is permissive")

    def guard(self, connection: _Connection, sock: socket.socket, *, is_enforced: bool | None = None) -> None:
        """Make a new connection use TLS or not, depending on its first byte; ``is_enforced`` replaces the setting."""
        connection.socket = _FirstRead(self, connection, sock, self.is_enforced if is_enforced is None else is_enforced)

    def has_time(self) -> bool:
        """Whether another step of a handshake, about 0.5 ms, may be done in this turn of the reader."""
        if self._turn != self.reader.turns:
            self._turn, self._steps = self.reader.turns, 0
        self._steps += 1
        return self._steps <= _STEPS_PER_TURN

    async def run(self) -> None:
        """End slow handshakes, and use changed files, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.identity.run)
            while True:
                await trio.sleep(_TICK_S)
                now = trio.current_time()
                for sock in [sock for sock, deadline in self.handshakes.items() if deadline <= now]:
                    sock.connection.close(f"no TLS handshake within {_HANDSHAKE_TIMEOUT_S:.0f} s")


class _Identity(WatchedFiles[ssl.SSLContext]):
    """The files of certificates; ``context`` has the settings of new connections."""

    context: ssl.SSLContext

    def __init__(self, config: TlsConfig) -> None:
        log = EventLog(LOGGER, "changed files cannot be used, the old certificate stays in use: %s")
        super().__init__(config.cert, log)
        self._config = config

    def _files(self) -> list[Path]:
        config = self._config
        return [path for path in (config.cert, config.key, config.client_ca) if path is not None]

    def _read(self) -> ssl.SSLContext:
        config = self._config
        context = make_context(is_server=True)
        load_identity(context, config.cert, config.key)
        context.verify_mode = _CLIENT_AUTH[config.client_auth]
        if config.client_ca is not None:
            load_ca(context, config.client_ca)
        return context

    def _use(self, content: ssl.SSLContext) -> None:
        self.context = content


class _FirstRead:
    """The socket of a connection until its first byte arrives."""

    __slots__ = ("_connection", "_is_enforced", "_socket", "_tls")

    def __init__(self, tls: ServerTls, connection: _Connection, sock: socket.socket, is_enforced: bool) -> None:
        self._tls = tls
        self._is_enforced = is_enforced
        self._connection = connection
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size: int) -> bytes:
        first = self._socket.recv(1, socket.MSG_PEEK)
        sock: Wire = self._socket
        if first == HANDSHAKE:
            peer = self._connection
            if not self._tls.connection_limits.admits_tls(peer.peer_ip, is_local=peer.is_local):
                raise ConnectionError("too many connections with TLS")
            sock = _ServerTlsSocket(self._tls, self._connection, self._socket)
        elif first and self._is_enforced:
            self._socket.recv(size)  # else the peer is reset, and may not see the alert
            self._socket.send(_USE_TLS)
            LOGGER.warning("connection without TLS refused peer=%s: TLS is enforced", self._connection.peer)
            raise ConnectionError("no TLS")
        self._connection.socket = sock
        return sock.recv(size)

    def send(self, data: bytes) -> int:
        return self._socket.send(data)

    def sendmsg(self, chunks: Iterable[bytes | memoryview]) -> int:
        return self._socket.sendmsg(chunks)

    def close(self) -> None:
        self._socket.close()


class _ServerTlsSocket(TlsSocket):
    """The socket of a connection that speaks TLS."""

    __slots__ = ("_received_bytes", "_tls", "connection")

    def __init__(self, tls: ServerTls, connection: _Connection, sock: socket.socket) -> None:
        super().__init__(sock, TlsSession(tls.identity.context, is_server=True))
        self.connection = connection
        self._tls = tls
        self._received_bytes = 0
        tls.handshakes[self] = trio.current_time() + _HANDSHAKE_TIMEOUT_S

    def recv(self, size: int) -> bytes:
        """Receive all plain bytes; b"" at the end.

        Raises:
            BlockingIOError: none have arrived.
            OSError: the connection is lost.
        """
        session = self._session
        if not session.is_established and not self._tls.has_time():
            raise BlockingIOError
        data = self._socket.recv(size)
        if not data:
            return data
        try:
            session.receive(data)
            if not session.is_established:
                self._received_bytes += len(data)
                held_bytes = _HANDSHAKE_BYTES + self._received_bytes
                if session.shake_hands():
                    self._tls.handshakes.pop(self, None)
                    held_bytes = 0
                self.connection.count_held(held_bytes)
            plain = session.read() if session.is_established else b""
        except ssl.SSLError as exc:
            self._push()
            reason = tls_reason(exc)
            LOGGER.warning("TLS failed peer=%s reason=%s", self.connection.peer, reason)
            raise ConnectionError(f"TLS: {reason}") from exc
        self._push()
        if not plain and not session.has_ended:
            raise BlockingIOError
        return plain

    def close(self) -> None:
        """Announce the end, and close the socket."""
        self._tls.handshakes.pop(self, None)
        self._tls.connection_limits.with_tls.leave(self.connection.peer_ip)
        super().close()
