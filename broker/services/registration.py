"""Registers the broker with name servers: every 30 s, and soon after its topics change.

A topic that a request changes is registered alone and at once, and the request is answered afterwards, so that clients
find the topic from then on.

The connection to each stays open, because a name server forgets a broker whose connection ends.

Source: behaviour.md A.17, A.20; wire.md 8, 9.7; BrokerOuterAPI.java.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, TypeAlias

import trio

from triomq.broker.addresses import Address, plain_ip
from triomq.broker.config import BrokerConfig, TlsConfig
from triomq.broker.network.connection import Connection
from triomq.broker.topics import TopicTable
from triomq.broker.work import Signal, Worker, encode
from triomq.common.tls import load_ca, load_identity, make_context, tls_reason
from triomq.protocol.bodies.route import (
    ClusterInfo,
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    registration_crc,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

LOGGER: Final = logging.getLogger("triomq.broker.services.registration")

CONNECT_S: Final = 3.0
_ANSWER_S: Final = 6.0
_RECEIVE_BYTES: Final = 64 * 1024
_INTERVAL_S: Final = 30.0
_PAUSE_S: Final = 0.1  # between two registrations while topics change
_PAUSE_S_PER_BYTE: Final = 0.7e-6  # encoding 10,000 topics, 1.5 MB, takes the event loop 30 ms: then once a second
_CONFIRM_S: Final = 1.0  # how long a tool waits for name servers that do not answer
_LEAVE_S: Final = 3.0
_FIRST_RETRY_S: Final = 0.5
_MASTER_ID: Final = 0

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
    """A connection to a name server, and the requests on it, one at a time; ``reason``: why it ended."""

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
        """Unregister; raises as :meth:`register`."""
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


async def check_broker_name(config: BrokerConfig) -> None:
    """Check that no other broker of this name serves clients; call it before this one listens, or it finds itself.

    A broker that is registered, but does not answer within 3 s, has left its name to this one, as after a crash.  Name
    servers that do not answer are left out.

    Raises:
        ConfigError: another broker has the name, or a file of TLS cannot be used.
    """
    tls = client_context(config.tls)
    taken: list[str] = []

    async def check(name_server: Address) -> None:
        answer = await ask_once(name_server, tls, RequestCode.GET_BROKER_CLUSTER_INFO)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        with suppress(ProtocolError, ConfigError):
            known = ClusterInfo.decode(answer.body).broker_addr_table.get(config.broker_name)
            at = None if known is None else known.broker_addrs.get(_MASTER_ID)
            if at and await ask_once(Address.parse(at), tls, RequestCode.GET_BROKER_RUNTIME_INFO) is not None:
                taken.append(
                    f"broker name {config.broker_name} is in use: name server {name_server} knows a broker of this "
                    f"name at {at}, which answers; choose another name with --broker-name, or stop that broker first"
                )

    async with trio.open_nursery() as nursery:
        for name_server in config.register:
            nursery.start_soon(check, name_server)
    if taken:
        raise ConfigError(taken[0])


class Registration:
    """Keeps the broker registered with all its name servers.

    Attributes:
        leaving: set when the broker ends.
    """

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, worker: Worker, address_at: Callable[[str], str]
    ) -> None:
        """``address_at`` returns the broker's address for clients, from its IP address for the name server.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        self.config: Final = config
        self.address_at: Final = address_at
        self.leaving: Final = trio.Event()
        self.log: Final = EventLog(
            LOGGER, "not registered for now namesrv=%s reason=%s", logging.WARNING, recovery="registered namesrv=%s"
        )
        self.tls: Final = client_context(config.tls)
        self._topics = topics
        self._worker = worker
        self._links = [_Link(self, address) for address in config.register]
        self._ended = trio.Event()
        self._encoding = trio.Lock()
        self._encoded: tuple[DataVersion | None, bytes] = None, b""
        self._single_versions = count(1)

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
                self._encoded = version, await self._worker.run(encode(body))
            return self._encoded[1]

    async def single_body(self, topic: str) -> bytes:
        """Return the body with one topic, or none if it was deleted.

        Its version is unique: with that of the table, a name server would ignore the next registration of all topics.
        """
        config = self._topics.get(topic)
        version = DataVersion(counter=next(self._single_versions), timestamp=0)
        return RegisterBrokerBody(TopicConfigSerializeWrapper({topic: config} if config else {}, version)).encode()

    @property
    def pause_s(self) -> float:
        """The least time between two registrations of all topics."""
        return max(_PAUSE_S, len(self._encoded[1]) * _PAUSE_S_PER_BYTE)

    def answer_later(self, connection: Connection, command: RemotingCommand, topic: str) -> RemotingCommand | None:
        """Return the response to a request that changed a topic; ``None``: it is sent when name servers know of it.

        Name servers that do not answer are waited for up to 1 s.
        """
        sessions = [link.session for link in self._links if link.session is not None]
        if command.is_oneway or not sessions:
            return command.reply()
        self._worker.nursery.start_soon(self._answer, connection, command.reply(), topic, sessions)
        return None

    async def _answer(
        self, connection: Connection, response: RemotingCommand, topic: str, sessions: Iterable[Session]
    ) -> None:
        with trio.move_on_after(_CONFIRM_S):
            for done in [session.announce(lambda: self.single_body(topic)) for session in sessions]:
                await done.wait()
        connection.send(response)
        self._worker.end_step()

    async def run(self) -> None:
        """Work until :meth:`leave` or cancelled."""
        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(link.run)
        self._ended.set()

    async def wait_tried(self) -> None:
        """Return when each name server knows the broker, or does not answer."""
        with trio.move_on_after(CONNECT_S):
            for link in self._links:
                await link.tried.wait()

    async def leave(self) -> None:
        """Unregister everywhere, as far as name servers answer within 3 s."""
        self.leaving.set()
        for link in self._links:
            if not link.is_registered:
                link.scope.cancel()
            link.changed.set()
        with trio.move_on_after(_LEAVE_S):
            await self._ended.wait()


class _Link:
    """The connection to one name server.

    Attributes:
        changed: topics changed, or the broker leaves.
        tried: the first registration has been answered, or has failed.
        session: the connection while the broker is registered on it.
        scope: cancelled when the broker leaves and has nothing to unregister.
    """

    def __init__(self, owner: Registration, address: Address) -> None:
        self.changed: Final = Signal()
        self.tried: Final = trio.Event()
        self._owner = owner
        self._address = address
        self.scope: Final = trio.CancelScope()
        self.is_registered = False
        self.session: Session | None = None

    async def run(self) -> None:
        """Connect and stay registered; again with growing pauses after a failure."""
        config, pause_s = self._owner.config, _FIRST_RETRY_S
        with self.scope:
            while not self._owner.leaving.is_set():
                try:
                    with trio.fail_after(CONNECT_S):
                        stream, local_ip = await connect(self._address, self._owner.tls)
                except (OSError, trio.TooSlowError, trio.BrokenResourceError) as exc:
                    tls_error = exc.__cause__
                    reason = tls_reason(tls_error) if isinstance(tls_error, ssl.SSLError) else str(exc)
                    reason = reason or "no connection"
                else:
                    broker = (config.broker_name, self._owner.address_at(local_ip), config.cluster_name, _MASTER_ID)
                    async with stream, trio.open_nursery() as nursery:
                        session = Session(stream, broker, nursery)
                        nursery.start_soon(session.read)
                        nursery.start_soon(session.attempt, partial(self._register, session))
                    reason = session.reason
                if self.is_registered:
                    pause_s = _FIRST_RETRY_S
                self.is_registered = False
                self.tried.set()
                if not self._owner.leaving.is_set():
                    self._owner.log.occurred(self._address, reason, key=self._address)
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _INTERVAL_S)

    async def _register(self, session: Session) -> None:
        """Register until the broker leaves.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the name server cannot be reached any more.
        """
        owner = self._owner
        try:
            while not owner.leaving.is_set():
                self.changed.clear()
                response = await session.register(owner.body)
                self.is_registered = response.code == ResponseCode.SUCCESS
                if not self.is_registered:
                    reason = f"refused: {response.remark} ({response.code})"
                    owner.log.occurred(self._address, reason, key=self._address)
                else:
                    if not self.tried.is_set():
                        LOGGER.info("registered namesrv=%s", self._address)
                    owner.log.ended(self._address, key=self._address)
                self.tried.set()
                self.session = session if self.is_registered else None
                with trio.move_on_after(owner.pause_s):
                    await owner.leaving.wait()
                with trio.move_on_after(_INTERVAL_S):
                    await self.changed.wait()
        finally:
            self.session = None
        await session.unregister()
        LOGGER.info("unregistered namesrv=%s", self._address)
        session.end("")
