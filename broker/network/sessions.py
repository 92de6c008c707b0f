"""Connections to other servers: name servers, and the master of a slave.

Each has TLS if clients of this broker must use it; the one for the log if that is wanted by itself.

Source: wire.md 8; BrokerOuterAPI.java.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import trio

from triomq.broker.addresses import Address, plain_ip
from triomq.broker.config import TlsConfig
from triomq.common.tls import load_ca, load_identity, make_context, tls_reason
from triomq.protocol.errors import ProtocolError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

CONNECT_S: Final = 3.0
_ANSWER_S: Final = 6.0
_RECEIVE_BYTES: Final = 64 * 1024

Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]


def client_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
    """Return settings for other servers, which must have TLS if clients must; else ``None``."""
    return None if tls is None or not tls.enforcing else context_of(tls)


def context_of(tls: TlsConfig) -> ssl.SSLContext:
    """Return settings for other servers, which check the certificate of this one.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = make_context(is_server=False)
    if tls.client_ca is None:
        context.load_default_certs()
    else:
        load_ca(context, tls.client_ca)
    load_identity(context, tls.cert, tls.key)
    return context


async def connect(address: Address, tls: ssl.SSLContext | None) -> tuple[Stream, str]:
    """Return a connection, with TLS if that is enforced, and its IP address here.

    Raises:
        OSError: it cannot be made.
        trio.BrokenResourceError: the handshake failed.
    """
    try:
        tcp = await trio.open_tcp_stream(*address)
    except ValueError as exc:
        raise OSError(f"{address.host} is no possible host name: {exc}") from exc
    local_ip = plain_ip(tcp.socket.getsockname()[0])
    if tls is None:
        return tcp, local_ip
    stream = trio.SSLStream(tcp, tls, server_hostname=address.host, https_compatible=True)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(tcp)
        raise
    return stream, local_ip


def reason_of(error: Exception) -> str:
    """Return why a connection was not made, for the log."""
    cause = error.__cause__
    return (tls_reason(cause) if isinstance(cause, ssl.SSLError) else str(error)) or "no connection"


async def ask_once(address: Address, tls: ssl.SSLContext | None, code: int) -> RemotingCommand | None:
    """Return the answer to a request without fields; ``None`` if none comes within 3 s."""
    with trio.move_on_after(CONNECT_S), suppress(OSError, trio.BrokenResourceError, ProtocolError):
        stream, _ = await connect(address, tls)
        async with stream:
            splitter = FrameSplitter()
            await stream.send_all(RemotingCommand(code, 1).encode())
            while data := await stream.receive_some(_RECEIVE_BYTES):
                frames, error = splitter.split(data)
                for command in map(RemotingCommand.decode, frames):
                    if command.is_response:
                        return command
                if error is not None:
                    raise error
    return None


class Session:
    """A connection to another server, and the requests on it, one at a time.

    Attributes:
        reason: why it ended.
        lock: held while a request waits for its answer, or for something that must come before the request.
    """

    def __init__(self, server: str, stream: Stream, nursery: trio.Nursery) -> None:
        """``server`` names the server in reasons; the tasks of the connection run in the nursery and end with it."""
        self.reason = ""
        self._server = server
        self.lock: Final = trio.Lock()
        self.nursery: Final = nursery
        self._stream = stream
        self._opaque = 0
        self._answered, self._responses = trio.open_memory_channel[RemotingCommand](1)

    async def ask(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        """Send a request and return the response; the caller holds the lock.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the server cannot be reached any more.
        """
        self._opaque += 1
        with trio.fail_after(_ANSWER_S):
            await self._stream.send_all(RemotingCommand(code, self._opaque, 0, dict(fields or {}), body).encode())
            while (response := await self._responses.receive()).opaque != self._opaque:
                pass
        return response

    async def attempt(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do work that sends requests; end the connection if the server cannot be reached any more."""
        try:
            await work()
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            self.end(str(exc) or "no answer")

    def end(self, reason: str) -> None:
        """End all tasks of the connection; the first reason counts."""
        self.reason = self.reason or reason
        self.nursery.cancel_scope.cancel()

    async def read(self) -> None:
        """Take responses until the connection ends; drop requests, as this broker serves none there."""
        splitter = FrameSplitter()
        try:
            while data := await self._stream.receive_some(_RECEIVE_BYTES):
                frames, error = splitter.split(data)
                for response in map(RemotingCommand.decode, frames):
                    if response.is_response:
                        self._answered.send_nowait(response)
                if error is not None:
                    raise error
        except (trio.BrokenResourceError, trio.WouldBlock, ProtocolError) as exc:
            self.end(str(exc) or "more answers than requests")
        self.end(f"{self._server} closed the connection")
