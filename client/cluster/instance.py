"""One client as brokers see it: requests, routes and groups; shared by producers, consumers and admins.

Source: behaviour.md B.2, wire.md 11.
"""

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio

from triomq.client.cluster.groups import Groups
from triomq.client.cluster.requests import NameServers, Requests
from triomq.client.cluster.route import MASTER_ID, BrokerTable
from triomq.client.cluster.routes import Routes
from triomq.client.config import ClientConfig, parse_namesrv
from triomq.client.connection.broker_requests import PendingReply, RequestServer
from triomq.client.environment import RANDOM
from triomq.client.nursery import OpenOnce, open_service_nursery
from triomq.protocol.bodies.client import HeartbeatData
from triomq.protocol.bodies.route import ClusterInfo
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ClientError, ConfigError, SystemBusyError
from triomq.protocol.typed import checked
from triomq.protocol.wire.signing import SIGNATURE

if TYPE_CHECKING:
    from triomq.client.telemetry import Telemetry


class ClientInstance(OpenOnce):
    """The connections and routes behind producers, consumers and admins: ``async with ClientInstance(...)``.

    Each producer or consumer opens its own unless it is given one, which must outlive it.

    Attributes:
        config: its settings.
        client_id: ``ip@name``, unique unless ``config.instance_name`` is set; known from when it is entered.
        client_ip: the address in ``client_id``.
        brokers: addresses of the brokers in the known routes.
        requests: sends requests to brokers and name servers.
        groups: the registered producers and consumers, and their heartbeats.
        replies: requests that wait for replies of consumers, by correlation id.
        routes: the routes of topics.
        telemetry: makes spans and metrics; ``None``: ``config.open_telemetry`` is off, or this is not entered.
    """

    @checked
    def __init__(self, namesrv: str | Sequence[str] | None = None, config: ClientConfig | None = None) -> None:
        """Take the name servers, as ``"host:port;host:port"`` or a sequence; default: ``$TRIOMQ_NAMESRV``.

        Raises:
            ConfigError: an address is malformed, or none is given, or a file of TLS cannot be used.
        """
        self.config = config or ClientConfig()
        self.client_id = ""
        self.client_ip = ""
        self.brokers = BrokerTable()
        self.requests = Requests(self.config, NameServers(parse_namesrv(namesrv)), self.brokers)
        self.groups = Groups(self.requests, self.brokers)
        self.replies: dict[str, PendingReply] = {}
        self.routes = Routes(self.requests, self.brokers, self.groups)
        self.telemetry: Telemetry | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        self.client_ip = self.config.client_ip or _outward_ip()
        # Made here and not in __init__, so that a forked child that enters its own instance has its own id.
        name = self.config.instance_name or f"{os.getpid()}#{RANDOM.getrandbits(64):016x}"
        unit = f"@{self.config.unit_name}" if self.config.unit_name else ""
        self.client_id = f"{self.client_ip}@{name}{unit}"
        if self.config.open_telemetry:
            from triomq.client.telemetry import Telemetry  # needs an extra

            self.telemetry = Telemetry(self.config.open_telemetry, self.client_id, self.config.namespace)
        async with open_service_nursery() as nursery:
            leaving = trio.Event()
            await nursery.start(self._keep_connections, leaving)
            try:
                if self.config.connect:
                    await self._connect()
                yield
            finally:
                self.requests.refuse()
                leaving.set()

    async def _connect(self) -> None:
        """Check that a name server answers and, with an account, that a broker accepts the account.

        A heartbeat without groups needs no right, so a broker refuses only an unknown account or a wrong signature.
        RocketMQ's proxy lists no brokers and takes heartbeats itself, as does a broker's listener for administration.
        Brokers that cannot be reached are no error here.

        Raises:
            NameServerError: no name server answered.
            BrokerResponseError: a broker refused the account.
        """
        command = self.requests.command(RequestCode.GET_BROKER_CLUSTER_INFO)
        response = await self.requests.invoke_namesrv(command)
        if self.config.credentials is None:
            return
        addresses = [self.requests.name_servers.current]
        if response.code == ResponseCode.SUCCESS:
            brokers = ClusterInfo.decode(response.body).broker_addr_table.values()
            addresses = [one.broker_addrs[MASTER_ID] for one in brokers if MASTER_ID in one.broker_addrs]
        elif response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED and SIGNATURE not in command.ext_fields:
            return  # a name server that lists brokers only at its listener for administration
        with trio.move_on_after(self.config.api_timeout_s):
            for address in addresses:
                with suppress(ClientError, SystemBusyError):
                    await self.requests.heartbeat(address, HeartbeatData(self.client_id).encode())
                    return

    async def _keep_connections(self, leaving: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        """Keep connections until the block is left, even while it is being cancelled.

        Borrowers leave before the instance does, and may have last offsets to store then.
        """
        with trio.CancelScope() as scope:
            async with open_service_nursery() as nursery:
                requests, groups = self.requests, self.groups
                server = RequestServer(groups.consumers, groups.checkers, self.replies, nursery, requests.namespace)
                self.requests.open(self.client_id, nursery, server.serve, self.groups)
                self.groups.start(self.client_id, nursery)
                self.routes.start(nursery)
                task_status.started()
                await trio.lowlevel.checkpoint_if_cancelled()  # the event would never be set
                scope.shield = True
                await leaving.wait()
                self.requests.close()


@asynccontextmanager
async def use_instance(
    namesrv: str | Sequence[str] | None, config: ClientConfig | None, instance: ClientInstance | None
) -> AsyncGenerator[ClientInstance, None]:
    """Borrow the given instance, or open one for this block.

    Raises:
        ConfigError: instance and name server are both given, or neither is and ``$TRIOMQ_NAMESRV`` is not set.
    """
    if instance is None:
        async with ClientInstance(namesrv, config) as own:
            yield own
    elif namesrv is not None or config is not None:
        raise ConfigError("instance: it has its own name servers and configuration; give no others")
    else:
        yield instance


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
