"""Master and slaves of a cluster: each broker is asked, whichever version it has."""

import pytest

from tests.unit.client.fake_broker import BrokerFactory, FakeBroker, answering
from triomq.client.admin.admin import Admin
from triomq.client.admin.replicas import Replica, SlaveCopy
from triomq.client.environment import wall_clock_ms
from triomq.protocol.bodies.replication import HaClient, HaConnection, HaStatus
from triomq.protocol.bodies.route import BrokerData, ClusterInfo, KVTable
from triomq.protocol.codes import RequestCode, ResponseCode


def describe(broker: FakeBroker, role: str, end: int, status: HaStatus | None) -> None:
    """Set the answers of a broker; without a status those of RocketMQ 4."""
    broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, answering(KVTable({"commitLogMaxOffset": str(end)}).encode()))
    broker.on(RequestCode.GET_BROKER_CONFIG, answering(f"brokerRole={role}\n".encode()))
    if status is None:
        broker.on(
            RequestCode.GET_BROKER_HA_STATUS, lambda command: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        )
    else:
        broker.on(RequestCode.GET_BROKER_HA_STATUS, answering(status.encode()))


@pytest.fixture
async def slave(fake_broker: FakeBroker, make_broker: BrokerFactory) -> FakeBroker:
    """A slave of the first broker, which is the name server too; a second slave is away."""
    slave = await make_broker("broker-b")
    addresses = {0: fake_broker.address, 1: slave.address, 2: "127.0.0.1:1"}
    info = ClusterInfo({"broker-a": BrokerData("one", "broker-a", addresses)}, {"one": ["broker-a"]})
    fake_broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, answering(info.encode()))
    return slave


async def found(namesrv: FakeBroker) -> list[Replica]:
    async with Admin(namesrv=namesrv.address) as admin:
        replicas = await admin.replicas()
    away = replicas.pop()
    assert (away.broker_id, away.role, away.end, away.is_in_touch) == (2, None, None, None)
    assert away.error is not None
    return replicas


async def test_master_and_slave_show_how_far_copies_are(fake_broker: FakeBroker, slave: FakeBroker) -> None:
    now_ms = wall_clock_ms()
    copies = [
        HaConnection("10.0.0.2:5", 700, 300, lag_ms=40, reported_ms=now_ms),
        HaConnection("10.0.0.3:6", -1, 1000, transfer_from_where=-1, reported_ms=0),
    ]
    status = HaStatus(master=True, master_commit_log_max_offset=1000, ha_connection_info=copies)
    describe(fake_broker, "SYNC_MASTER", 990, status)
    client = HaClient("10.0.0.1:10912", 0, 800, last_read_timestamp=now_ms - 15_000, last_write_timestamp=now_ms)
    describe(slave, "SLAVE", 1, HaStatus(ha_client_runtime_info=client))
    assert await found(fake_broker) == [
        Replica(
            "broker-a",
            0,
            fake_broker.address,
            "sync-master",
            1000,
            copies=(
                SlaveCopy("10.0.0.2:5", 700, 300, 40, now_ms),
                SlaveCopy("10.0.0.3:6", None, 1000, None, None),
            ),
        ),
        Replica("broker-a", 1, slave.address, "slave", 800, 200, "10.0.0.1:10912", True, now_ms - 15_000, now_ms, None),
    ]
    client.last_read_timestamp -= 6_000
    describe(slave, "SLAVE", 1, HaStatus(ha_client_runtime_info=client))
    assert [each.is_in_touch for each in await found(fake_broker)] == [None, False]


async def test_brokers_of_rocketmq_4_show_their_ends(fake_broker: FakeBroker, slave: FakeBroker) -> None:
    describe(fake_broker, "ASYNC_MASTER", 1000, None)
    describe(slave, "SLAVE", 990, None)
    assert await found(fake_broker) == [
        Replica("broker-a", 0, fake_broker.address, "async-master", 1000),
        Replica("broker-a", 1, slave.address, "slave", 990, 10),
    ]
