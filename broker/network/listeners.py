"""The listening sockets of a server, and the life of its connections: accepted, served, ended in order.

The loop that accepts survives a full table of file descriptors.
"""

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.broker.addresses import Address, plain_ip, resolve_ip
from triomq.broker.config import ConnectionConfig, Listener
from triomq.broker.network.connection import Connection, ConnectionContext, Port
from triomq.broker.network.tls import ServerTls
from triomq.protocol.errors import ConfigError
from triomq.protocol.host import encode_host

LOGGER: Final = logging.getLogger("triomq.broker.network.listeners")


_BACKLOG: Final = 1024
_ACCEPTS_PER_STEP: Final = 64
_CAPACITY_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_CAPACITY_PAUSE_S: Final = 0.1
#: RocketMQ clients with the VIP channel enabled use the broker's port minus this.
VIP_PORT_DISTANCE: Final = 2
_FREE_PORT_TRIES: Final = 32


def listen(address: Address) -> socket.socket:
    """Open a non-blocking listening socket.

    Raises:
        ConfigError: the address cannot be bound; the text says why and what to do.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        sock = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as exc:
        advice = exc.strerror or str(exc)
        if exc.errno == errno.EADDRINUSE:
            advice = f"port {address.port} is in use; stop its user, choose another port, or port 0 for a free one"
        elif exc.errno == errno.EACCES:
            advice = f"this user may not open port {address.port}; choose one above 1023"
        elif exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror):
            advice = f"{address.host} is not an address of this machine"
        raise ConfigError(f"cannot listen on {address}: {advice}") from exc
    sock.setblocking(False)
    return sock


def listen_with_vip(address: Address, fast: Address | None = None) -> tuple[socket.socket, socket.socket | None]:
    """Open a broker port, and the VIP port below it or at ``fast``.

    With port 0, a broker port is chosen whose VIP port is free, too.  The VIP port of a given port may be in use.
    Then it is omitted, which only affects clients that enabled the VIP channel.
    """
    if fast is not None:
        fast_sock = listen(fast)  # first: port 0 of the other must not take it
        try:
            return listen(address), fast_sock
        except ConfigError:
            fast_sock.close()
            raise
    if address.port != 0:
        sock = listen(address)
        return sock, _listen_vip(address.host, address.port)
    for _ in range(_FREE_PORT_TRIES):
        sock = listen(address)
        vip = _listen_vip(address.host, sock.getsockname()[1])
        if vip is not None:
            return sock, vip
        sock.close()
    return listen(address), None


def _listen_vip(host: str, broker_port: int) -> socket.socket | None:
    port = broker_port - VIP_PORT_DISTANCE
    if port <= 0:
        return None
    try:
        return listen(Address(host, port))
    except ConfigError as exc:
        LOGGER.info("no VIP port: %s", exc)
        return None


async def accept_loop(listener: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
    """Pass every new connection to ``accepted`` until cancelled; then close the listener."""
    try:
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(_ACCEPTS_PER_STEP):
                try:
                    sock, _peer = listener.accept()
                except BlockingIOError:
                    break
                except OSError as exc:
                    if exc.errno in _CAPACITY_ERRNOS:
                        LOGGER.error("cannot accept connections: %s; raise the limit of open files", exc)
                        await trio.sleep(_CAPACITY_PAUSE_S)
                        break
                    continue  # this connection was closed before it was accepted
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                accepted(sock)
    finally:
        trio.lowlevel.notify_closing(listener)
        listener.close()


_FINISH_CHECK_S: Final = 0.01


class Endpoint(NamedTuple):
    """A listening socket, the kind of its port, and the broker's address for its clients.

    Attributes:
        advertised: the broker's address; ``None``: the one that the client connected to, with ``broker_port``.
        store_host: the broker's address in records and offset message ids; ``None``: likewise.
    """

    sock: socket.socket
    port: Port
    broker_port: int
    advertised: Address | None = None
    store_host: bytes | None = None


def check_ports(addresses: Iterable[Address | None]) -> None:
    """Check that addresses can be bound, before a folder is created or read for them.

    Raises:
        ConfigError: an address cannot be bound.
    """
    for address in filter(None, addresses):
        listen(address).close()


@dataclass(eq=False)
class Listeners:
    """Listens on all addresses of a server; each address then has the port that is really used.

    Attributes:
        pairs: those of a broker.
        admin: the address for administration; ``None``: administration uses the other ports.
        fast: the address that replaces the VIP port of the first pair.
        namesrv: the address of a name server without a broker.
        addresses: broker and name-server address of each pair.
    """

    pairs: tuple[Listener, ...] = ()
    admin: Address | None = None
    fast: Address | None = None
    namesrv: Address | None = None
    addresses: dict[str, tuple[Address, Address]] = field(default_factory=dict)
    _ips: dict[str, str | None] = field(default_factory=dict)  # by advertised host

    async def open(self) -> list[Endpoint]:
        """Look up advertised host names, and open all listening sockets, or none.

        Raises:
            ConfigError: an address cannot be bound.
        """
        for pair in self.pairs:  # records and message ids contain IP addresses
            if (advertised := pair.advertised(0)) is not None:
                host = advertised.host
                self._ips[host] = await trio.to_thread.run_sync(resolve_ip, host)
                if self._ips[host] is None:
                    LOGGER.warning(
                        "advertised host cannot be resolved host=%s: message ids contain the local address", host
                    )

        with contextlib.ExitStack() as sockets:
            endpoints: list[Endpoint] = []
            for pair in self.pairs:
                for endpoint in self._open_pair(pair):
                    sockets.enter_context(endpoint.sock)
                    endpoints.append(endpoint)

            def add(address: Address, port: Port) -> Address:
                sock = sockets.enter_context(listen(address))
                bound = _bound(address, sock)
                endpoints.append(Endpoint(sock, port, bound.port))  # its routes lead back to it
                return bound

            self.namesrv = self.namesrv and add(self.namesrv, Port.NAMESRV)
            self.admin = self.admin and add(self.admin, Port.ADMIN)
            sockets.pop_all()
        return endpoints

    def _open_pair(self, pair: Listener) -> Iterator[Endpoint]:
        fast = self.fast if pair is self.pairs[0] else None
        broker_sock, vip_sock = listen_with_vip(pair.broker, fast)
        if fast is not None and vip_sock is not None:
            self.fast = _bound(fast, vip_sock)
        address = _bound(pair.broker, broker_sock)
        advertised = pair.advertised(address.port)
        ip = self._ips[advertised.host] if advertised else None
        place = address.port, advertised, encode_host(ip, advertised.port) if advertised and ip else None
        yield Endpoint(broker_sock, Port.BROKER, *place)
        if vip_sock is not None:
            yield Endpoint(vip_sock, Port.VIP, *place)
        namesrv = address  # a broker's port serves the requests to name servers too
        if pair.namesrv is not None:
            namesrv_sock = listen(pair.namesrv)
            yield Endpoint(namesrv_sock, Port.NAMESRV, *place)
            namesrv = _bound(pair.namesrv, namesrv_sock)
        self.addresses[pair.name] = address, namesrv


def _bound(address: Address, sock: socket.socket) -> Address:
    """Return an address with the port that its socket really has."""
    return Address(address.host, sock.getsockname()[1])


async def serve_connections(
    context: ConnectionContext,
    endpoints: Sequence[Endpoint],
    stopping: trio.Event,
    tls: ServerTls | None,
    has_unfinished: Callable[[], bool] = lambda: False,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections and serve them until ``stopping`` is set; started when they are accepted.

    At the end, peers that are reading, and requests that ``has_unfinished`` reports, get ``shutdown_grace_s``.
    """
    async with trio.open_nursery() as connections:  # 2. requests in flight are answered
        context.worker.nursery = connections
        connections.start_soon(context.reader.run, context.connections)
        if tls is not None:
            tls.reader, tls.connection_limits = context.reader, context.connection_limits
            connections.start_soon(tls.run)
        async with trio.open_nursery() as acceptors:  # 1. end first
            for endpoint in endpoints:
                acceptors.start_soon(accept_loop, endpoint.sock, partial(_accepted, context, endpoint, tls))
            task_status.started()
            await stopping.wait()
            acceptors.cancel_scope.cancel()
        with trio.move_on_after(context.config.shutdown_grace_s):
            while has_unfinished() or any(each.unread_bytes for each in context.connections):  # noqa: ASYNC110  # an event would make every answer more expensive
                await trio.sleep(_FINISH_CHECK_S)
        connections.cancel_scope.cancel()


def ends_of(sock: socket.socket, config: ConnectionConfig) -> tuple[Address, str, bool]:
    """Return the address of the peer, the own IP address, and whether the peer is on this machine.

    Raises:
        OSError: the connection is closed already.
    """
    peer = Address(plain_ip(sock.getpeername()[0]), sock.getpeername()[1])
    local_ip = plain_ip(sock.getsockname()[0])
    return peer, local_ip, config.local_peers and (peer.is_loopback or peer.host == local_ip)


def _accepted(context: ConnectionContext, endpoint: Endpoint, tls: ServerTls | None, sock: socket.socket) -> None:
    try:
        peer, local_ip, is_local = ends_of(sock, context.config)
    except OSError:
        sock.close()
        return
    is_namesrv = endpoint.port is Port.NAMESRV
    if not context.connection_limits.admits(peer.host, is_local=is_local, is_namesrv=is_namesrv):
        sock.close()
        return
    connection = Connection(
        context,
        sock,
        str(peer),
        peer_ip=peer.host,
        peer_host=encode_host(*peer),
        advertised=str(endpoint.advertised or Address(local_ip, endpoint.broker_port)),
        store_host=endpoint.store_host or encode_host(local_ip, endpoint.broker_port),
        port=endpoint.port,
        is_local=is_local,
    )
    if tls is not None:
        tls.guard(connection, sock)
    context.connections.add(connection)
    context.reader.add(connection)
