"""Masters and slaves at name servers, and what a slave leaves to its master."""

from pathlib import Path
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from tests import processes
from tests.integration import test_name_server
from tests.integration.broker_wire import (
    broker_config,
    broker_port,
    connected,
    running,
    send_fields,
    wait_for,
)
from tests.integration.test_registration import FREE, broker_at
from triomq.broker.addresses import Address
from triomq.broker.namesrv.route_table import Master
from triomq.broker.opening import open_broker
from triomq.broker.services.housekeeping import elapsed_ms
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError
from triomq.storage.message_store import system_clock_ms

SLAVE: Final[dict[str, Any]] = {"role": "slave", "broker_id": 1}
PREPARED: Final = 4


async def test_a_slave_finds_its_master_and_is_routed(tmp_path: Path) -> None:
    async with test_name_server.running(tmp_path / "n") as server:
        other_size: dict[str, Any] = {"store": {"commit_log_file_size_bytes": 2**20}, **SLAVE, "broker_id": 2}
        async with (
            broker_at(tmp_path / "m", server.address) as master,
            broker_at(tmp_path / "s", server.address, **SLAVE) as slave,
        ):
            at, slave_at = (broker.addresses["default"][0] for broker in (master, slave))
            route = server.routes.route("TBW102", "")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {0: str(at), 1: str(slave_at)}
            assert slave.registration.master == Master(str(at), f"127.0.0.1:{at.port + 1}")
            assert master.registration.master is None
            for settings, complaint in (
                (SLAVE, rf"broker id 1 of broker name broker-a is in use: .* {slave_at}, .* --broker-id"),
                (other_size, rf"files of 1048576 bytes: those of the master, {at}, have 16777216"),
                ({}, rf"broker name broker-a is in use: .* {at}, .* --broker-name"),
            ):
                with pytest.raises(ConfigError, match=complaint):
                    async with broker_at(tmp_path / "x", server.address, **settings):
                        pass
        assert server.routes.topics() == []


async def test_a_slave_registers_with_its_masters_name_server(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master:
        at, namesrv = master.addresses["default"]
        async with broker_at(tmp_path / "s", namesrv, **SLAVE) as slave:
            slave_at = slave.addresses["default"][0]
            assert slave.registration.master == Master(str(at), f"127.0.0.1:{at.port + 1}")
            info = master.routes.cluster_info(str(at))
            assert info.broker_addr_table["broker-a"].broker_addrs == {0: str(at), 1: str(slave_at)}


async def test_promoted_slave_delivers_no_timed_message_again(tmp_path: Path) -> None:
    async with running(tmp_path / "m", ha_listen=FREE) as master, connected(broker_port(master)) as wire:
        assert (await wire.put("T", i="TIMER_DELAY_MS\x01200")).code == ResponseCode.SUCCESS
        await wait_for(lambda: master.store.reader.max_offset_in_queue("T", 0) == 1)
        async with broker_at(tmp_path / "s", master.addresses["default"][1], **SLAVE) as slave:
            assert slave.metadata is not None
            metadata = slave.metadata
            await wait_for(lambda: metadata.copied_at is not None)
            assert slave.store.commit_log.max_offset == master.store.commit_log.max_offset
            assert slave.delayed.timer.progress.to_json() == master.delayed.timer.progress.to_json()
    async with running(tmp_path / "s") as promoted, connected(broker_port(promoted)) as wire:
        assert (await wire.put("T", i="TIMER_DELAY_MS\x01200")).code == ResponseCode.SUCCESS
        await wait_for(lambda: promoted.store.reader.max_offset_in_queue("T", 0) > 1)
        assert promoted.store.reader.max_offset_in_queue("T", 0) == 2
        assert promoted.delayed.delivery.delivered == 1


async def test_a_slave_delivers_and_checks_nothing(tmp_path: Path) -> None:
    ahead_ms = 3_600_000
    clocks: dict[str, Any] = {
        "clock_ms": lambda: system_clock_ms() + ahead_ms,
        "elapsed_clock_ms": lambda: elapsed_ms() + ahead_ms,
        "file_system": processes.tests_disk(),
    }
    async with running(tmp_path) as broker, connected(broker_port(broker)) as wire:
        assert (await wire.put("T", i="DELAY\x015")).code == ResponseCode.SUCCESS
        half = {**send_fields("T"), "f": PREPARED, "i": "TRAN_MSG\x01true\x02PGROUP\x01P"}  # born long ago
        assert (await wire.ask(RequestCode.SEND_MESSAGE_V2, half, b"half")).code == ResponseCode.SUCCESS
    slave = broker_config(tmp_path, **SLAVE, ha_master=Address("127.0.0.1", 1))
    async with open_broker(slave, **clocks) as broker:
        end = broker.store.commit_log.max_offset
        for _ in range(10):
            broker.clock_moved()
            await wait_all_tasks_blocked()
        assert broker.store.commit_log.max_offset == end
    async with open_broker(broker_config(tmp_path), **clocks) as broker:
        await wait_for(lambda: broker.store.reader.max_offset_in_queue("T", 0) == 1)
        await wait_for(lambda: broker.store.reader.max_offset_in_queue("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 1)
