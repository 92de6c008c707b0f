"""The state of copies, as tools, metrics and health show it."""

from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.recording import Clock, Peer
from tests.unit.broker.replication.ends import FakeMaster, FakeSlave, slave_state
from tests.unit.broker.scrape import of, scrape
from triomq.broker.metrics import BrokerMetrics
from triomq.broker.server import Broker
from triomq.protocol.bodies.replication import HaClient, HaConnection, HaStatus
from triomq.protocol.codes import RequestCode

MIB = 1024**2


def ask(broker: Broker) -> HaStatus:
    return HaStatus.decode(Peer(broker).get(RequestCode.GET_BROKER_HA_STATUS).body)


def attach(broker: Broker, end: FakeMaster | FakeSlave) -> None:
    """Give a broker another end of the replication."""
    if isinstance(end, FakeMaster):
        broker.copies.master = cast(Any, end)
    else:
        broker.copies.slave = cast(Any, end)


async def test_a_master_answers_with_each_slave(broker: Broker, clock: Clock, autojump_clock: MockClock) -> None:
    master = FakeMaster(
        [
            slave_state("10.0.0.2:5", acknowledged_offset=70, lag_bytes=256 * MIB - 1, report_age_s=1.5, lag_s=0.25),
            slave_state("10.0.0.3:6", acknowledged_offset=70, lag_bytes=256 * MIB),
            slave_state("10.0.0.4:7", acknowledged_offset=-1, sent_offset=-1),
        ]
    )
    attach(broker, master)
    assert ask(broker).in_sync_slave_nums == 1
    await trio.sleep(2)
    master.slaves[0] = master.slaves[0]._replace(sent_bytes=5000)
    near, behind, new = ask(broker).ha_connection_info
    assert near == HaConnection(
        "10.0.0.2:5",
        70,
        256 * MIB - 1,
        in_sync=True,
        transferred_byte_in_second=2000,
        transfer_from_where=90,
        lag_ms=250,
        reported_ms=clock.now_ms - 1500,
    )
    assert (behind.in_sync, behind.lag_ms, behind.transferred_byte_in_second) == (False, None, 0)
    assert (new.in_sync, new.slave_ack_offset, new.transfer_from_where, new.reported_ms) == (False, -1, -1, 0)


async def test_a_slave_answers_with_its_progress(broker: Broker, clock: Clock, autojump_clock: MockClock) -> None:
    slave = FakeSlave("10.0.0.1:10912", last_received_s=3.0, last_reported_s=0.5, taken_bytes=100)
    attach(broker, slave)
    ask(broker)
    await trio.sleep(1)
    slave.taken_bytes = 700
    end, now_ms = broker.store.commit_log.max_offset, clock.now_ms
    assert ask(broker) == HaStatus(
        ha_client_runtime_info=HaClient("10.0.0.1:10912", 600, end, now_ms - 3000, now_ms - 500)
    )


@pytest.mark.parametrize(
    ("slave", "problem"),
    [
        (FakeSlave("a:1", 20.0, taken_bytes=7), ""),
        (FakeSlave("a:1", 21.0, taken_bytes=7), "the slave has received nothing for 21 s from its master at a:1"),
        (FakeSlave(taken_bytes=7), "the slave has received nothing yet from its master"),
    ],
)
async def test_a_slave_out_of_touch_is_not_ready(broker: Broker, slave: FakeSlave, problem: str) -> None:
    attach(broker, slave)
    broker.is_serving = True
    metrics = BrokerMetrics(broker)
    assert (metrics.not_ready(), metrics.failure()) == (problem, "")
    found = await scrape(broker)
    assert (of(found, "triomq_in_touch"), of(found, "triomq_received_bytes_total")) == ([not problem], [7])


async def test_metrics_show_lag_of_each_slave(broker: Broker) -> None:
    slaves = [slave_state("10.0.0.2:5", lag_bytes=30, lag_s=0.5), slave_state("10.0.0.3:6", lag_bytes=40)]
    attach(broker, FakeMaster(slaves, sent_bytes=9000))
    found = await scrape(broker)
    assert of(found, "triomq_role", role="async-master") == [1]
    assert of(found, "triomq_slaves") == [2]
    assert of(found, "triomq_slave_lag_bytes", slave="10.0.0.2:5") == [30]
    assert of(found, "triomq_slave_lag_bytes", slave="10.0.0.3:6") == [40]
    assert of(found, "triomq_slave_lag_seconds") == [0.5]
    assert of(found, "triomq_replicated_bytes_total") == [9000]
