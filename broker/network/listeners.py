"""The listeners of a broker: their sockets, and the addresses that clients see."""

import logging
import socket
from collections.abc import Iterable
from typing import Final

import trio

from triomq.broker.addresses import Address, resolve_ip
from triomq.broker.config import Listener
from triomq.broker.network.acceptors import Endpoint
from triomq.broker.network.connection import Port
from triomq.broker.network.sockets import listen, listen_with_vip
from triomq.protocol.host import encode_host

LOGGER: Final = logging.getLogger("triomq.broker.network.listeners")


def check_ports(addresses: Iterable[Address | None]) -> None:
    """Check that addresses can be bound, before a folder is created or read for them.

    Raises:
        ConfigError: one cannot.
    """
    for address in filter(None, addresses):
        listen(address).close()


class Listeners:
    """Listens on all addresses of a broker.

    Attributes:
        addresses: broker and name-server address of each listener, with the ports really used.
        admin: likewise where only administration is served; ``None``: there is no such listener.
    """

    def __init__(self, listeners: tuple[Listener, ...], admin: Address | None = None) -> None:
        self.addresses: Final[dict[str, tuple[Address, Address]]] = {}
        self.admin = admin
        self._listeners = listeners
        self._ips: dict[str, str | None] = {}  # by advertised host

    async def resolve_advertised(self) -> None:
        """Look up advertised host names, once: records and message ids contain IP addresses."""
        for listener in self._listeners:
            if (advertised := listener.advertised(0)) is not None:
                host = advertised.host
                self._ips[host] = await trio.to_thread.run_sync(resolve_ip, host)
                if self._ips[host] is None:
                    LOGGER.warning(
                        "advertised host cannot be resolved host=%s: message ids contain the local address", host
                    )

    def open(self) -> list[Endpoint]:
        """Open all listening sockets, or none.

        Raises:
            ConfigError: an address cannot be bound.
        """
        endpoints: list[Endpoint] = []
        try:
            for listener in self._listeners:
                self._open_pair(listener, endpoints)
            if self.admin is not None:  # its routes lead back to it
                sock = listen(self.admin)
                self.admin = Address(self.admin.host, sock.getsockname()[1])
                endpoints.append(Endpoint(sock, Port.ADMIN, self.admin.port))
        except BaseException:
            for endpoint in endpoints:
                endpoint.sock.close()
            raise
        return endpoints

    def _open_pair(self, listener: Listener, endpoints: list[Endpoint]) -> None:
        broker_sock, vip_sock = listen_with_vip(listener.broker)
        address = Address(listener.broker.host, broker_sock.getsockname()[1])
        advertised = listener.advertised(address.port)
        ip = self._ips[advertised.host] if advertised else None
        store_host = encode_host(ip, advertised.port) if advertised and ip else None

        def add(sock: socket.socket, port: Port) -> None:
            endpoints.append(Endpoint(sock, port, address.port, advertised, store_host))

        add(broker_sock, Port.BROKER)
        if vip_sock is not None:
            add(vip_sock, Port.VIP)
        namesrv = address  # a broker's port serves the requests to name servers too
        if listener.namesrv is not None:
            namesrv_sock = listen(listener.namesrv)
            add(namesrv_sock, Port.NAMESRV)
            namesrv = Address(listener.namesrv.host, namesrv_sock.getsockname()[1])
        self.addresses[listener.name] = address, namesrv
