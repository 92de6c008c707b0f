"""Figures and health over HTTP, from before the store is open until the end."""

import socket
import threading
from pathlib import Path

import pytest
import trio

from tests.integration.broker_wire import running
from tests.unit.broker.scrape import of, parse
from triomq.broker import opening
from triomq.broker.addresses import Address
from triomq.broker.config import DEFAULT_METRICS, NameServerConfig
from triomq.broker.name_server import open_name_server
from triomq.broker.services import monitor
from triomq.broker.services.monitor import Monitor
from triomq.client import Message, Producer
from triomq.protocol.errors import ConfigError, StoreLockedError
from triomq.storage.message_store import MessageStore

ANYWHERE = Address("127.0.0.1", 0)


async def get(address: Address, path: str) -> tuple[int, bytes]:
    """Return status and body."""
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path.encode())
        received = b"".join([data async for data in stream])
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_broker_serves_its_metrics(root: Path) -> None:
    async with running(root, metrics=ANYWHERE) as broker:
        assert broker.monitor is not None
        address = broker.monitor.address
        async with Producer("P", namesrv=str(broker.addresses["default"][1])) as producer:
            await producer.send(Message("T", b"hello"))
        found = parse((await get(address, "/metrics"))[1])
        assert of(found, "rocketmq_messages_in_total", topic="T") == [1]
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/", 200), ("/etc/passwd", 404)):
            assert (await get(address, path))[0] == status
        broker.stopping.set()
        assert await get(address, "/readyz") == (503, b"the broker stops\n")


async def test_text_is_rendered_at_most_twice_a_second(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(root, metrics=ANYWHERE) as broker:
        assert broker.monitor is not None
        first = await get(broker.monitor.address, "/metrics")
        assert await get(broker.monitor.address, "/metrics") == first
        monkeypatch.setattr(monitor, "_FRESH_S", 0.0)
        broker.monitor._stale_at = 0.0
        assert await get(broker.monitor.address, "/metrics") != first  # processor time has passed


async def test_broker_opening_its_store_is_not_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Monitor] = []
    may_open = threading.Event()
    open_store = MessageStore.open

    class Noted(Monitor):
        def __init__(self, address: Address, node_type: str) -> None:
            super().__init__(address, node_type)
            made.append(self)

    def slow(store: MessageStore, progress: None = None) -> None:
        assert may_open.wait(30)
        open_store(store, progress)

    monkeypatch.setattr(opening, "Monitor", Noted)
    monkeypatch.setattr(MessageStore, "open", slow)

    async def ask() -> None:
        while not made:  # noqa: ASYNC110
            await trio.sleep(0.01)
        try:
            assert await get(made[0].address, "/healthz") == (200, b"ok\n")
            assert await get(made[0].address, "/readyz") == (503, b"the store is being opened\n")
            status, text = await get(made[0].address, "/metrics")
            assert (status, b"process_cpu_seconds_total" in text) == (200, True)
        finally:
            may_open.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        async with running(root, metrics=ANYWHERE):
            assert await get(made[0].address, "/readyz") == (200, b"ok\n")


async def test_only_the_default_metrics_port_may_be_busy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        for module in (monitor, opening):
            monkeypatch.setattr(module, "DEFAULT_METRICS", address, raising=False)
        async with running(root, metrics=address) as broker:
            assert broker.monitor is not None
            assert broker.monitor.address.port not in (0, address.port)
        with pytest.raises(ConfigError, match=f"port {address.port} is in use"):
            async with running(root, metrics=Address(*address)):
                pass
    assert DEFAULT_METRICS.is_loopback


async def test_failed_start_raises_one_error(root: Path) -> None:
    async with running(root):
        with pytest.raises(StoreLockedError):
            async with running(root, metrics=ANYWHERE):
                pass


async def test_name_server_serves_its_metrics(root: Path) -> None:
    config = NameServerConfig(root=root, listen=ANYWHERE, metrics=ANYWHERE)
    async with open_name_server(config) as server:
        assert server.monitor is not None
        status, text = await get(server.monitor.address, "/metrics")
        found = parse(text, {"node_type": "namesrv", "node_id": str(server.address)})
        assert (status, of(found, "triomq_table_size", table="route_brokers")) == (200, [0])
        for path in ("/healthz", "/readyz"):
            assert await get(server.monitor.address, path) == (200, b"ok\n")
