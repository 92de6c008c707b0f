"""TLS to brokers and name servers: settings, handshake, and the socket of a connection that uses it."""

import errno
import socket
import ssl
from pathlib import Path
from typing import Final

import trio

from triomq.client.config import TlsConfig
from triomq.common.tls import TlsSession, TlsSocket, load_ca, load_identity, make_context, tls_reason

_READ_BYTES: Final = 128 * 1024
_NOT_TLS: Final = (
    "does it speak TLS? Connect without TLS, or enable TLS there (triomq: --tls-cert and --tls-key, Apache: "
    "tls.server.mode=permissive)"
)
_GIVE: Final = "give your certificate: TlsConfig(cert=, key=), --tls-cert and --tls-key"
#: The remedy for an alert of the peer, by a part of the alert's name.
_ADVICE: Final = (
    ("certificate required", _GIVE),
    ("bad certificate", f"if you gave none, {_GIVE}"),  # of Java
    ("handshake failure", f"if the peer wants to know you, {_GIVE}"),  # what TLS 1.2 says
    ("unknown ca", "the peer does not trust the CA of your certificate"),
    ("wrong version number", _NOT_TLS),
    ("record layer failure", _NOT_TLS),
)


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the settings of all connections of a client.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = make_context(is_server=False)
    context.check_hostname = config.verify == "host"
    if config.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is None:
        context.load_default_certs()
    else:
        load_ca(context, Path(config.ca).expanduser())
    if config.cert is not None and config.key is not None:
        load_identity(context, Path(config.cert).expanduser(), Path(config.key).expanduser())
    return context


class ClientTlsSocket(TlsSocket):
    """The socket of a connection that was dialled."""

    __slots__ = ("_buffer",)

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        """Take ownership of a connected non-blocking socket."""
        super().__init__(sock, session)
        self._buffer = memoryview(bytearray(_READ_BYTES))

    @property
    def has_received(self) -> bool:
        """Whether :meth:`recv_into` may have bytes without waiting for the socket."""
        return self._session.has_received

    async def shake_hands(self) -> None:
        """Do the handshake.

        Raises:
            OSError: it failed; ``strerror`` says what to do.
        """
        session = self._session
        while True:
            try:
                done = session.shake_hands()
            except ssl.SSLError as exc:
                self._push()
                raise OSError(errno.EPROTO, _advise(exc)) from exc
            while session.has_own:
                await trio.lowlevel.wait_writable(self._socket)
                self._push()
            if done:
                return
            await trio.lowlevel.wait_readable(self._socket)
            try:
                count = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                count = 0
            if not count:
                raise OSError(errno.EPROTO, f"the peer ended the TLS handshake: {_NOT_TLS}")
            session.receive(self._buffer[:count])

    def recv_into(self, buffer: memoryview) -> int:
        """Receive plain bytes; 0 at the end.

        Raises:
            BlockingIOError: none have arrived yet.
            OSError: the connection is lost.
        """
        session = self._session
        try:
            if not session.has_received:
                count = self._socket.recv_into(self._buffer)
                if not count:
                    return 0
                session.receive(self._buffer[:count])
            count = session.read_into(buffer)
        except ssl.SSLError as exc:
            raise OSError(errno.EPROTO, _advise(exc)) from exc
        self._push()
        if not count and not session.has_ended:
            raise BlockingIOError
        return count


def _advise(error: ssl.SSLError) -> str:
    reason = tls_reason(error)
    if not isinstance(error, ssl.SSLCertVerificationError):
        advice = next((advice for part, advice in _ADVICE if part in reason), "")
        return f"TLS: {reason}{'; ' if advice else ''}{advice}"
    if "mismatch" in reason or "doesn't match" in reason:
        advice = 'dial a name that it contains, or give verify="ca" (--tls-verify ca) to accept any name'
    else:
        advice = "give the CA that signed it: TlsConfig(ca=FILE), --tls-ca FILE"
    return f"the peer's certificate is not accepted: {reason}; {advice}"
