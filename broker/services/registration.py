"""Registers the broker with name servers: every 30 s, and at once when its topics change.

The connection to each stays open, because a name server forgets a broker whose connection ends.

Source: behaviour.md A.17, A.20; wire.md 8, 9.7; BrokerOuterAPI.java.
"""

import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import trio

from triomq.broker.addresses import Address, plain_ip
from triomq.broker.config import BrokerConfig, TlsConfig
from triomq.broker.network.steps import Steps
from triomq.broker.paged_read import encode
from triomq.broker.signals import Signal
from triomq.broker.topics import TopicTable
from triomq.protocol.bodies.registration import RegisterBrokerBody, registration_crc
from triomq.protocol.bodies.route import ClusterInfo, DataVersion, TopicConfigSerializeWrapper
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.failure_log import FailureLog
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.tls import load_ca, load_identity, make_context, tls_reason

LOGGER: Final = logging.getLogger("triomq.broker.services.registration")

_INTERVAL_S: Final = 30.0
_PAUSE_S: Final = 0.1  # between two registrations while topics change
_PAUSE_S_PER_BYTE: Final = 0.7e-6  # encoding 10,000 topics, 1.5 MB, takes the event loop 30 ms: then once a second
_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 6.0
_LEAVE_S: Final = 3.0
_FIRST_RETRY_S: Final = 0.5
_RECEIVE_BYTES: Final = 64 * 1024
_MASTER_ID: Final = 0

_Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def check_broker_name(config: BrokerConfig) -> None:
    """Check that no other broker of this name serves clients; call it before this one listens, or it finds itself.

    A broker that is registered, but does not answer within 3 s, has left its name to this one, as after a crash.  Name
    servers that do not answer are left out.

    Raises:
        ConfigError: another broker has the name, or a file of TLS cannot be used.
    """
    tls = _client_context(config.tls)
    taken: list[str] = []

    async def check(name_server: Address) -> None:
        answer = await _ask_once(name_server, tls, RequestCode.GET_BROKER_CLUSTER_INFO)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        with suppress(ProtocolError, ConfigError):
            known = ClusterInfo.decode(answer.body).broker_addr_table.get(config.broker_name)
            at = None if known is None else known.broker_addrs.get(_MASTER_ID)
            if at and await _ask_once(Address.parse(at), tls, RequestCode.GET_BROKER_RUNTIME_INFO) is not None:
                taken.append(
                    f"broker name {config.broker_name} is in use: name server {name_server} knows a broker of this "
                    f"name at {at}, which answers; choose another name with --broker-name, or stop that broker first"
                )

    async with trio.open_nursery() as nursery:
        for name_server in config.register:
            nursery.start_soon(check, name_server)
    if taken:
        raise ConfigError(taken[0])


async def _ask_once(address: Address, tls: ssl.SSLContext | None, code: int) -> RemotingCommand | None:
    """Return the answer to a request without fields; ``None`` if there is none within 3 s."""
    with trio.move_on_after(_CONNECT_S), suppress(OSError, trio.BrokenResourceError, ProtocolError):
        stream, _ = await _connect(address, tls)
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


class Registration:
    """Keeps the broker registered with all its name servers.

    Attributes:
        leaving: set when the broker ends.
    """

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, steps: Steps, address_at: Callable[[str], str]
    ) -> None:
        """``address_at`` returns the broker's address for clients, from its IP address for the name server.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        self.config: Final = config
        self.address_at: Final = address_at
        self.leaving: Final = trio.Event()
        self.log: Final = FailureLog(
            LOGGER, "not registered for now namesrv=%s reason=%s", logging.WARNING, recovery="registered namesrv=%s"
        )
        self.tls: Final = _client_context(config.tls)
        self._topics = topics
        self._steps = steps
        self._links = [_Link(self, address) for address in config.register]
        self._ended = trio.Event()
        self._encoding = trio.Lock()
        self._encoded: tuple[DataVersion | None, bytes] = None, b""

    def topics_changed(self) -> None:
        """Register soon."""
        for link in self._links:
            link.changed.set()

    async def body(self) -> bytes:
        """Return the body with all topics, made once for each change."""
        async with self._encoding:
            version = self._topics.data_version
            if self._encoded[0] is not version:
                body = RegisterBrokerBody(TopicConfigSerializeWrapper(dict(self._topics.configs), version))
                self._encoded = version, await self._steps.run(encode(body))
            return self._encoded[1]

    async def run(self) -> None:
        """Work until :meth:`leave` or cancelled."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)
        self._ended.set()

    async def wait_tried(self) -> None:
        """Return when each name server knows the broker, or does not answer."""
        with trio.move_on_after(_CONNECT_S):
            for link in self._links:
                await link.tried.wait()

    async def leave(self) -> None:
        """Unregister everywhere, as far as name servers answer within 3 s."""
        self.leaving.set()
        for link in self._links:
            link.leave()
        with trio.move_on_after(_LEAVE_S):
            await self._ended.wait()


class _Link:
    """The connection to one name server.

    Attributes:
        changed: topics changed, or the broker leaves.
        tried: the first registration has been answered, or has failed.
    """

    def __init__(self, owner: Registration, address: Address) -> None:
        self.changed: Final = Signal()
        self.tried: Final = trio.Event()
        self._owner = owner
        self._address = address
        self._scope = trio.CancelScope()  # ends what waits for nothing that matters when the broker leaves
        self._is_registered = False
        self._opaque = 0

    def leave(self) -> None:
        """Unregister and end; end at once what is not registered."""
        if not self._is_registered:
            self._scope.cancel()
        self.changed.set()

    async def run(self) -> None:
        """Connect and stay registered; again with growing pauses after a failure."""
        with self._scope:
            pause_s = _FIRST_RETRY_S
            while not self._owner.leaving.is_set():
                try:
                    with trio.fail_after(_CONNECT_S):
                        stream, local_ip = await _connect(self._address, self._owner.tls)
                except (OSError, trio.TooSlowError, trio.BrokenResourceError) as exc:
                    tls_error = exc.__cause__
                    reason = tls_reason(tls_error) if isinstance(tls_error, ssl.SSLError) else str(exc)
                    reason = reason or "no connection"
                else:
                    async with stream:
                        reason = await self._stay(stream, self._owner.address_at(local_ip))
                if self._is_registered:
                    pause_s = _FIRST_RETRY_S
                self._is_registered = False
                self.tried.set()
                if not self._owner.leaving.is_set():
                    self._owner.log.failed(self._address, reason, key=self._address)
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _INTERVAL_S)

    async def _stay(self, stream: _Stream, address: str) -> str:
        """Register again and again; return why it ended."""
        reasons: list[str] = []
        send, receive = trio.open_memory_channel[RemotingCommand](1)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                reasons.append(await _read(stream, send))
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            try:
                await self._register(stream, receive, address)
            except (trio.BrokenResourceError, trio.TooSlowError) as exc:
                reasons.append(str(exc) or "no answer")
            nursery.cancel_scope.cancel()
        return reasons[0] if reasons else ""

    async def _register(
        self, stream: _Stream, responses: trio.MemoryReceiveChannel[RemotingCommand], address: str
    ) -> None:
        """Register until the broker leaves.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the name server cannot be reached any more.
        """
        owner, config = self._owner, self._owner.config
        broker = config.broker_name, address, config.cluster_name, _MASTER_ID

        async def ask(code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
            self._opaque += 1
            with trio.fail_after(_ANSWER_S):
                await stream.send_all(RemotingCommand(code, self._opaque, 0, fields, body).encode())
                while (response := await responses.receive()).opaque != self._opaque:
                    pass
            return response

        while not owner.leaving.is_set():
            self.changed.clear()
            body = await owner.body()
            header = RegisterBrokerRequestHeader(*broker, _ha_address(address), body_crc32=registration_crc(body))
            response = await ask(RequestCode.REGISTER_BROKER, header.encode(), body)
            self._note(response)
            with trio.move_on_after(max(_PAUSE_S, len(body) * _PAUSE_S_PER_BYTE)):
                await owner.leaving.wait()
            with trio.move_on_after(_INTERVAL_S):
                await self.changed.wait()
        await ask(RequestCode.UNREGISTER_BROKER, BrokerRequestHeader(*broker).encode())
        LOGGER.info("unregistered namesrv=%s", self._address)

    def _note(self, response: RemotingCommand) -> None:
        self._is_registered = response.code == ResponseCode.SUCCESS
        if not self._is_registered:
            reason = f"refused: {response.remark} ({response.code})"
            self._owner.log.failed(self._address, reason, key=self._address)
        else:
            if not self.tried.is_set():
                LOGGER.info("registered namesrv=%s", self._address)
            self._owner.log.worked(self._address, key=self._address)
        self.tried.set()


async def _connect(address: Address, tls: ssl.SSLContext | None) -> tuple[_Stream, str]:
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


async def _read(stream: _Stream, responses: trio.MemorySendChannel[RemotingCommand]) -> str:
    """Pass responses on, drop requests, which mean nothing to this broker; return why the connection ended."""
    splitter = FrameSplitter()
    try:
        while data := await stream.receive_some(_RECEIVE_BYTES):
            frames, error = splitter.split(data)
            for response in map(RemotingCommand.decode, frames):
                if response.is_response:
                    responses.send_nowait(response)
            if error is not None:
                raise error
    except (trio.BrokenResourceError, trio.WouldBlock, ProtocolError) as exc:
        return str(exc) or "more answers than requests"
    return "the name server closed the connection"


def _client_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
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


def _ha_address(address: str) -> str:
    """Return where slaves would ask for the log, which is nowhere yet; RocketMQ uses the port after the broker's."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"
