"""Opens a broker: its store, which may take minutes, then its ports; and closes both.

Source: behaviour.md A.1.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.metrics import BrokerMetrics
from triomq.broker.network.listeners import check_ports
from triomq.broker.network.tls import ServerTls
from triomq.broker.server import Broker, Gate
from triomq.broker.services.housekeeping import elapsed_ms
from triomq.broker.services.monitor import Monitor
from triomq.broker.services.registration import check_broker_name
from triomq.storage.commit_log.log_scan import ProgressLog
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem
from triomq.storage.message_store import MessageStore, system_clock_ms


async def _open_store(
    config: BrokerConfig, clock_ms: Callable[[], int], file_system: FileSystem | None
) -> MessageStore:
    """Open the store in a worker thread, as it may take minutes.

    Cancelled, it stops where it is, and the next start repeats it.

    Raises:
        StoreLockedError, StoreLayoutError, StoreError: as ``MessageStore.open``.
    """
    store = MessageStore(config.store, clock_ms=clock_ms, file_system=file_system, is_replica=config.is_slave)
    log = ProgressLog()

    def progress(done_bytes: int, total_bytes: int) -> None:
        trio.from_thread.check_cancelled()
        log(done_bytes, total_bytes)

    await trio.to_thread.run_sync(store.open, progress)
    return store


def _lone_error(error: BaseException) -> BaseException:
    """Return the only error in a group, however deep; a group of several unchanged."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def open_broker(
    config: BrokerConfig,
    *,
    clock_ms: Callable[[], int] = system_clock_ms,
    gate: Gate | None = None,
    file_system: FileSystem | None = None,
    elapsed_clock_ms: Callable[[], int] = elapsed_ms,
    is_alone: bool = False,
) -> AsyncGenerator[Broker]:
    """Open the store, listen, and serve until the block ends; then everything is on disk.

    Args:
        config: all settings.
        clock_ms: the wall clock; after it was set, :meth:`Broker.clock_moved` has the broker look at it at once.
        gate: replaces what each port serves.
        file_system: access to the files of the store; by default the real one.
        elapsed_clock_ms: a clock that is never set, by which the broker notices that the other one was.
        is_alone: whether nothing else uses this run loop, so that the broker may block it for up to 2 ms.

    Raises:
        ConfigError: an address cannot be bound, another broker has the name, or a file of accounts, quotas or TLS is
            wrong.
        StoreLockedError: another broker owns the store.
        StoreLayoutError: the store cannot be read, or was written with other file sizes.
    """
    tls = ServerTls(config.tls) if config.tls else None
    monitor = None if config.metrics is None else Monitor(config.metrics, "broker")
    try:
        async with trio.open_nursery() as monitoring:
            if monitor is not None:
                monitoring.start_soon(monitor.run)
            ports = [port for each in config.listeners for port in (each.broker, each.namesrv)]
            check_ports([*ports, config.admin_listen, config.fast_listen, config.ha_listen])
            await check_broker_name(config)
            store = await _open_store(config, clock_ms, file_system)
            broker = Broker(config, store, clock_ms, gate=gate, elapsed_clock_ms=elapsed_clock_ms)
            broker.tls, broker.context.reader.lingers = tls, is_alone and store.config.durability is Durability.ASYNC
            if monitor is not None:
                broker.monitor, monitor.watched = monitor, BrokerMetrics(broker)
            try:
                broker.load()
                if broker.master is not None:
                    broker.ha_address = broker.master.open()
                endpoints = await broker.listeners.open()
                async with trio.open_nursery() as nursery:
                    await nursery.start(broker.serve, endpoints)
                    yield broker
                    await broker.registration.leave()
                    broker.stopping.set()
            finally:
                broker.save_tables()
                broker.store.close()
            monitoring.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _lone_error(group) from None
