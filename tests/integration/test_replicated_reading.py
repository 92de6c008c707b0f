"""Consumers of a pair: the slave serves them while the master is away, and their commits there count later."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration import broker_wire, test_name_server
from tests.integration.broker_wire import wait_for
from triomq.broker.addresses import Address
from triomq.broker.config import Listener
from triomq.broker.replication import metadata
from triomq.broker.server import Broker
from triomq.client import ClientConfig, Message, MessageExt, Producer, PushConsumer

FREE: Final = Address("127.0.0.1", 0)
QUICK: Final = ClientConfig(poll_namesrv_interval_s=0.2, persist_offset_interval_s=0.2)


@asynccontextmanager
async def part_of_pair(root: Path, name_server: Address, **settings: Any) -> AsyncGenerator[Broker]:
    listeners = (Listener(broker=FREE, namesrv=None),)
    async with broker_wire.running(root, listeners=listeners, register=(name_server,), **settings) as broker:
        yield broker


async def send(namesrv: str, *bodies: bytes) -> None:
    async with Producer("P", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body))


@asynccontextmanager
async def consuming(namesrv: str) -> AsyncGenerator[list[bytes]]:
    seen: list[bytes] = []

    async def on_message(message: MessageExt) -> None:
        seen.append(message.body)

    async with PushConsumer(
        "G", namesrv=namesrv, on_message=on_message, subscriptions={"T": "*"}, start="earliest", config=QUICK
    ):
        yield seen


def progress(broker: Broker) -> int:
    offsets = broker.groups.offsets
    return sum(offsets.query("G", "T", queue_id) or 0 for queue_id in range(16))


async def test_offsets_committed_at_slave_survive_masters_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_INTERVAL_S", 0.1)
    first, second, third = [[b"%d" % number for number in range(begin, begin + 20)] for begin in (0, 20, 40)]
    async with (
        test_name_server.running(tmp_path / "names") as server,
        part_of_pair(tmp_path / "slave", server.address, role="slave", broker_id=1) as slave,
    ):
        namesrv = str(server.address)
        async with part_of_pair(tmp_path / "master", server.address, ha_listen=FREE) as master:
            slave.registration.register_soon()  # it asks the name server for its master now
            await send(namesrv, *first)
            async with consuming(namesrv) as seen:
                await wait_for(lambda: sorted(seen) == sorted(first))
            await wait_for(lambda: progress(master) == 20)
            await send(namesrv, *second)
            await wait_for(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset)
            await wait_for(lambda: progress(slave) == 20)
        async with consuming(namesrv) as seen:
            await wait_for(lambda: sorted(seen) == sorted(second))
        assert (progress(master), progress(slave)) == (20, 40)
        async with part_of_pair(tmp_path / "master", server.address, ha_listen=FREE) as master:
            slave.registration.register_soon()
            await wait_for(lambda: progress(master) == 40)
            await send(namesrv, *third)
            async with consuming(namesrv) as seen:
                await wait_for(lambda: len(seen) >= len(third))
            assert sorted(seen) == sorted(third)
