"""A pair of brokers as ``triomq replica status``, ``triomq doctor`` and ``/readyz`` show it."""

from pathlib import Path

import trio

from tests.integration.broker_wire import broker_port, connected, namesrv_address, running, wait_for
from tests.integration.cli_tools import ok
from tests.integration.test_registration import broker_at
from triomq.broker.addresses import Address
from triomq.broker.metrics import BrokerMetrics
from triomq.client import Admin, FindingKind, Replica
from triomq.protocol.codes import ResponseCode

ANY = Address("127.0.0.1", 0)
ABOUT_PAIRS = {FindingKind.NO_SLAVE, FindingKind.NO_MASTER, FindingKind.OUT_OF_TOUCH, FindingKind.BEHIND}


async def test_status_and_doctor_follow_a_pair(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "m", role="sync-master", ha_listen=ANY) as master,
        connected(broker_port(master)) as wire,
        Admin(namesrv=namesrv_address(master)) as admin,
    ):

        async def pair() -> tuple[Replica, ...]:
            return tuple(await admin.replicas())

        async def faults() -> set[FindingKind]:
            return {finding.kind for finding in (await admin.diagnose()).findings} & ABOUT_PAIRS

        async with broker_at(tmp_path / "s", master.addresses["default"][1], role="slave", broker_id=1) as slave:
            await wait_for(lambda: not BrokerMetrics(slave).not_ready())
            assert (await wire.put()).code == ResponseCode.SUCCESS
            end = master.store.commit_log.max_offset
            of_master, of_slave = await pair()
            assert (of_master.role, of_slave.role, of_slave.broker_id) == ("sync-master", "slave", 1)
            assert of_slave.end == of_master.end == end > 0
            assert (of_slave.lag_bytes, of_slave.is_in_touch, of_slave.master) == (0, True, str(master.ha_address))
            assert of_master.copies is not None
            (copy,) = of_master.copies
            assert (copy.end, copy.lag_bytes, copy.lag_ms, copy.is_in_touch) == (end, 0, 0, True)
            assert await faults() == set()
            table = await trio.to_thread.run_sync(lambda: ok("replica", "status", namesrv=namesrv_address(master)))
            assert f"in touch with {master.ha_address}" in table
            assert len(table.splitlines()) == 4  # with the heading and the connection
        await wait_for(lambda: master.copies.master is not None and not master.copies.master.slaves)
        assert (await wire.put()).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert FindingKind.NO_SLAVE in await faults()
