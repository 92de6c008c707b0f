"""Opens a broker: its store, which may take minutes, then its ports; and closes both.

A broker that is kept can open again in its process: with other settings, or after a change of its closed store.

Source: behaviour.md A.1.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig
from triomq.broker.metrics import BrokerMetrics
from triomq.broker.network.listeners import check_ports
from triomq.broker.network.tls import ServerTls
from triomq.broker.parts import Gate
from triomq.broker.promotion import Promotion
from triomq.broker.server import Broker
from triomq.broker.services.housekeeping import elapsed_ms
from triomq.broker.services.monitor import Monitor
from triomq.broker.services.rank import check_broker_name, latest_promotion
from triomq.storage.commit_log.log_scan import ProgressLog
from triomq.storage.config import Durability
from triomq.storage.files.file_system import FileSystem
from triomq.storage.message_store import MessageStore, system_clock_ms

LOGGER: Final = logging.getLogger("triomq.broker.opening")


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


async def _with_promotion(config: BrokerConfig, file_system: FileSystem | None) -> tuple[BrokerConfig, int]:
    """Return the settings, those of the master if the slave was promoted, and when that was, 0 for never.

    A supervisor starts a process again with its old command line: the broker stays the master, until name servers know
    one that was promoted later.

    Raises:
        ConfigError: a sync-master has no address for slaves.
        StoreLayoutError: as :meth:`Promotion.load`.
    """
    promotion = Promotion(config, file_system)
    promotion.load()
    if config.is_slave and promotion.promoted_ms:
        promotion.heard_of(await latest_promotion(config))
    if config.is_slave and promotion.promoted_ms:
        config = replace(config, **promotion.settings())
        LOGGER.warning(
            "stays the master: it was promoted, and no name server knows a later master store=%s", config.store.root
        )
    return config, promotion.promoted_ms


def _ports_of(config: BrokerConfig) -> Iterator[Address | None]:
    for listener in config.listeners:
        yield from (listener.broker, listener.namesrv)
    yield from (config.admin_listen, config.fast_listen, config.ha_listen)


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
    is_kept: bool = False,
) -> AsyncGenerator[Broker]:
    """Open the store, listen, and serve until the block ends; then everything is on disk.

    Args:
        config: all settings.
        clock_ms: the wall clock; after it was set, :meth:`Broker.clock_moved` has the broker look at it at once.
        gate: replaces what each port serves.
        file_system: access to the files of the store; by default the real one.
        elapsed_clock_ms: a clock that is never set, by which the broker notices that the other one was.
        is_kept: whether it may ask to be opened again: by :func:`keep_broker`.
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
            config, promoted_ms = await _with_promotion(config, file_system)
            check_ports(_ports_of(config))
            await check_broker_name(config, promoted_ms)
            store = await _open_store(config, clock_ms, file_system)
            broker = Broker(config, store, clock_ms, gate=gate, elapsed_clock_ms=elapsed_clock_ms)
            broker.tls, broker.is_kept = tls, is_kept
            broker.context.reader.lingers = is_alone and store.config.durability is Durability.ASYNC
            if monitor is not None:
                broker.monitor, monitor.watched = monitor, BrokerMetrics(broker)
            try:
                broker.load()
                if broker.master is not None:
                    broker.ha_address = broker.master.open(tls if config.ha_tls else None)
                endpoints = await broker.listeners.open()
                async with trio.open_nursery() as nursery:
                    await nursery.start(broker.serve, endpoints)
                    yield broker
                    await broker.stop()
            finally:
                broker.save_tables()
                broker.store.close()
            monitoring.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _lone_error(group) from None


@dataclass(eq=False)
class KeptBroker:
    """A broker, and after it ended in order to open again, the next one.

    Attributes:
        config, open_one, on_reopen: the arguments of :func:`keep_broker`.
        broker: the broker that runs, or ran last.
    """

    config: BrokerConfig
    open_one: Callable[..., AbstractAsyncContextManager[Broker]]
    on_reopen: Callable[[], None]
    broker: Broker = field(init=False)
    _is_stopping: bool = False

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until :meth:`stop`; started when the first broker serves.  Raises as :func:`open_broker`."""
        config, is_first = self.config, True
        while True:
            async with self.open_one(config, is_kept=True) as self.broker:
                if is_first:
                    task_status.started()
                else:
                    self.on_reopen()
                config, is_first = _with_real_ports(self.broker), False
                if not self._is_stopping:
                    await self.broker.ending.wait()
            if (reopening := self.broker.reopening) is None:
                return
            await trio.to_thread.run_sync(reopening.meanwhile)
            if self._is_stopping:
                return
            LOGGER.info("opening again reason=%s", reopening.reason)
            config = replace(config, **reopening.changes)

    def stop(self) -> None:
        """End the broker."""
        self._is_stopping = True
        self.broker.ending.set()


def _with_real_ports(broker: Broker) -> BrokerConfig:
    """Return the settings of a broker with the ports that it really uses, so that clients find the next one there."""
    config = broker.config
    listeners = []
    for listener in config.listeners:
        address, namesrv = broker.addresses[listener.name]
        listeners.append(replace(listener, broker=address, namesrv=listener.namesrv and namesrv))
    return replace(
        config,
        listeners=tuple(listeners),
        admin_listen=broker.admin_address,
        fast_listen=broker.listeners.fast,
        ha_listen=broker.ha_address,
        metrics=None if broker.monitor is None else broker.monitor.address,
    )


@asynccontextmanager
async def keep_broker(
    config: BrokerConfig,
    open_one: Callable[..., AbstractAsyncContextManager[Broker]] = open_broker,
    on_reopen: Callable[[], None] = lambda: None,
) -> AsyncGenerator[KeptBroker]:
    """Open a broker and serve until the block ends; the broker may open again meanwhile.

    Args:
        config: all settings.
        open_one: :func:`open_broker`, perhaps with more arguments.
        on_reopen: called when the broker has opened again, and the former one can be freed.

    Raises:
        TriomqError: as :func:`open_broker`, also of a later broker.
    """
    kept = KeptBroker(config, open_one, on_reopen)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(kept.serve)
            yield kept
            kept.stop()
    except BaseExceptionGroup as group:
        raise _lone_error(group) from None
