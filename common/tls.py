"""TLS of broker and client: sessions over memory buffers, a socket that uses one, and certificates.

The problem
    A connection of the broker is read and written by plain functions, in steps that may not wait.  TLS breaks their
    assumption that a read only receives: TLS may have to send first (handshake, alerts).  And plain bytes may be left
    although the socket has none, because OpenSSL reads whole records.

What was rejected
    - ``ssl.SSLSocket``: a read may wait until the socket is writable, and a write until it is readable, so that all
      code that waits for sockets would have to know TLS.
    - ``trio.SSLStream``: its methods are async, so each connection needs a task, and each read a trip through the run
      loop.

What it is
    :class:`TlsSession` is ``SSLObject`` between two memory buffers, and does no I/O.  The owner of the socket calls
    :meth:`TlsSession.receive` with the bytes from the socket, and :meth:`TlsSession.read` for the plain bytes.  To
    write, it sends the bytes that :meth:`TlsSession.seal` returns, and reports their number to
    :meth:`TlsSession.sent`.  :class:`TlsSocket` does this behind the methods of a socket.

The invariant
    - Sealed bytes leave in order and completely.  While some are left, ``seal`` returns them and seals nothing new.
    - The plain bytes of one ``seal`` count as written together, when the last sealed byte is gone; until then the
      caller offers the same plain bytes again.  So a queue of plain bytes needs to know nothing of TLS.
    - TLS's own bytes are sent after each read, and only if no sealed plain bytes are left before them.
    - A peer that makes us answer and does not read loses the connection, so that the buffers are bounded.

TLS 1.2 and 1.3, forward secrecy only, no renegotiation.

Source: wire.md 1.3.
"""

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from triomq.protocol.errors import ConfigError

#: First byte of a TLS connection; a frame that begins so would have 352 MiB.
HANDSHAKE: Final = b"\x16"
_RECORD_BYTES: Final = 16 * 1024
_SEALED_AT_ONCE_BYTES: Final = 256 * 1024
_MAX_UNSENT_BYTES: Final = 64 * 1024
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 all have forward secrecy


class TlsSession:
    """The TLS state of one connection.

    Attributes:
        is_established: whether the handshake is complete.
        has_ended: whether the peer has announced the end of its data.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "_plain_bytes", "_sealed", "has_ended", "is_established")

    def __init__(self, context: ssl.SSLContext, *, is_server: bool = False, host: str | None = None) -> None:
        """A client gives ``host``, the name or IP address that was dialled."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, is_server, host)
        self._sealed = memoryview(b"")
        self._plain_bytes = 0  # in ``_sealed``
        self.is_established = False
        self.has_ended = False

    @property
    def has_received(self) -> bool:
        """Whether received bytes may be left to read."""
        return bool(self._incoming.pending or self._object.pending())

    @property
    def has_own(self) -> bool:
        """Whether TLS itself has bytes to send, as in the handshake, and no sealed plain bytes are left before them."""
        return not self._plain_bytes and bool(self._sealed or self._outgoing.pending)

    def receive(self, data: bytes | memoryview) -> None:
        """Add received bytes.

        Raises:
            ssl.SSLError: the peer does not read our answers.
        """
        if self._outgoing.pending > _MAX_UNSENT_BYTES:
            raise ssl.SSLError("the peer does not read")
        self._incoming.write(data)

    def shake_hands(self) -> bool:
        """Continue the handshake; return whether it is complete.

        Raises:
            ssl.SSLError: it failed.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_established = True
        return True

    def read(self) -> bytes:
        """Return all received plain bytes; b"": none yet, or the end.

        Raises:
            ssl.SSLError: the stream is damaged, or the peer sent an alert.
        """
        parts = []
        with suppress(ssl.SSLWantReadError):
            while self.has_received and not self.has_ended:
                parts.append(self._object.read(_RECORD_BYTES))
                self.has_ended = not parts[-1]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, buffer: memoryview) -> int:
        """Like :meth:`read`, into a buffer; return the number of bytes."""
        filled, size = 0, len(buffer)
        with suppress(ssl.SSLWantReadError):
            while filled < size and self.has_received and not self.has_ended:
                count = int(self._object.read(size - filled, buffer[filled:]))  # typeshed: it returns bytes
                self.has_ended = not count
                filled += count
        return filled

    def seal(self, chunks: Iterable[bytes | memoryview] = ()) -> memoryview:
        """Return the bytes to send: those that are left, otherwise the first plain bytes, at most 256 KiB, sealed."""
        if not self._sealed:
            parts: list[bytes | memoryview] = []
            room = _SEALED_AT_ONCE_BYTES
            for chunk in chunks:
                parts.append(memoryview(chunk)[:room])
                room -= len(parts[-1])
                if not room:
                    break
            plain = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
            self._plain_bytes = len(plain)
            while plain:
                plain = plain[self._object.write(plain) :]
            self._sealed = memoryview(self._outgoing.read())
        return self._sealed

    def sent(self, count: int) -> int:
        """Remove sent bytes; return the number of plain bytes that are gone with them: all that were sealed, or 0."""
        self._sealed = self._sealed[count:]
        if self._sealed:
            return 0
        gone, self._plain_bytes = self._plain_bytes, 0
        return gone

    def end(self) -> None:
        """Announce the end of our data to the peer; :meth:`seal` returns the bytes."""
        with suppress(ssl.SSLError):  # the peer's own end has not come yet
            self._object.unwrap()


class TlsSocket:
    """A non-blocking socket that speaks TLS, with the methods of ``socket.socket`` that connections use.

    A write takes all its bytes or none; then the caller writes the same bytes first the next time.
    """

    __slots__ = ("_session", "_socket")

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        """Take ownership of a connected non-blocking socket."""
        self._socket = sock
        self._session = session

    def fileno(self) -> int:
        """Return the file descriptor; -1 after it was closed."""
        return self._socket.fileno()

    def send(self, data: bytes) -> int:
        """Write plain bytes; return how many are gone.

        Raises:
            BlockingIOError: the kernel's buffer is full.
            OSError: the connection is lost.
        """
        return self.sendmsg((data,))

    def sendmsg(self, chunks: Iterable[bytes | memoryview]) -> int:
        """Like :meth:`send`, for several buffers."""
        session = self._session
        return session.sent(self._socket.send(session.seal(chunks)))

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, option, value)

    def close(self) -> None:
        """Announce the end, if the kernel has room for it, and close the socket."""
        self._session.end()
        self._push()
        self._socket.close()

    def _push(self) -> None:
        """Send TLS's own bytes; those that the kernel does not take leave with the next ones."""
        if self._session.has_own:
            with suppress(OSError):  # the next read or write meets it again
                self._session.sent(self._socket.send(self._session.seal()))


def make_context(*, is_server: bool) -> ssl.SSLContext:
    """Return settings without certificates; those of a client check the peer's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    return context


def load_identity(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Use a certificate, its chain and its private key.

    Raises:
        ConfigError: a file cannot be used; the text names file and reason, and quotes nothing of the file.
    """
    _check_pem(cert, b"CERTIFICATE-----", "certificate")
    _check_pem(key, b"PRIVATE KEY-----", "private key")

    def password() -> str:  # else OpenSSL asks at the terminal
        raise ConfigError(f"TLS: the private key {key} is encrypted; decrypt it: openssl pkey -in {key} -out FILE")

    try:
        context.load_cert_chain(cert, key, password)
    except OSError as exc:
        raise ConfigError(f"TLS: certificate {cert} with private key {key} cannot be used: {tls_reason(exc)}") from None


def load_ca(context: ssl.SSLContext, ca: Path) -> None:
    """Trust certificates that are signed by one in a file.

    Raises:
        ConfigError: the file cannot be used.
    """
    _check_pem(ca, b"CERTIFICATE-----", "certificate")
    try:
        context.load_verify_locations(ca)
    except OSError as exc:
        raise ConfigError(f"TLS: the certificates of {ca} cannot be used: {tls_reason(exc)}") from None


def _check_pem(path: Path, mark: bytes, what: str) -> None:
    try:
        text = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"TLS: cannot read the {what} {path}: {exc.strerror}") from None
    if mark not in text:
        raise ConfigError(f"TLS: {path} contains no {what} in PEM format")


def tls_reason(error: OSError) -> str:
    """Return the reason of an error in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason.lower().replace("_", " ") if reason else error.strerror or str(error)
