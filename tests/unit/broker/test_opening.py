"""A broker that is kept opens again in its process."""

import gc
import weakref
from functools import partial
from pathlib import Path

import pytest
import trio

from tests import processes
from tests.integration.broker_wire import broker_config, broker_port, connected, running, wait_for
from triomq.broker import Address, Broker, keep_broker, open_broker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError, StoreError

ON_TESTS_DISK = partial(open_broker, file_system=processes.tests_disk())
ANY = Address("127.0.0.1", 0)


async def test_reopened_broker_has_same_ports_and_messages(tmp_path: Path) -> None:
    config = broker_config(tmp_path, metrics=ANY, ha_listen=ANY, admin_listen=ANY, fast_listen=ANY)
    is_locked_meanwhile: list[bool] = []

    def ports(broker: Broker) -> list[object]:
        monitor = broker.monitor
        listeners = broker.listeners
        return [listeners.addresses, listeners.fast, listeners.admin, broker.ha_address, monitor and monitor.address]

    async with keep_broker(config, ON_TESTS_DISK) as kept:
        first = kept.broker
        async with connected(broker_port(first)) as wire:
            assert (await wire.put()).code == ResponseCode.SUCCESS
            first.reopen(
                "test", lambda: is_locked_meanwhile.append((tmp_path / "abort").exists()), auto_create_topic=False
            )
            with pytest.raises(RefusedError):
                first.reopen("again")
            assert await wire.is_closed_by_broker()
        await wait_for(lambda: kept.broker is not first)
        assert is_locked_meanwhile == [False]
        assert ports(kept.broker) == ports(first)
        async with connected(broker_port(kept.broker)) as wire:
            assert (await wire.put()).code == ResponseCode.SUCCESS
            assert (await wire.put("another")).code == ResponseCode.TOPIC_NOT_EXIST
        assert kept.broker.store.reader.max_offset_in_queue("T", 0) == 2


async def test_error_of_a_change_ends_the_broker(tmp_path: Path) -> None:
    def fail() -> None:
        raise StoreError("the change failed")

    async def run() -> None:
        async with keep_broker(broker_config(tmp_path), ON_TESTS_DISK) as kept:
            kept.broker.reopen("test", fail)
            await trio.sleep_forever()

    with pytest.raises(StoreError, match="the change failed"):
        await run()


async def test_former_broker_is_freed(tmp_path: Path) -> None:
    collected: list[int] = []
    async with keep_broker(broker_config(tmp_path), ON_TESTS_DISK, lambda: collected.append(gc.collect())) as kept:
        former = weakref.ref(kept.broker)
        kept.broker.reopen("test")
        await wait_for(lambda: bool(collected))
        assert former() is None


async def test_stop_while_it_ends_to_reopen_ends_it(tmp_path: Path) -> None:
    changed: list[bool] = []
    async with keep_broker(broker_config(tmp_path), ON_TESTS_DISK) as kept:
        first = kept.broker
        first.reopen("test", lambda: changed.append(True))
    assert changed == [True]
    assert kept.broker is first


async def test_lone_broker_cannot_open_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(RefusedError, match="restart its process"):
            broker.reopen("test")
        assert not broker.ending.is_set()
