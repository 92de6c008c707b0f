"""The logs of clients, broker and name server while idle, and while the broker is stopped or suspended."""

import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.integration.broker_wire import running
from triomq.broker.addresses import Address
from triomq.broker.config import Listener, NameServerConfig
from triomq.broker.name_server import open_name_server
from triomq.broker.server import Broker
from triomq.client import Admin, Message, MessageExt, Producer, PushConsumer

FREE = Address("127.0.0.1", 0)


async def on_message(_message: MessageExt) -> None:
    await trio.lowlevel.checkpoint()


class Cluster:
    """A name server, a broker that can go and come, and clients."""

    def __init__(self, nursery: trio.Nursery, root: Path, namesrv: Address) -> None:
        self.namesrv = namesrv
        self.broker = FREE
        self._nursery = nursery
        self._root = root
        self._ends = self._ended = trio.Event()

    def _running(self) -> AbstractAsyncContextManager[Broker]:
        listener = Listener(broker=self.broker, namesrv=None)
        store = {"index": False}  # it looks ten times in a second whether there is something to do
        return running(self._root, store, listeners=(listener,), register=(self.namesrv,), metrics=None)

    async def come(self) -> None:
        self._ends, self._ended = trio.Event(), trio.Event()
        await self._nursery.start(self._serve)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        async with self._running() as broker:
            self.broker = broker.addresses["default"][0]
            task_status.started()
            await self._ends.wait()
        self._ended.set()

    async def go(self) -> None:
        self._ends.set()
        await self._ended.wait()


@asynccontextmanager
async def clients(cluster: Cluster) -> AsyncGenerator[None]:
    namesrv = str(cluster.namesrv)
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("T")
    await trio.sleep(35)  # registered
    async with (
        Producer("P", namesrv=namesrv) as producer,
        PushConsumer("G", namesrv=namesrv, on_message=on_message, subscriptions={"T": "*"}) as consumer,
    ):
        await consumer.wait_assigned()
        await producer.send(Message("T", b"x"))
        await trio.sleep(60)
        yield


@pytest.fixture
async def cluster(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Cluster]:
    monkeypatch.setattr("triomq.protocol.event_log.monotonic", trio.current_time)
    async with open_name_server(NameServerConfig(root=tmp_path / "n", listen=FREE, metrics=None)) as server:
        made = Cluster(nursery, tmp_path / "b", server.address)
        await made.come()
        async with clients(made):
            yield made
        await made.go()


async def test_an_idle_hour_is_at_most_twenty_lines(
    cluster: Cluster, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "triomq")
    await trio.sleep(1200)  # a third of it
    assert len(caplog.messages) <= 20 // 3


@pytest.mark.parametrize("stands_still", [False, True])
async def test_missing_broker_is_logged_once_a_minute(
    cluster: Cluster, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, stands_still: bool
) -> None:
    await cluster.go()
    listeners = []
    if stands_still:  # connections are made, and nothing is read
        listeners = await trio.open_tcp_listeners(cluster.broker.port, host=cluster.broker.host)
    await trio.sleep(600)
    told = [record.message for record in caplog.records if record.name.startswith("triomq.client")]
    for start in ("broker unreachable", "heartbeat failed"):  # of consumer and producer
        own = [text for text in told if text.startswith(start)]
        assert 9 <= len(own) <= 12
        assert all(text.endswith(" more like this)") for text in own[2:])
    for listener in listeners:
        await listener.aclose()
    assert len(told) <= 24
    caplog.clear()
    await cluster.come()
    await trio.sleep(60)
    assert sum(text.startswith("broker reachable again") for text in caplog.messages) == 1
