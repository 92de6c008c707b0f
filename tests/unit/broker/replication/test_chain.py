"""A slave that has slaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.unit.broker.recording import MakeBroker
from tests.unit.broker.replication.test_master import FILE_BYTES, PlayedSlave, serving
from tests.unit.broker.replication.test_slave import Log
from tests.unit.storage.making import StoreMaker
from triomq.broker.addresses import Address
from triomq.broker.config import BrokerConfig
from triomq.protocol.errors import ConfigError
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.reading.cold_read import finish

ABOVE = Address("192.0.2.1", 10912)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    maker = StoreMaker(tmp_path / "master")
    yield Log(maker(commit_log_file_size_bytes=FILE_BYTES))
    maker.close()


@pytest.mark.parametrize("durability", Durability)
async def test_whole_and_safe_records_are_passed_on(make_broker: MakeBroker, log: Log, durability: Durability) -> None:
    is_sync = durability is Durability.SYNC
    settings = {"role": "slave", "broker_id": 1, "ha_master": ABOVE}
    async with serving(make_broker, {"durability": durability}, **settings) as broker:
        assert broker.master is not None
        last = next(number for number in range(150) if log.border(number) > FILE_BYTES + 100_000)
        end, replica = log.border(last), broker.store.replica
        slave = PlayedSlave(broker.master)
        for is_flushed in (False, True):
            slave.report(0)
            await wait_all_tasks_blocked()
            slave.read()
            assert bool(slave.frames) == (is_flushed and not is_sync)
            if not is_flushed:  # the log of its direct master decides where its log begins
                replica.append(FILE_BYTES, log.data[FILE_BYTES : end + 50])
                finish(replica.dispatching())
                broker.worker.end_step()
        assert broker.store.commit_log.max_offset == end < replica.end
        broker.store.flush()
        broker.worker.end_step()
        if is_sync:
            slave.report(0)
        assert await slave.until_end(end) == log.data[FILE_BYTES:end]
        replica.append(end + 50, log.data[end + 50 : 2 * FILE_BYTES])
        finish(replica.dispatching())
        broker.store.flush()
        broker.worker.end_step()
        assert await slave.until_end(2 * FILE_BYTES) == log.data[FILE_BYTES : 2 * FILE_BYTES]


def test_slave_of_itself_is_refused(tmp_path: Path) -> None:
    store = StoreConfig(root=tmp_path)
    own = Address("127.0.0.1", 10912)
    with pytest.raises(ConfigError, match="is the slave's own --ha-listen"):
        BrokerConfig(store=store, role="slave", broker_id=1, ha_master=own, ha_listen=own)
