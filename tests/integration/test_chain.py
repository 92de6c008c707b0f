"""A master, its slave, and a slave of that slave."""

from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.broker_wire import broker_port, connected, namesrv_address, running, wait_for
from tests.integration.test_registration import broker_at
from triomq.broker.addresses import Address
from triomq.broker.metrics import BrokerMetrics
from triomq.broker.server import Broker
from triomq.client import Admin
from triomq.protocol.bodies import fastjson
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.storage.config import Durability

ANY = Address("127.0.0.1", 0)
TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


def log_of(broker: Broker) -> bytes:
    log = broker.store.commit_log
    return b"".join(bytes(file.view) for file in log.files.files)[: log.max_offset]


async def tables_at(address: Address | None) -> list[Any]:
    assert address is not None
    async with connected(address.port) as wire:
        answers = [await wire.ask(code) for code in TABLES]
    assert [each.code for each in answers] == [ResponseCode.SUCCESS] * len(TABLES)
    return [fastjson.loads(each.body) for each in answers]


async def test_slave_of_slave_copies_log_and_tables(tmp_path: Path) -> None:
    async with running(tmp_path / "m", ha_listen=ANY) as master, connected(broker_port(master)) as wire:
        namesrv = master.addresses["default"][1]
        master.topics.put(TopicConfig("T", 4, 4))
        master.groups.settings.put(SubscriptionGroupConfig(group_name="G"))
        master.groups.offsets.commit("G", "T", 1, 7)
        slave_at = partial(broker_at, role="slave", fast_listen=ANY)

        async def grow() -> None:
            for number in range(50):
                assert (await wire.put(body=b"%d" % number * 500)).code == ResponseCode.SUCCESS

        middle_at = partial(slave_at, tmp_path / "s1", namesrv, broker_id=1)
        async with middle_at(ha_listen=ANY) as middle:
            above = middle.ha_address
        await grow()
        async with slave_at(
            tmp_path / "s2", namesrv, broker_id=2, ha_master=above, store={"durability": Durability.SYNC}
        ) as last:
            for _ in range(2):
                async with middle_at(ha_listen=above) as middle:
                    await grow()
                    end = master.store.commit_log.max_offset
                    for end_of_chain, before in ((middle, master), (last, middle)):
                        await wait_for(lambda copy=end_of_chain: log_of(copy) == log_of(master))  # type: ignore[misc]
                        assert before.master is not None
                        await wait_for(lambda to=before.master: not to.has_unfinished)  # type: ignore[misc]
                        assert [each.acknowledged_offset for each in before.master.slaves] == [end]
                        assert not BrokerMetrics(end_of_chain).not_ready()
                        await wait_for(lambda copy=end_of_chain.metadata: copy.copied_at is not None)  # type: ignore[misc]
                        wanted = await tables_at(master.addresses["default"][0])
                        for address in (end_of_chain.addresses["default"][0], end_of_chain.listeners.fast):
                            assert await tables_at(address) == wanted
                    async with Admin(namesrv=namesrv_address(master)) as admin:
                        _, of_middle, of_last = await admin.replicas()
                    assert (of_last.master, of_last.is_in_touch) == (str(above), True)
                    assert of_middle.copies is not None
                    assert [each.end for each in of_middle.copies] == [end]
                    assert of_last.copies is None
