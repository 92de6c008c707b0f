"""A name server without a broker.

Source: behaviour.md A.17; NamesrvController.java.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import trio

from triomq.broker.access import Access
from triomq.broker.addresses import Address
from triomq.broker.audit import Audit
from triomq.broker.config import NameServerConfig
from triomq.broker.namesrv.kv_table import KvTable, NameServerSettings
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import ConnectionContext
from triomq.broker.network.listeners import Endpoint, Listeners, check_ports, serve_connections
from triomq.broker.network.tls import ServerTls
from triomq.broker.pipeline import Pipeline, methods_of
from triomq.broker.processors.namesrv import NameServerProcessors
from triomq.broker.services.flush import TableSaving
from triomq.broker.services.housekeeping import close_idle, close_silent_brokers, log_exposure
from triomq.broker.services.monitor import Monitor, put_server
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.statistics.exposition import Exposition
from triomq.broker.work import Signal
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import system_clock_ms
from triomq.storage.store_directory import StoreDirectory

_SCAN_INTERVAL_S: Final = 10.0
_SAVE_INTERVAL_S: Final = 5.0


class NameServer:
    """A running name server; made by :func:`open_name_server`.

    Attributes:
        config: its settings.
        routes, key_values: its tables; the second is on disk.
        pipeline: serves the requests.
        context: what its connections share.
        stopping: set to stop it.
        audit: notes who did what, if that is wanted.
        listeners: the listening ports.
        monitor: serves its metrics, if configured.
    """

    def __init__(self, config: NameServerConfig, tls: ServerTls | None = None) -> None:
        """Build the parts; nothing is read or opened."""
        self.config: Final = config
        self.stopping: Final = trio.Event()
        changed = Signal()
        path = config.root / "config" / "kvConfig.json"
        self.key_values: Final = KvTable(JsonTable(path), on_change=changed.set)
        statistics = BrokerStatistics(0)
        self.routes: Final = RouteTable(lambda: round(trio.current_time() * 1000), statistics)
        self.context: Final = ConnectionContext(
            config, statistics, self.stopping, lambda connection, _closed_by_peer: self.routes.lost(connection)
        )
        self.saving: Final = TableSaving((self.key_values,), self.context.worker, changed)
        settings = NameServerSettings(path, config.order_messages)
        self._tls = tls
        self.audit: Final = None if config.audit is None else Audit(config, system_clock_ms)
        access = Access(statistics, self.audit)
        methods = methods_of([NameServerProcessors(self.routes, self.key_values, settings, access)])
        self.pipeline: Final = Pipeline(self.context, self.routes, methods, access)
        self.context.service = self.pipeline
        self.listeners: Final = Listeners(namesrv=config.listen, admin=config.admin_listen)
        self.monitor: Monitor | None = None

    @property
    def address(self) -> Address:
        """Where it listens, with the port really used."""
        return self.listeners.namesrv or self.config.listen

    @property
    def admin_address(self) -> Address | None:
        """The address of --admin-listen, likewise."""
        return self.listeners.admin

    async def serve(
        self, endpoints: list[Endpoint], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until :attr:`stopping` is set; started when connections are accepted."""
        async with trio.open_nursery() as services:
            services.start_soon(self.saving.run, _SAVE_INTERVAL_S)
            services.start_soon(self._scan)
            services.start_soon(log_exposure, self.config.exposure, self.config.may_misjudge_peers)
            if self.audit is not None:
                services.start_soon(self.audit.run)
            if self.monitor is not None:
                services.start_soon(self.monitor.run)
            async with trio.open_nursery() as server:
                await server.start(serve_connections, self.context, endpoints, self.stopping, self._tls)
                task_status.started()
            services.cancel_scope.cancel()

    def failure(self) -> str:
        """Return "": a name server that answers works."""
        return ""

    def not_ready(self) -> str:
        """Return the reason why it does not serve now; "" while it does."""
        return "the name server stops" if self.stopping.is_set() else ""

    async def metrics(self) -> bytes:
        """Return all metrics, as text."""
        text = Exposition(node_type="namesrv", node_id=str(self.address))
        put_server(text, self.context, self.config.exposure, self.routes.sizes())
        await trio.lowlevel.checkpoint()
        return text.encode()

    async def _scan(self) -> None:
        while True:
            await trio.sleep(_SCAN_INTERVAL_S)
            close_idle(self.context, _SCAN_INTERVAL_S)
            close_silent_brokers(self.routes)


@asynccontextmanager
async def open_name_server(config: NameServerConfig) -> AsyncGenerator[NameServer]:
    """Load the table, listen, and serve until the block ends; then the table is on disk.

    Raises:
        ConfigError: an address cannot be bound, a file of TLS not used, or that of the audit not written.
        StoreLockedError: another name server owns the folder.
        StoreError: the folder or its table cannot be used.
    """
    tls = ServerTls(config.tls) if config.tls else None
    check_ports((config.listen, config.admin_listen))
    folder = StoreDirectory(config.root, FileSystem())
    folder.acquire()
    server = NameServer(config, tls)
    try:
        server.key_values.load()
        if server.audit is not None:
            server.audit.open()
        if config.metrics is not None:
            server.monitor = Monitor(config.metrics, "namesrv")
            server.monitor.watched = server
        endpoints = await server.listeners.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, endpoints)
            yield server
            server.stopping.set()
    finally:
        server.saving.save_now()
        if server.audit is not None:
            server.audit.close()
        folder.release()
