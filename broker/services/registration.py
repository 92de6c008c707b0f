"""Registers the broker with name servers: every 30 s, and soon after its topics change.

A topic that a request changes is registered alone and at once, and the request is answered afterwards, so that clients
find the topic from then on.

The connection to each stays open, because a name server forgets a broker whose connection ends.

Source: behaviour.md A.17, A.20; wire.md 8, 9.7; BrokerOuterAPI.java.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

import trio

from triomq.broker.addresses import Address
from triomq.broker.namesrv.route_table import Master
from triomq.broker.network.connection import Connection
from triomq.broker.network.sessions import CONNECT_S, Session, Stream, client_context, connect, context_of, reason_of
from triomq.broker.promotion import Promotion
from triomq.broker.services.rank import outranked, promoted_ms_of
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Signal, encode
from triomq.protocol.bodies.route import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    registration_crc,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, ProtocolError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.services.registration")

_INTERVAL_S: Final = 30.0
_PAUSE_S: Final = 0.1  # between two registrations while topics change
_PAUSE_S_PER_BYTE: Final = 0.7e-6  # encoding 10,000 topics, 1.5 MB, takes the event loop 30 ms: then once a second
_CONFIRM_S: Final = 1.0  # how long a tool waits for name servers that do not answer
_LEAVE_S: Final = 3.0
_FIRST_RETRY_S: Final = 0.5
_MASTER_ID: Final = 0
_RANK_S: Final = 5.0
_FIND_S: Final = 5.0  # between two registrations of a slave whose master is not known


class _Registered(Session):
    """A session with a name server."""

    def __init__(self, stream: Stream, owner: "Registration", local_ip: str, nursery: trio.Nursery) -> None:
        super().__init__("the name server", stream, nursery)
        config = owner.config
        address, self._ha_address = owner.addresses_at(local_ip)
        self._broker = config.broker_name, address, config.cluster_name, config.broker_id
        self._promoted_ms = owner.promotion.promoted_ms or None

    async def register(self, make_body: Callable[[], Awaitable[bytes]]) -> RemotingCommand:
        """Register and return the response.

        The body is made when no registration is under way any more, so that none brings a deleted topic back later.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the name server cannot be reached any more.
        """
        async with self.lock:
            body = await make_body()
            header = RegisterBrokerRequestHeader(*self._broker, self._ha_address, body_crc32=registration_crc(body))
            header.promoted_ms = self._promoted_ms
            return await self.ask(RequestCode.REGISTER_BROKER, header.encode(), body)

    async def masters(self) -> list[str]:
        """Return the addresses of other masters that have this broker's name; raises as :meth:`register`."""
        name, own, *_ = self._broker
        async with self.lock:
            response = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})  # each broker has this topic
        if response.code != ResponseCode.SUCCESS:
            return []
        with suppress(ProtocolError):
            found = [each for each in TopicRouteData.decode(response.body).broker_datas if each.broker_name == name]
            return [at for each in found if (at := each.broker_addrs.get(_MASTER_ID)) not in (None, own)]
        return []

    async def unregister(self) -> None:
        """Unregister; raises as :meth:`register`."""
        async with self.lock:
            await self.ask(RequestCode.UNREGISTER_BROKER, BrokerRequestHeader(*self._broker).encode())

    def announce(self, make_body: Callable[[], Awaitable[bytes]]) -> trio.Event:
        """Register as soon as possible; the event is set by the answer, or by the end of the connection."""
        done = trio.Event()

        async def register() -> None:
            try:
                await self.attempt(partial(self.register, make_body))
            finally:
                done.set()

        self.nursery.start_soon(register)
        return done


@dataclass(eq=False)
class Registration(BrokerPart):
    """Keeps the broker registered with all its name servers; an error of a file of TLS is a ``ConfigError``.

    Attributes:
        addresses_at: returns the addresses for clients and for slaves, from the IP address for the name server.
        promotion: that of this broker.
        leaving: set when the broker ends.
        master: the addresses of a slave's master, as a name server knows it; ``None``: none knows it yet.
        master_changed: the event of the next change of ``master``.
    """

    addresses_at: Callable[[str], tuple[str, str]]

    def __post_init__(self) -> None:
        self.promotion = Promotion(self.config, self.store.file_system)
        self.master: Master | None = None
        self.master_changed = trio.Event()
        self.leaving = trio.Event()
        self.log = EventLog(
            LOGGER, "not registered for now namesrv=%s reason=%s", logging.WARNING, recovery="registered namesrv=%s"
        )
        tls = self.config.tls
        self.tls = client_context(tls)
        self.log_tls = context_of(tls) if self.config.ha_tls and tls is not None else None
        self._links = [_Link(self, address) for address in self.config.register]
        self._ended = trio.Event()
        self._is_outranked = False
        self._encoding = trio.Lock()
        self._encoded: tuple[DataVersion | None, bytes] = None, b""
        self._single_versions = count(1)

    def register_soon(self) -> None:
        """Register: topics have changed, or a slave has lost its master, and the answer may name another one."""
        for link in self._links:
            link.changed.set()

    @property
    def log_address(self) -> str | None:
        """Where a slave fetches the log; ``None``: it does not know yet."""
        return str(self.config.ha_master) if self.config.ha_master else self.master and self.master.ha_address

    def take_master(self, fields: Mapping[str, str]) -> None:
        """Take the master's addresses from the response to a slave's registration; none in it changes nothing."""
        master = Master(fields.get("masterAddr") or "", fields.get("haServerAddr") or "")
        if self.config.is_slave and master.address and master != self.master:
            LOGGER.info("master found address=%s log=%s", *master)
            self.master = master
            changed, self.master_changed = self.master_changed, trio.Event()
            changed.set()

    async def check_rank(self, session: _Registered) -> None:
        """Check that no other master of this name was promoted since; one without slaves need not ask.

        Raises:
            ConfigError: another one was, so that this broker must end.
            trio.BrokenResourceError, trio.TooSlowError: the name server cannot be reached any more.
        """
        if self.config.is_slave or self.config.ha_listen is None:
            return
        for address in await session.masters():
            their_ms = await promoted_ms_of(address, self.tls) or 0
            if their_ms > self.promotion.promoted_ms and not self._is_outranked:
                self._is_outranked = True
                self.promotion.heard_of(their_ms)
                raise ConfigError(outranked(self.config.broker_name, address, their_ms))

    async def watch_rank(self, session: _Registered) -> None:
        """Call :meth:`check_rank` every 5 s, and raise as that."""
        while True:
            await trio.sleep(_RANK_S)
            await self.check_rank(session)

    async def body(self) -> bytes:
        """Return the body with all topics, made once for each change."""
        async with self._encoding:
            version = self.topics.data_version
            if self._encoded[0] is not version:
                body = RegisterBrokerBody(TopicConfigSerializeWrapper(dict(self.topics.configs), version))
                self._encoded = version, await self.context.worker.run(encode(body))
            return self._encoded[1]

    async def part_body(self, topics: Iterable[str]) -> bytes:
        """Return the body with these topics, without those that were deleted.

        Its version is unique: with that of the table, a name server would ignore the next registration of all topics.
        """
        found = {topic: config for topic in topics if (config := self.topics.get(topic)) is not None}
        version = DataVersion(counter=next(self._single_versions), timestamp=0)
        return RegisterBrokerBody(TopicConfigSerializeWrapper(found, version)).encode()

    @property
    def pause_s(self) -> float:
        """The least time between two registrations of all topics."""
        return max(_PAUSE_S, len(self._encoded[1]) * _PAUSE_S_PER_BYTE)

    def answer_later(self, connection: Connection, command: RemotingCommand, *topics: str) -> RemotingCommand | None:
        """Return the response to a request that changed topics; ``None``: it is sent when name servers know of them.

        Name servers that do not answer are waited for up to 1 s.
        """
        sessions = [link.session for link in self._links if link.session is not None]
        if command.is_oneway or not sessions:
            return command.reply()
        self.context.worker.nursery.start_soon(self._answer, connection, command.reply(), topics, sessions)
        return None

    async def _answer(
        self, connection: Connection, response: RemotingCommand, topics: Iterable[str], sessions: Iterable[_Registered]
    ) -> None:
        with trio.move_on_after(_CONFIRM_S):
            for done in [session.announce(lambda: self.part_body(topics)) for session in sessions]:
                await done.wait()
        connection.send(response)
        self.context.worker.end_step()

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

    @property
    def is_tried(self) -> bool:
        """Whether each name server knows the broker, or has not answered."""
        return all(link.tried.is_set() for link in self._links)

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
        self.session: _Registered | None = None

    async def run(self) -> None:
        """Connect and stay registered; again with growing pauses after a failure."""
        pause_s = _FIRST_RETRY_S
        with self.scope:
            while not self._owner.leaving.is_set():
                try:
                    with trio.fail_after(CONNECT_S):
                        stream, local_ip = await connect(self._address, self._owner.tls)
                except (OSError, trio.TooSlowError, trio.BrokenResourceError) as exc:
                    reason = reason_of(exc)
                else:
                    async with stream, trio.open_nursery() as nursery:
                        session = _Registered(stream, self._owner, local_ip, nursery)
                        nursery.start_soon(session.read)
                        nursery.start_soon(session.attempt, partial(self._register, session))
                        nursery.start_soon(session.attempt, partial(self._owner.watch_rank, session))
                    reason = session.reason
                if self.is_registered:
                    pause_s = _FIRST_RETRY_S
                self.is_registered = False
                self.tried.set()
                if not self._owner.leaving.is_set():
                    self._owner.log.occurred(self._address, reason, key=self._address)
                    await trio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _INTERVAL_S)

    async def _register(self, session: _Registered) -> None:
        """Register until the broker leaves.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the name server cannot be reached any more.
            ConfigError: as :meth:`Registration.check_rank`.
        """
        owner = self._owner
        try:
            if not owner.promotion.promoted_ms:  # else it is most likely the last one
                await owner.check_rank(session)
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
                    owner.take_master(response.ext_fields)
                self.tried.set()
                self.session = session if self.is_registered else None
                with trio.move_on_after(owner.pause_s):
                    await owner.leaving.wait()
                is_lost = owner.config.is_slave and owner.master is None
                with trio.move_on_after(_FIND_S if is_lost else _INTERVAL_S):
                    await self.changed.wait()
        finally:
            self.session = None
        await session.unregister()
        LOGGER.info("unregistered namesrv=%s", self._address)
        session.end("")
