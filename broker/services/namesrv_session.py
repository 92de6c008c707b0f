"""A broker's connection to a name server.

Source: wire.md 8, 9.7; BrokerOuterAPI.java.
"""

import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import trio

from triomq.broker.addresses import Address, plain_ip
from triomq.broker.config import TlsConfig
from triomq.common.tls import load_ca, load_identity, make_context
from triomq.protocol.bodies.route import registration_crc
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

CONNECT_S: Final = 3.0
_ANSWER_S: Final = 6.0
_RECEIVE_BYTES: Final = 64 * 1024

Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]


def client_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
    """Return settings for name servers, which must have TLS if clients must; else ``None``."""
    if tls is None or not tls.enforcing:
        return None
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
    tcp = await trio.open_tcp_stream(*address)
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
    """A connection to a name server, and the requests on it, one at a time.

    Attributes:
        reason: why it ended.
    """

    def __init__(self, stream: Stream, broker: tuple[str, str, str, int], nursery: trio.Nursery) -> None:
        """``broker`` is name, address, cluster and id; the tasks of the connection run in the nursery."""
        self.reason = ""
        self._stream = stream
        self._broker = broker
        self._nursery = nursery
        self._lock = trio.Lock()
        self._opaque = 0
        self._answered, self._responses = trio.open_memory_channel[RemotingCommand](1)

    async def register(self, make_body: Callable[[], Awaitable[bytes]]) -> RemotingCommand:
        """Register and return the response.

        The body is made when no registration is under way any more, so that none brings a deleted topic back later.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the name server cannot be reached any more.
        """
        async with self._lock:
            body = await make_body()
            host, _, port = self._broker[1].rpartition(":")
            ha_address = f"{host}:{int(port) + 1}"  # where slaves would ask for the log; nothing listens there yet
            header = RegisterBrokerRequestHeader(*self._broker, ha_address, body_crc32=registration_crc(body))
            return await self._ask(RequestCode.REGISTER_BROKER, header.encode(), body)

    async def unregister(self) -> None:
        """Unregister.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: as :meth:`register`.
        """
        async with self._lock:
            await self._ask(RequestCode.UNREGISTER_BROKER, BrokerRequestHeader(*self._broker).encode())

    def announce(self, make_body: Callable[[], Awaitable[bytes]]) -> trio.Event:
        """Register as soon as possible; the event is set by the answer, or by the end of the connection."""
        done = trio.Event()

        async def register() -> None:
            try:
                await self.attempt(partial(self.register, make_body))
            finally:
                done.set()

        self._nursery.start_soon(register)
        return done

    async def attempt(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do work that sends requests; end the connection if the name server cannot be reached any more."""
        try:
            await work()
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            self.end(str(exc) or "no answer")

    def end(self, reason: str) -> None:
        """End all tasks of the connection; the first reason counts."""
        self.reason = self.reason or reason
        self._nursery.cancel_scope.cancel()

    async def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        self._opaque += 1
        with trio.fail_after(_ANSWER_S):
            await self._stream.send_all(RemotingCommand(code, self._opaque, 0, fields, body).encode())
            while (response := await self._responses.receive()).opaque != self._opaque:
                pass
        return response

    async def read(self) -> None:
        """Take responses until the connection ends; drop requests, as this broker serves none."""
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
        self.end("the name server closed the connection")
