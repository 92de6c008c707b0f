"""A slave whose log has gone another way than its master's: it sets its end aside and copies the master's."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests import processes
from tests.integration import test_name_server
from tests.integration.broker_wire import FREE_PORTS, broker_config, broker_port, connected, wait_for
from triomq.broker import Address, BrokerConfig, KeptBroker, Listener, keep_broker, open_broker
from triomq.broker.replication import comparison
from triomq.protocol.codes import ResponseCode
from triomq.protocol.record.record import decode_record
from triomq.storage.aside import tails_aside
from triomq.storage.commit_log.log_scan import DamagedPart
from triomq.storage.tools.stopped_store import StoppedStore
from triomq.storage.tools.store_check import check

FREE: Final = FREE_PORTS.broker
ON_TESTS_DISK: Final = partial(open_broker, file_system=processes.tests_disk())
FILE: Final = 128 * 1024


def config_of(root: Path, name_server: Address, **settings: Any) -> BrokerConfig:
    listeners = (Listener(broker=FREE, namesrv=None),)
    store = {"commit_log_file_size_bytes": FILE, "index_slots": 50, "index_units": 150}
    return broker_config(root, store, listeners=listeners, register=(name_server,), **settings)


@asynccontextmanager
async def running(root: Path, name_server: Address, **settings: Any) -> AsyncGenerator[KeptBroker]:
    async with keep_broker(config_of(root, name_server, **settings), ON_TESTS_DISK) as kept:
        yield kept


def master_of(root: Path, name_server: Address) -> Any:
    return running(root, name_server, ha_listen=FREE)


def slave_of(root: Path, name_server: Address) -> Any:
    return running(root, name_server, role="slave", broker_id=1)


async def put(kept: KeptBroker, *bodies: bytes) -> None:
    async with connected(broker_port(kept.broker)) as wire:
        for number, body in enumerate(bodies):
            answer = await wire.put(body=body, queue_id=number % 4)
            assert answer.code == ResponseCode.SUCCESS


def log_of(kept: KeptBroker) -> bytes:
    log = kept.broker.store.commit_log
    return b"".join(bytes(file.view) for file in log.files.files)[: log.max_offset - log.min_offset]


def bodies_in(root: Path) -> list[bytes]:
    with StoppedStore(root) as store:
        assert check(store).problems == []
        records = [store.log.look_message(found[0]) for found in store.walk() if not isinstance(found, DamagedPart)]
        return [message.body for record in records if record and (message := decode_record(record)).topic != "-"]


def messages(name: bytes, count: int) -> list[bytes]:
    return [b"%s-%d-" % (name, number) + b"x" * (number * 997 % 4000) for number in range(count)]


async def until_equal(slave: KeptBroker, master: KeptBroker) -> None:
    slave.broker.registration.register_soon()
    await wait_for(
        lambda: (
            slave.broker.slave is not None and slave.broker.store.refused.is_open and log_of(slave) == log_of(master)
        )
    )


@pytest.mark.parametrize(("common", "own", "others"), [(1, 1, 1), (70, 150, 20), (70, 3, 150), (33, 40, 0)])
async def test_end_that_master_lacks_is_set_aside(tmp_path: Path, common: int, own: int, others: int) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shared, lost, kept_bodies = messages(b"shared", common), messages(b"lost", own), messages(b"kept", others)
    async with test_name_server.running(tmp_path / "names") as server:
        address = server.address
        async with master_of(first, address) as broker:
            await put(broker, *shared)
        shutil.copytree(first, second)
        async with master_of(first, address) as broker:
            await put(broker, *lost)
        async with master_of(second, address) as master:
            await put(master, *kept_bodies)
            async with slave_of(first, address) as slave:
                await until_equal(slave, master)
                await put(master, b"after")
                await until_equal(slave, master)
                assert len(tails_aside(first)) == 1
    assert bodies_in(first / "aside" / tails_aside(first)[0]) == lost
    assert bodies_in(first) == bodies_in(second) == [*shared, *kept_bodies, b"after"]


async def test_log_with_nothing_in_common_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with test_name_server.running(tmp_path / "names") as server:
        for root in (first, second):
            async with master_of(root, server.address) as broker:
                await put(broker, *messages(root.name.encode(), 30))
        async with master_of(second, server.address), slave_of(first, server.address) as slave:
            slave.broker.registration.register_soon()
            await wait_for(lambda: "log has nothing in common with that of the master" in caplog.text)
            assert slave.broker.copies.problem()
    assert tails_aside(first) == []
    assert bodies_in(first) == messages(b"first", 30)


async def test_damage_while_copying_is_found_and_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_INTERVAL_S", 0.2)
    async with test_name_server.running(tmp_path / "names") as server:
        async with (
            master_of(tmp_path / "m", server.address) as master,
            slave_of(tmp_path / "s", server.address) as slave,
        ):
            await put(master, *messages(b"before", 10))
            await until_equal(slave, master)
            first, log = slave.broker, slave.broker.store.commit_log
            append = first.store.replica.append

            def damage(offset: int, data: bytes | memoryview) -> None:
                append(offset, bytes(data).replace(b"good", b"evil"))

            monkeypatch.setattr(first.store.replica, "append", damage)
            begin = log.max_offset
            await put(master, b"good " * 40)
            await wait_for(lambda: slave.broker is not first)
            await until_equal(slave, master)
            (name,) = tails_aside(tmp_path / "s")
            assert name.startswith(f"{begin}-")
