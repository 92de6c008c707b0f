"""One client as brokers see it: connections, routes, heartbeats; shared by producers, consumers and admins.

Source: behaviour.md B.2, wire.md 11.
"""

import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import trio

from triomq.client.answers import check
from triomq.client.cluster.groups import Groups
from triomq.client.cluster.namesrv import NameServers
from triomq.client.cluster.route import Queues, dialled_address, publish_queues, subscribe_queues
from triomq.client.cluster.routes import Routes
from triomq.client.config import ClientConfig, parse_namesrv
from triomq.client.connection.broker_requests import ConsumerCallbacks, RequestServer
from triomq.client.connection.connection import Connection
from triomq.client.connection.handshake import agreed_format, offered_fields
from triomq.client.connection.pool import ConnectionTable
from triomq.client.nursery import OpenOnce, open_service_nursery
from triomq.protocol.bodies.client import HeartbeatData
from triomq.protocol.bodies.route import ClusterInfo, TopicRouteData
from triomq.protocol.codes import CommandFlag, RequestCode
from triomq.protocol.errors import ClientClosedError, ConfigError
from triomq.protocol.trouble_log import TroubleLog
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header

LOGGER: Final = logging.getLogger("triomq.client.cluster.instance")

_MAX_OPAQUE: Final = 2**31 - 1
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class ClientInstance(OpenOnce):
    """The connections and routes behind producers, consumers and admins: ``async with ClientInstance(...)``.

    Each producer or consumer opens one of its own unless it is given one; who borrows it must be left before it.

    Attributes:
        config: its settings.
        client_id: ``ip@name``, unique unless ``config.instance_name`` says otherwise; set when it is entered.
        nursery: tasks of this instance; they end with it.
    """

    def __init__(self, namesrv: str | Sequence[str] | None = None, config: ClientConfig | None = None) -> None:
        """Take the name servers, as ``"host:port;host:port"`` or a sequence; default: ``$TRIOMQ_NAMESRV``.

        Raises:
            ConfigError: an address cannot be read, or none is given.
        """
        self.config = config or ClientConfig()
        self.client_id = ""
        self.client_ip = ""
        self.nursery: trio.Nursery
        self.connections: ConnectionTable
        self._groups: Groups
        self._name_servers = NameServers(parse_namesrv(namesrv), self.invoke)
        self._opaques = count()
        self._routes = Routes(self)
        self._troubles = TroubleLog(LOGGER)
        self._open = False

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        self.client_ip = self.config.client_ip or _outward_ip()
        # Made here and not in __init__, so that a forked child that enters its own instance has its own id.
        name = self.config.instance_name or f"{os.getpid()}#{secrets.token_hex(8)}"
        unit = f"@{self.config.unit_name}" if self.config.unit_name else ""
        self.client_id = f"{self.client_ip}@{name}{unit}"
        self._groups = Groups(self)
        async with open_service_nursery() as nursery:
            leaving = trio.Event()
            await nursery.start(self._keep_connections, leaving)
            try:
                yield
            finally:
                self._open = False
                leaving.set()

    async def _keep_connections(self, leaving: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        """Keep connections until the block is left, also while it is being cancelled.

        Who borrows the instance is left before it, and may have last offsets to store then.
        """
        with trio.CancelScope() as scope:
            async with open_service_nursery() as self.nursery:
                self.connections = ConnectionTable(
                    self.config,
                    self.nursery,
                    RequestServer(self).serve,
                    self._probe,
                    self._connected,
                    self._disconnected,
                    self._unreachable,
                    self._dial_target,
                )
                self.nursery.start_soon(self._groups.run)
                self.nursery.start_soon(self._routes.run)
                self._open = True
                task_status.started()
                await trio.lowlevel.checkpoint_if_cancelled()  # then nobody came to set the event
                scope.shield = True
                await leaving.wait()
                self.connections.close()

    def next_opaque(self) -> int:
        """Return the number of the next request: 0 to 2**31 - 1 and again, one counter for all connections."""
        return next(self._opaques) & _MAX_OPAQUE

    def command(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Make a request; it gets its opaque, and the header format of its peer, when it is sent."""
        return RemotingCommand(code, ext_fields={} if header is None else header.encode(), body=body)

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """Send a request and return the answer, whatever its code; connect first if need be.

        Args:
            address: of a broker as its route tells it, or of a name server.
            command: the request; its opaque and its header format are set here.
            timeout_s: for all of it; ``None``: ``config.api_timeout_s``.

        Raises:
            ConnectError: no connection.
            ConnectionLostError: the connection ended before the answer came.
            RequestTimeoutError: no answer in time.
            ClientClosedError: the instance is not entered, or was left.
        """
        deadline = trio.current_time() + (self.config.api_timeout_s if timeout_s is None else timeout_s)
        connection = self._get_open().get(address) or await self.connections.connect(address, deadline)
        command.opaque = self.next_opaque()
        command.serialize_type = connection.header_format
        return await connection.request(command.opaque, self._encode(command), deadline)

    def _encode(self, command: RemotingCommand) -> bytes:
        if (credentials := self.config.credentials) is not None:
            command.ext_fields = credentials.sign(command.ext_fields, command.body)
        return command.encode()

    async def invoke_checked(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """As :meth:`invoke`, for requests that only SUCCESS answers well.

        Raises:
            BrokerResponseError: the answer has another code.
        """
        return check(await self.invoke(address, command, timeout_s), address)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that gets no answer; return when the write buffer took it.

        Raises:
            ConnectError: no connection.
            ConnectionLostError: it ended while this waited for room in the write buffer.
            RequestTimeoutError: the write buffer stayed full.
        """
        deadline = trio.current_time() + self.config.api_timeout_s
        connection = self._get_open().get(address) or await self.connections.connect(address, deadline)
        command.opaque = self.next_opaque()
        command.serialize_type = connection.header_format
        command.flag |= _ONEWAY
        await connection.send(self._encode(command), deadline)

    async def heartbeat(self, address: str, body: bytes) -> int:
        """Send a heartbeat to a broker and return its version number; agree with it on the header format.

        Raises:
            ConnectError, ConnectionLostError, RequestTimeoutError, ClientClosedError: as :meth:`invoke`.
            BrokerResponseError: the broker refused.
        """
        wanted = self.config.header_format
        deadline = trio.current_time() + self.config.api_timeout_s
        connection = self._get_open().get(address) or await self.connections.connect(address, deadline)
        command = self.command(RequestCode.HEART_BEAT, body=body)
        command.ext_fields = offered_fields(wanted)
        command.opaque = self.next_opaque()
        command.serialize_type = connection.header_format
        response = check(await connection.request(command.opaque, self._encode(command), deadline), address)
        if address not in self.name_servers:  # else it may be a proxy that reads headers before a broker does
            connection.header_format = agreed_format(wanted, response.ext_fields)
        return response.version

    async def invoke_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        """Ask a name server; if it fails the others.

        Raises:
            NameServerError: none answered.
        """
        return await self._name_servers.request(command)

    async def invoke_namesrv_checked(self, command: RemotingCommand) -> RemotingCommand:
        """As :meth:`invoke_namesrv`, for requests that only SUCCESS answers well.

        Raises:
            BrokerResponseError: the answer has another code.
        """
        return check(await self._name_servers.request(command), self._name_servers.current)

    @property
    def name_server(self) -> str:
        """The name server in use."""
        return self._name_servers.current

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers given."""
        return self._name_servers.addresses

    def connected_addresses(self) -> frozenset[str]:
        """Return the addresses with an open connection."""
        return frozenset(self.connections.addresses())

    async def find_route(self, topic: str, refresh: bool = False) -> TopicRouteData | None:
        """Return the route of a topic, asking the name server if it is not known yet or ``refresh`` is set.

        ``None``: the name server has none.  A route known before is kept then (see :meth:`known_route`).

        Raises:
            NameServerError: none answered.
            BrokerResponseError: the name server refused.
            ProtocolError: its answer cannot be read.
        """
        self._get_open()
        return await self._routes.find(topic, refresh)

    async def topic_route(self, topic: str, refresh: bool = False) -> TopicRouteData:
        """As :meth:`find_route`, for topics that should have one.

        Raises:
            NoRouteError: the name server has none; the text tells similar topics and how to create it.
            NoBrokerError: the name server knows no broker at all.
        """
        route = await self.find_route(topic, refresh)
        if route is None:
            raise await self._routes.no_route(topic)
        return route

    def refresh_route(self, topic: str) -> None:
        """Ask for the route again, without waiting: a broker in it failed."""
        if self._open:
            self._routes.refresh(topic)

    def refresh_unpolled_route(self, topic: str) -> None:
        """As :meth:`refresh_route`, for a topic that nobody sends to or subscribes to: its route is not polled."""
        if self._open:
            self._routes.refresh_unpolled(topic)

    def known_route(self, topic: str) -> TopicRouteData | None:
        """Return the route as last heard, without asking."""
        return self._routes.known(topic)

    async def publish_route(self, topic: str) -> TopicRouteData:
        """Return the route for sending; of an unknown topic the one it will have after the first send.

        The topic's route is polled from now on.

        Raises:
            NoRouteError: no route, and no broker creates topics by itself.
        """
        self._get_open()
        return await self._routes.publish(topic)

    async def publish_queues(self, topic: str) -> Queues:
        """Return the queues to send to, sorted.

        Raises:
            NoRouteError: as :meth:`publish_route`.
        """
        return publish_queues(topic, await self.publish_route(topic))

    async def subscribe_queues(self, topic: str) -> Queues:
        """Return the queues to consume, sorted as all members of a group sort them.

        Raises:
            NoRouteError: the name server knows no route.
        """
        return subscribe_queues(topic, await self.topic_route(topic))

    def known_subscribe_queues(self, topic: str) -> Queues:
        """Return the queues to consume as last heard, without asking; none if the topic is unknown."""
        route = self._routes.known(topic)
        return () if route is None else subscribe_queues(topic, route)

    def broker_address(self, broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        """Return a broker's address from the known routes; of another with its name unless ``only_this``."""
        return self._routes.brokers.find(broker_name, broker_id, only_this)

    def broker_addresses(self) -> dict[str, tuple[str, int]]:
        """Return name and id of each broker address in the known routes."""
        return self._routes.brokers.addresses()

    def broker_version(self, address: str) -> int:
        """Return the version number in a broker's last answer to a heartbeat, 0 if there was none."""
        return self._groups.broker_versions.get(address, 0)

    async def topics(self) -> list[str]:
        """Return the names of all topics the name server knows, sorted.

        Raises:
            NameServerError: none answered.
        """
        return await self._routes.topics()

    async def cluster(self) -> ClusterInfo:
        """Return all brokers the name server knows, by cluster and name.

        Raises:
            NameServerError: none answered.
        """
        return await self._routes.cluster()

    def register_producer(self, group: str) -> None:
        """Tell brokers of a producer with the next heartbeat, which leaves soon."""
        self._get_open()
        self._groups.add_producer(group)

    async def unregister_producer(self, group: str) -> None:
        """Take leave of all brokers; never longer than 1 s, also when cancelled."""
        await self._groups.remove_producer(group)

    def register_consumer(self, group: str, consumer: ConsumerCallbacks) -> None:
        """Tell brokers of a consumer with the next heartbeat, which leaves soon; it gets their requests.

        Raises:
            ClientError: this instance has a consumer of the group already.
        """
        self._get_open()
        self._groups.add_consumer(group, consumer)

    async def unregister_consumer(self, group: str) -> None:
        """Take leave of all brokers; never longer than 1 s, also when cancelled."""
        await self._groups.remove_consumer(group)

    def consumer(self, group: str) -> ConsumerCallbacks | None:
        """Return the consumer of a group."""
        return self._groups.consumers.get(group)

    def consumers(self) -> tuple[ConsumerCallbacks, ...]:
        """Return all consumers."""
        return tuple(self._groups.consumers.values())

    def wake_heartbeat(self) -> None:
        """Send heartbeats soon."""
        self._groups.wake()

    async def heartbeat_now(self) -> None:
        """Send a heartbeat to all known brokers; return when each answered or failed."""
        await self._groups.beat()

    def _get_open(self) -> ConnectionTable:
        if not self._open:
            raise ClientClosedError(
                "the client instance is closed"
                if self._context
                else "the client instance is not entered: use async with"
            )
        return self.connections

    def _probe(self, connection: Connection) -> None:
        """Post a heartbeat without groups, which every broker answers at once; name servers never hold requests."""
        if connection.address in self.name_servers and connection.address not in self.broker_addresses():
            return
        command = self.command(RequestCode.HEART_BEAT, body=HeartbeatData(self.client_id).encode())
        command.opaque = self.next_opaque()
        command.serialize_type = connection.header_format
        connection.post(self._encode(command))

    def _connected(self, address: str) -> None:
        self._troubles.end(address, "broker reachable again address=%s", address)
        if address in self.broker_addresses():
            self._groups.wake(address)

    def _disconnected(self, address: str, reason: str) -> None:
        if address in self.broker_addresses():
            self._unreachable(address, f"connection lost: {reason}")
            for consumer in self.consumers():
                consumer.connection_lost(address)

    def _unreachable(self, address: str, reason: str) -> None:
        """Warn once for all tasks of consumers, which try again until it works; other callers get the error."""
        if self._open and self._groups.consumers and address in self.broker_addresses():
            self._troubles.begin(address, "broker unreachable, retrying address=%s error=%s", address, reason)

    def _dial_target(self, address: str) -> tuple[str, str]:
        """Return the address to dial, and what to say if nobody answers there."""
        name, _ = self.broker_addresses().get(address, ("", 0))
        if address in self.name_servers and not name:
            return address, "it was given as name server: is it running, and is the address right?"
        who = f"broker {name!r}" if name else "a broker"
        name_server = self._name_servers.current
        if self.config.advertise == "as-dialled":
            return dialled_address(address, name_server), (
                f"{who} advertises {address} through name server {name_server}, whose host was dialled "
                'instead because of advertise="as-dialled"'
            )
        return address, (
            f"{who} advertises this address through name server {name_server}; "
            "if it cannot be reached from here, start the broker with another one "
            "(triomq: --advertise HOST, Apache: brokerIP1), or "
            'use advertise="as-dialled" (of ClientConfig and in Spark; --as-dialled on the command line) to dial the '
            "name server's host"
        )


@asynccontextmanager
async def use_instance(
    namesrv: str | Sequence[str] | None, config: ClientConfig | None, instance: ClientInstance | None
) -> AsyncGenerator[ClientInstance, None]:
    """Borrow the given instance, or open one for this block.

    Raises:
        ConfigError: instance and name server are both given, or neither is and ``$TRIOMQ_NAMESRV`` is not set.
    """
    if instance is not None:
        if namesrv is not None or config is not None:
            raise ConfigError("instance: it has its own name servers and configuration; give no others")
        yield instance
    else:
        async with ClientInstance(namesrv, config) as own:
            yield own


def _outward_ip() -> str:
    """Return the address of the interface that leads outside, 127.0.0.1 without one; sends nothing."""
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
