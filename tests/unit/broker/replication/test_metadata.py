"""A slave takes over its master's tables, and keeps offsets that only it was given."""

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.integration.broker_wire import broker_port, connected, running, wait_for
from triomq.broker.addresses import Address
from triomq.broker.network.sessions import Session
from triomq.broker.replication import metadata
from triomq.broker.saved_table import SavedTable
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import finish

NOWHERE = Address("127.0.0.1", 1)
ACCOUNTS = """accounts:
- {accessKey: a-reader, secretKey: secret-of-reader, defaultTopicPerm: SUB}
- {accessKey: operator, secretKey: secret-of-operator, admin: true}
"""


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_INTERVAL_S", 0.02)
    monkeypatch.setattr(metadata, "_RETRY_S", 0.02)


@asynccontextmanager
async def slave_of(master: Broker | None, root: Path, **settings: Any) -> AsyncGenerator[Broker]:
    async with running(root, role="slave", broker_id=1, register=(NOWHERE,), **settings) as slave:
        if master is not None:
            follow(slave, master)
        yield slave


@asynccontextmanager
async def master_at(root: Path, **settings: Any) -> AsyncGenerator[Broker]:
    async with running(root, ha_listen=Address("127.0.0.1", 0), **settings) as master:
        yield master


def follow(slave: Broker, master: Broker, host: str = "127.0.0.1") -> None:
    """Do as the registration does when a name server knows the master's address."""
    place = {"masterAddr": f"{host}:{broker_port(master)}", "haServerAddr": str(master.ha_address)}
    slave.registration.take_master(place)


async def wait_copied(slave: Broker) -> None:
    """Wait for a copy that begins from now on."""
    copy = slave.metadata
    assert copy is not None
    for _ in range(2):
        copy.copied_at = None
        await wait_for(lambda: copy.copied_at is not None)


def tables_of(broker: Broker) -> dict[str, Any]:
    delays = broker.delayed.schedule.offsets
    tables: list[SavedTable] = [broker.topics, broker.groups.settings, broker.groups.offsets, delays]
    return {type(table).__name__: table.to_json() for table in tables}


async def test_tables_become_the_masters_and_stay(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(master_at(tmp_path / "master"))
        for name in ("kept", "gone"):
            master.topics.put(TopicConfig(name, 3, 2))
            master.groups.settings.put(SubscriptionGroupConfig(group_name=name))
            master.groups.offsets.commit(name, name, 1, 5)
        master.groups.offsets.commit("left", "kept", 0, 4)
        master.delayed.schedule.offsets.set(2, 8)
        async with slave_of(master, tmp_path / "slave") as slave:
            await wait_copied(slave)
            assert tables_of(slave) == tables_of(master)
            slave.store.queue("gone", 0)
            master.topics.put(TopicConfig("kept", 9, 9))
            master.groups.settings.put(SubscriptionGroupConfig(group_name="kept", consume_enable=False))
            finish(master.admin.deletion("gone"))
            master.groups.settings.delete("gone")
            finish(master.groups.offsets.delete_group("left"))
            master.groups.offsets.commit("kept", "kept", 1, 3)
            slave.groups.offsets.commit("kept", "kept", 1, 7)  # the master is there, so its offset counts
            await wait_copied(slave)
            assert tables_of(slave) == tables_of(master)
            assert not slave.store.queues.of_topic("gone")
            wanted = tables_of(master)
        await stack.aclose()
        async with slave_of(None, tmp_path / "slave") as slave:
            assert tables_of(slave) == wanted


async def test_slave_without_log_needs_no_log_first(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as master, slave_of(None, tmp_path / "s") as slave:
        master.topics.put(TopicConfig("T", 3, 2))
        slave.registration.take_master({"masterAddr": f"127.0.0.1:{broker_port(master)}"})
        await wait_copied(slave)
        assert slave.topics.configs["T"] == master.topics.configs["T"]


async def test_host_for_slaves_replaces_one_for_others(tmp_path: Path) -> None:
    async with master_at(tmp_path / "m") as master, slave_of(None, tmp_path / "s") as slave:
        master.topics.put(TopicConfig("T", 3, 2))
        follow(slave, master, "127.0.0.2")
        await wait_copied(slave)
        assert slave.topics.configs["T"] == master.topics.configs["T"]


async def test_slave_survives_impossible_host_of_its_master(tmp_path: Path) -> None:
    async with master_at(tmp_path / "m") as master, slave_of(None, tmp_path / "s") as slave:
        slave.registration.take_master({"masterAddr": "a..b:1", "haServerAddr": f"{'a' * 64}:1"})
        await wait_for(lambda: slave.slave is not None and slave.slave.master is not None)
        follow(slave, master)
        await wait_copied(slave)


async def test_another_master_is_copied_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_INTERVAL_S", inf)
    async with master_at(tmp_path / "m1") as first, master_at(tmp_path / "m2") as second:
        for master, count in ((first, 1), (second, 2)):  # the tables of both need different versions
            for queues in range(count):
                master.topics.put(TopicConfig("T", queues + 1, 1))
        async with slave_of(first, tmp_path / "s") as slave:
            for master in (first, second):
                follow(slave, master)
                wanted = master.topics.configs["T"]
                await wait_for(lambda wanted=wanted: slave.topics.configs.get("T") == wanted)  # type: ignore[misc]


async def test_master_with_another_log_changes_no_table(tmp_path: Path) -> None:
    async with slave_of(None, tmp_path / "slave") as slave:
        async with master_at(tmp_path / "master") as master, connected(broker_port(master)) as wire:
            await wire.put("T")
            master.groups.offsets.commit("G", "T", 0, 1)
            follow(slave, master)
            await wait_for(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset)
            await wait_copied(slave)
            wanted = tables_of(slave)
        async with master_at(tmp_path / "replaced") as other:  # its disk is new, or not mounted
            follow(slave, other)
            await wait_for(lambda: bool(other.connections))
            await trio.sleep(0.2)
            assert tables_of(slave) == wanted
            assert slave.store.reader.max_offset_in_queue("T", 0) == 1


async def test_topic_made_again_keeps_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        master_at(tmp_path / "master") as master,
        connected(broker_port(master)) as wire,
        slave_of(master, tmp_path / "slave") as slave,
    ):
        fetch, made_again = metadata.MetadataCopy._fetch, trio.Event()

        async def fetch_and_make_again(copy: metadata.MetadataCopy, session: Session, code: int) -> RemotingCommand:
            response = await fetch(copy, session, code)  # type: ignore[arg-type]
            if code == RequestCode.GET_ALL_TOPIC_CONFIG and b'"T"' not in response.body and not made_again.is_set():
                made_again.set()
                await wire.put("T")
                await wait_for(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset)
            return response

        await wire.put("T")
        await wire.put("T")
        await wait_for(lambda: slave.store.reader.max_offset_in_queue("T", 0) == 2)
        await wait_copied(slave)
        monkeypatch.setattr(metadata.MetadataCopy, "_fetch", fetch_and_make_again)
        await master.worker.run(master.admin.deletion("T"))
        await made_again.wait()
        await wait_copied(slave)
        assert slave.store.reader.max_offset_in_queue("T", 0) == 1
        assert slave.topics.get("T") == master.topics.get("T")


async def test_offsets_committed_without_master_reach_it(tmp_path: Path) -> None:
    def offsets(broker: Broker) -> list[int | None]:
        return [broker.groups.offsets.query("G", "T", queue_id) for queue_id in range(5)]

    async with master_at(tmp_path / "master") as master, connected(broker_port(master)) as wire:
        master.topics.put(TopicConfig("T", 5, 5))
        for number in range(5 * 9):
            await wire.put("T", e=number % 5)
        for queue_id in range(3):
            master.groups.offsets.commit("G", "T", queue_id, 5)
        async with slave_of(master, tmp_path / "slave") as slave:
            await wait_for(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset)
            await wait_copied(slave)
        async with slave_of(None, tmp_path / "slave") as slave:
            for queue_id, offset in ((0, 7), (1, 6), (3, 2), (4, 12)):  # of the last queue a power cut takes three
                slave.groups.offsets.commit("G", "T", queue_id, offset)
        async with slave_of(None, tmp_path / "slave") as slave:
            slave.groups.offsets.commit("G", "T", 1, 7)
            master.groups.offsets.commit("G", "T", 1, 9)
            follow(slave, master)
            await wait_copied(slave)
            assert offsets(slave) == offsets(master) == [7, 9, 5, 2, 9]
            master.groups.offsets.commit("G", "T", 0, 1)  # later the master alone decides
            await wait_copied(slave)
            assert offsets(slave) == [1, 9, 5, 2, 9]


@pytest.mark.parametrize("signs", [True, False])
async def test_slave_signs_as_first_administrator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, signs: bool
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "plain_acl.yml"
    await trio.Path(path).write_text(ACCOUNTS)
    async with master_at(tmp_path / "master", acl=path) as master:
        master.topics.put(TopicConfig("T", 3, 2))
        async with slave_of(master, tmp_path / "slave", acl=path if signs else None) as slave:
            await wait_for(lambda: "metadata" in caplog.text)
            assert ("T" in slave.topics.configs) is signs
            assert ("request 21 refused: " in caplog.text) is not signs
            await wait_for(lambda: "copying from the master" in caplog.text)
            assert ("log is not compared" in caplog.text) is not signs


async def test_long_absence_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with slave_of(None, tmp_path / "slave") as slave:
        slave.registration.take_master({"masterAddr": str(NOWHERE)})
        await wait_for(lambda: "is not copied for now master=127.0.0.1:1 reason=" in caplog.text)
        await trio.sleep(0.2)
        assert caplog.text.count("is not copied") == 1
        async with master_at(tmp_path / "master") as master:
            follow(slave, master)
            await wait_for(lambda: "is copied again" in caplog.text)
