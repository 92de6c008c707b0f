"""A broker without sockets: real tables, a real store with small files, and connections that record their answers."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from tests.processes import tests_disk
from tests.unit.broker.recording import AtOnce, Clock, MakeBroker, Peer
from triomq.broker.config import BrokerConfig
from triomq.broker.server import Broker
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_broker(tmp_path: Path, clock: Clock) -> Iterator[MakeBroker]:
    """Open brokers on one store, one at a time; settings are those of ``BrokerConfig`` and ``StoreConfig``."""
    stores: list[MessageStore] = []

    def make(store_settings: Mapping[str, Any] | None = None, **settings: Any) -> Broker:
        for store in stores:
            store.close()
        sizes = {
            "commit_log_file_size_bytes": 256 * 1024,
            "consume_queue_file_size_bytes": 20 * 100,
            "index_slots": 100,
            "index_units": 1000,
        }
        config = StoreConfig(root=tmp_path / "store", **{**sizes, **(store_settings or {})})
        broker_config = BrokerConfig(store=config, **settings)
        store = MessageStore(config, clock_ms=clock, file_system=tests_disk(), is_replica=broker_config.is_slave)
        store.open()
        stores.append(store)
        broker = Broker(broker_config, store, clock, clock, elapsed_clock_ms=clock)
        broker.worker.clock = lambda: 0.0  # no step is too long
        broker.worker.nursery = cast(trio.Nursery, AtOnce())
        broker.load()
        return broker

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def instant_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take no time: a clock that jumps does not wait for them."""

    async def run_sync(function: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture
def broker(make_broker: MakeBroker) -> Broker:
    return make_broker()


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return Peer(broker)


@pytest.fixture
def another_peer(broker: Broker) -> Peer:
    return Peer(broker, "192.0.2.10:50002")
