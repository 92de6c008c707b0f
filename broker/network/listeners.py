"""The listeners of a broker: their sockets, the addresses that clients see, and the connections they accept."""

import logging
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from triomq.broker.addresses import Address, plain_ip, resolve_ip
from triomq.broker.config import Listener
from triomq.broker.network.admission import Admission
from triomq.broker.network.connection import Connection, ConnectionContext, Requests
from triomq.broker.network.sockets import accept_loop, listen, listen_with_vip
from triomq.protocol.host import encode_host

LOGGER: Final = logging.getLogger("triomq.broker.network.listeners")


class Ports(NamedTuple):
    """The requests that each kind of port serves."""

    broker: Requests
    vip: Requests
    namesrv: Requests


class Endpoint(NamedTuple):
    """A listening socket, the requests it serves, and the broker's port for its clients."""

    sock: socket.socket
    listener: Listener
    requests: Requests
    broker_port: int


class Listeners:
    """Listens on all configured addresses.

    Attributes:
        addresses: broker and name-server address of each listener, with the ports really used.
    """

    def __init__(
        self, listeners: tuple[Listener, ...], context: ConnectionContext, admission: Admission, ports: Ports
    ) -> None:
        self.addresses: Final[dict[str, tuple[Address, Address]]] = {}
        self._listeners = listeners
        self._context = context
        self._admission = admission
        self._ports = ports
        self._store_ips: dict[str, str] = {}

    async def resolve_advertised(self) -> None:
        """Find the IP addresses that records and message ids carry for advertised host names."""
        for listener in self._listeners:
            if listener.advertise is not None:
                host = listener.advertise.rpartition(":")[0] if ":" in listener.advertise else listener.advertise
                ip = await trio.to_thread.run_sync(resolve_ip, host)
                if ip is None:
                    LOGGER.warning(
                        "advertised host cannot be resolved host=%s: message ids contain the local address", host
                    )
                else:
                    self._store_ips[listener.name] = ip

    def open(self) -> list[Endpoint]:
        """Open all listening sockets, or none.

        Raises:
            ConfigError: an address cannot be bound.
        """
        endpoints: list[Endpoint] = []
        try:
            for listener in self._listeners:
                broker_sock, vip_sock = listen_with_vip(listener.broker)
                port = broker_sock.getsockname()[1]
                endpoints.append(Endpoint(broker_sock, listener, self._ports.broker, port))
                if vip_sock is not None:
                    endpoints.append(Endpoint(vip_sock, listener, self._ports.vip, port))
                namesrv_sock = listen(listener.namesrv)
                endpoints.append(Endpoint(namesrv_sock, listener, self._ports.namesrv, port))
                self.addresses[listener.name] = (
                    Address(listener.broker.host, port),
                    Address(listener.namesrv.host, namesrv_sock.getsockname()[1]),
                )
        except BaseException:
            for endpoint in endpoints:
                endpoint.sock.close()
            raise
        return endpoints

    async def accept(self, endpoint: Endpoint) -> None:
        """Accept connections until cancelled."""
        await accept_loop(endpoint.sock, self._acceptor(endpoint))

    def _acceptor(self, endpoint: Endpoint) -> Callable[[socket.socket], None]:
        context = self._context

        def accepted(sock: socket.socket) -> None:
            if not self._admission.admits(len(context.connections)):
                context.statistics.refused_connections += 1
                sock.close()
                return
            try:
                peer = Address(plain_ip(sock.getpeername()[0]), sock.getpeername()[1])
                local_ip = plain_ip(sock.getsockname()[0])
            except OSError:  # closed already
                sock.close()
                return
            store_ip = self._store_ips.get(endpoint.listener.name) or local_ip
            store_host = encode_host(store_ip, endpoint.broker_port)
            connection = Connection(context, sock, peer, _advertised(endpoint, local_ip), store_host, endpoint.requests)
            context.connections.add(connection)
            context.reader.add(connection)

        return accepted


def _advertised(endpoint: Endpoint, local_ip: str) -> str:
    """Return the broker's address for a peer: as configured, else the address that the peer connected to."""
    advertise = endpoint.listener.advertise
    if advertise is None:
        return str(Address(local_ip, endpoint.broker_port))
    return advertise if ":" in advertise else str(Address(advertise, endpoint.broker_port))
