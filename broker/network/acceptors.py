"""A server's life on the network: it accepts connections, serves them, and ends in order."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from triomq.broker.addresses import Address, plain_ip
from triomq.broker.network.connection import Connection, ConnectionContext, Port
from triomq.broker.network.sockets import accept_loop
from triomq.broker.network.tls import ServerTls
from triomq.protocol.host import encode_host

_FINISH_CHECK_S: Final = 0.01


class Endpoint(NamedTuple):
    """A listening socket, the kind of port, and where its clients find the broker.

    Attributes:
        advertised: the broker's address; ``None``: the one that the client connected to, with ``broker_port``.
        store_host: the broker's address in records and offset message ids; ``None``: likewise.
    """

    sock: socket.socket
    port: Port
    broker_port: int
    advertised: Address | None = None
    store_host: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Acceptors:
    """Accepts connections and serves them until ``stopping`` is set."""

    context: ConnectionContext
    stopping: trio.Event
    tls: ServerTls | None = None

    async def run(
        self,
        endpoints: Sequence[Endpoint],
        on_accepting: Callable[[], None],
        has_unfinished: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve; ``on_accepting`` is called when connections are accepted.

        At the end peers that are reading, and requests that ``has_unfinished`` tells of, get some time.
        """
        async with trio.open_nursery() as connections:  # 2. requests in flight are answered
            self.context.worker.nursery = connections
            connections.start_soon(self.context.reader.run, self.context.connections)
            if self.tls is not None:
                self.tls.reader, self.tls.connection_limits = self.context.reader, self.context.connection_limits
                connections.start_soon(self.tls.run)
            async with trio.open_nursery() as acceptors:  # 1. end first
                for endpoint in endpoints:
                    acceptors.start_soon(accept_loop, endpoint.sock, self._acceptor(endpoint))
                on_accepting()
                await self.stopping.wait()
                acceptors.cancel_scope.cancel()
            with trio.move_on_after(self.context.config.shutdown_grace_s):
                while has_unfinished() or any(each.unread_bytes for each in self.context.connections):  # noqa: ASYNC110  # an event would cost every answer something
                    await trio.sleep(_FINISH_CHECK_S)
            connections.cancel_scope.cancel()

    def _acceptor(self, endpoint: Endpoint) -> Callable[[socket.socket], None]:
        context = self.context

        def accepted(sock: socket.socket) -> None:
            try:
                peer = Address(plain_ip(sock.getpeername()[0]), sock.getpeername()[1])
                local_ip = plain_ip(sock.getsockname()[0])
            except OSError:  # closed already
                sock.close()
                return
            is_local, is_namesrv = peer.is_loopback or peer.host == local_ip, endpoint.port is Port.NAMESRV
            if not context.connection_limits.admits(peer.host, is_local=is_local, is_namesrv=is_namesrv):
                sock.close()
                return
            store_host = endpoint.store_host or encode_host(local_ip, endpoint.broker_port)
            advertised = str(endpoint.advertised or Address(local_ip, endpoint.broker_port))
            connection = Connection(context, sock, peer, advertised, store_host, endpoint.port, is_local=is_local)
            if self.tls is not None:
                self.tls.guard(connection, sock)
            context.connections.add(connection)
            context.reader.add(connection)

        return accepted
