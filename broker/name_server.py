"""A name server without a broker.

Source: behaviour.md A.17; NamesrvController.java.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import trio

from triomq.broker.addresses import Address
from triomq.broker.config import NameServerConfig
from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.namesrv.settings import NameServerSettings
from triomq.broker.network.acceptors import Acceptors, Endpoint
from triomq.broker.network.admission import Admission
from triomq.broker.network.client_requests import ClientRequests
from triomq.broker.network.connection import Connection, ConnectionContext, Requests
from triomq.broker.network.refusal import Refusals, steady_ms
from triomq.broker.network.sockets import listen
from triomq.broker.network.steps import Steps
from triomq.broker.network.tls import ServerTls
from triomq.broker.processors.namesrv import name_server
from triomq.broker.services.housekeeping import close_idle, close_silent_brokers
from triomq.broker.services.saving import TableSaving, save_now
from triomq.broker.signals import Signal
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable
from triomq.storage.store_directory import StoreDirectory

_SCAN_INTERVAL_S: Final = 10.0
_SAVE_INTERVAL_S: Final = 5.0


class NameServer:
    """A running name server; made by :func:`open_name_server`.

    Attributes:
        config: its settings.
        routes, key_values: its tables; the second is on disk.
        context: what its connections share.
        stopping: set to stop it.
        address: where it listens, with the port really used.
    """

    address: Address

    def __init__(self, config: NameServerConfig, tls: ServerTls | None = None) -> None:
        """Build the parts; nothing is read or opened."""
        self.config: Final = config
        self.stopping: Final = trio.Event()
        self.routes: Final = RouteTable(lambda: round(trio.current_time() * 1000))
        changed = Signal()
        path = config.root / "config" / "kvConfig.json"
        self.key_values: Final = KvTable(JsonTable(path), on_change=changed.set)
        self._saving = TableSaving((self.key_values,), changed, _SAVE_INTERVAL_S)
        statistics = BrokerStatistics(0)
        requests = ClientRequests(self.stopping)
        self.context: Final = ConnectionContext(
            config, statistics, Refusals(statistics, "", steady_ms), requests, Steps(lambda: None), self._forget
        )
        settings = NameServerSettings(path, config.order_messages)
        self._tls = tls
        self._requests = Requests(name_server(self.routes, self.key_values, settings))

    def _forget(self, connection: Connection, _closed_by_peer: bool) -> None:
        self.routes.lost(connection)

    def listen(self) -> Endpoint:
        """Open the listening socket.

        Raises:
            ConfigError: the address cannot be bound.
        """
        sock = listen(self.config.listen)
        self.address = Address(self.config.listen.host, sock.getsockname()[1])
        return Endpoint(sock, self._requests, self.address.port)

    async def serve(self, endpoint: Endpoint, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until :attr:`stopping` is set; started when connections are accepted."""
        acceptors = Acceptors(self.context, Admission(self.config.max_connections), self.stopping, self._tls)
        async with trio.open_nursery() as services:
            services.start_soon(self._saving.run)
            services.start_soon(self._scan)
            await acceptors.run((endpoint,), lambda: task_status.started())
            services.cancel_scope.cancel()

    async def _scan(self) -> None:
        while True:
            await trio.sleep(_SCAN_INTERVAL_S)
            close_idle(self.context, _SCAN_INTERVAL_S)
            close_silent_brokers(self.routes)


@asynccontextmanager
async def open_name_server(config: NameServerConfig) -> AsyncGenerator[NameServer]:
    """Load the table, listen, and serve until the block ends; then the table is on disk.

    Raises:
        ConfigError: the address cannot be bound, or a file of TLS not used.
        StoreLockedError: another name server owns the folder.
        StoreError: the folder or its table cannot be used.
    """
    tls = ServerTls(config.tls) if config.tls else None
    folder = StoreDirectory(config.root, FileSystem())
    folder.acquire()
    server = NameServer(config, tls)
    try:
        server.key_values.load()
        endpoint = server.listen()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, endpoint)
            yield server
            server.stopping.set()
    finally:
        save_now((server.key_values,))
        folder.release()
