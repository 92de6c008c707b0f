"""A slave becomes the master by a request, stays it, and the former master takes notice."""

import re
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests import processes
from tests.integration import test_name_server
from tests.integration.broker_wire import broker_config, broker_port, connected, request, send_fields, wait_for
from triomq.broker import Address, Broker, BrokerConfig, KeptBroker, Listener, keep_broker, open_broker
from triomq.broker.name_server import NameServer
from triomq.broker.services import registration
from triomq.client import Admin
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import BrokerResponseError, ConfigError, NoBrokerError, TriomqError
from triomq.protocol.requests.topics import PROMOTED
from triomq.storage.message_store import system_clock_ms

ANY: Final = Address("127.0.0.1", 0)
SLAVE: Final[dict[str, Any]] = {"role": "slave", "broker_id": 1}
HALF: Final = {**send_fields("T"), "f": 4, "i": "TRAN_MSG\x01true\x02PGROUP\x01P"}


class Life:
    """A broker in a task, as in a process.

    Attributes:
        error: what ended it.
    """

    def __init__(self, config: BrokerConfig, ahead_ms: int) -> None:
        self._open = partial(
            open_broker, file_system=processes.tests_disk(), clock_ms=lambda: system_clock_ms() + ahead_ms
        )
        self.error: TriomqError | None = None
        self.config = config
        self._kept: KeptBroker
        self._stopping, self._ended = trio.Event(), trio.Event()

    @property
    def broker(self) -> Broker:
        return self._kept.broker

    @property
    def address(self) -> str:
        return str(self.broker.addresses["default"][0])

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with keep_broker(self.config, self._open) as self._kept:
                task_status.started()
                await self._stopping.wait()
        except TriomqError as exc:
            self.error = exc
        finally:
            self._ended.set()
        if self.error is not None and not hasattr(self, "_kept"):
            raise self.error

    async def end(self) -> None:
        self._stopping.set()
        await self._ended.wait()

    async def ended_by(self) -> str:
        await self._ended.wait()
        return str(self.error)


class Cluster:
    """A name server, and brokers of one name."""

    def __init__(self, root: Path, server: NameServer, nursery: trio.Nursery) -> None:
        self.root = root
        self.server = server
        self.nursery = nursery
        self.lives: list[Life] = []

    async def start(self, name: str, ahead_ms: int = 0, **settings: Any) -> Life:
        """Start a broker on the store of this name, with a clock that is ahead."""
        listeners = (Listener(broker=ANY, namesrv=None),)
        defaults = {"listeners": listeners, "ha_listen": ANY, "register": (self.server.address,)}
        life = Life(broker_config(self.root / name, **{**defaults, **settings}), ahead_ms)
        await self.nursery.start(life.run)
        self.lives.append(life)
        return life

    def addresses(self) -> dict[int, str]:
        table = self.server.routes.cluster_info("").broker_addr_table
        return dict(table["broker-a"].broker_addrs) if table else {}

    async def promote(self, **arguments: Any) -> str:
        async with Admin(namesrv=str(self.server.address)) as admin:
            return await admin.promote(**arguments)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[Cluster]:
    async with test_name_server.running(tmp_path / "n") as server, trio.open_nursery() as nursery:
        found = Cluster(tmp_path, server, nursery)
        yield found
        for life in found.lives:
            await life.end()


async def wait_copied(master: Life, slave: Life) -> None:
    """Wait until a slave, which may open again meanwhile, has the log and the tables of now."""

    def has_copied() -> bool:
        copy, ends = slave.broker.metadata, [life.broker.store.commit_log.max_offset for life in (master, slave)]
        return copy is not None and copy.copied_at is not None and ends[0] == ends[1]

    assert slave.broker.metadata is not None
    slave.broker.metadata.copied_at = None
    await wait_for(has_copied)


async def send(broker: Broker) -> int:
    async with connected(broker_port(broker)) as wire:
        return (await wire.put()).code


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.broker.replication.metadata._INTERVAL_S", 0.02)


async def test_promoted_slave_delivers_and_checks(cluster: Cluster) -> None:
    soon: dict[str, Any] = {
        "transaction_timeout_s": 0.5,
        "transaction_check_interval_s": 0.5,
        "transaction_check_max": 1,
    }
    master = await cluster.start("m", **soon)
    slave = await cluster.start("s", **SLAVE, **soon)
    async with connected(broker_port(master.broker)) as wire:
        for delay in ("", "DELAY\x012", "TIMER_DELAY_MS\x014000"):
            assert (await wire.put("T", i=delay)).code == ResponseCode.SUCCESS
        assert (await wire.ask(RequestCode.SEND_MESSAGE_V2, HALF, b"half")).code == ResponseCode.SUCCESS
    await wait_copied(master, slave)
    await master.end()
    at, replica = slave.address, slave.broker.store.replica
    replica.append(replica.end, bytes(slave.broker.store.commit_log.piece(0, 50)))  # of a record; the rest never comes
    assert await cluster.promote(role="sync-master") == at
    promoted, reader = slave.broker, slave.broker.store.reader
    assert (promoted.config.role, promoted.config.broker_id, slave.address) == ("sync-master", 0, at)
    assert promoted.registration.promotion.former_master == master.address
    assert cluster.addresses() == {0: at}
    assert await send(promoted) == ResponseCode.SLAVE_NOT_AVAILABLE
    await wait_for(lambda: reader.max_offset_in_queue("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 1)
    await wait_for(lambda: reader.max_offset_in_queue("T", 0) == 4)


async def test_slave_of_a_living_master_is_not_promoted(cluster: Cluster) -> None:
    master = await cluster.start("m")
    slave = await cluster.start("s", **SLAVE)

    async def refused(complaint: str, **arguments: Any) -> None:
        with pytest.raises(BrokerResponseError, match=complaint):
            await cluster.promote(**arguments)

    await refused("has copied nothing")
    await refused("must be async-master or sync-master", role="slave")
    await refused("is a master already", broker=master.address)
    await send(master.broker)
    await wait_copied(master, slave)
    await refused(r"its master .* lives, it sent something .*: stop it first")
    async with connected(broker_port(slave.broker)) as wire:
        both = request(RequestCode.PROMOTE, opaque=1) + request(RequestCode.PROMOTE, opaque=2)
        await wire.send(both)
        assert "another request" in ((await wire.next()).remark or "")
        assert "lives" in ((await wire.next()).remark or "")
    await cluster.start("s2", **SLAVE | {"broker_id": 2, "ha_master": Address("127.0.0.1", 1)})
    with pytest.raises(NoBrokerError, match="several slaves, choose one"):
        await cluster.promote()


async def test_former_master_ends_and_cannot_start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_RANK_S", 0.1)
    master = await cluster.start("m")
    slave = await cluster.start("s", **SLAVE)
    await send(master.broker)
    await wait_copied(master, slave)
    await cluster.promote(force=True)
    complaint = (
        rf"the master of broker name broker-a is {slave.address}, which was promoted at .*: start this broker as"
    )
    assert re.match(complaint, await master.ended_by())
    with pytest.raises(ConfigError, match=complaint):
        await cluster.start("m")
    follower = await cluster.start("m", **SLAVE)
    await send(slave.broker)
    await wait_copied(slave, follower)


async def test_former_master_sets_aside_what_it_alone_has(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_RANK_S", 3600)  # it learns nothing of the promotion

    def log_of(life: Life) -> bytes:
        log = life.broker.store.commit_log
        return bytes(log.piece(0, log.max_offset))

    master = await cluster.start("m")
    slave = await cluster.start("s", **SLAVE)
    await send(master.broker)
    await wait_copied(master, slave)
    await cluster.promote(force=True)
    assert await send(master.broker) == ResponseCode.SUCCESS
    await send(slave.broker)
    await send(slave.broker)
    await master.end()
    follower = await cluster.start("m", **SLAVE)
    await wait_copied(slave, follower)
    assert log_of(follower) == log_of(slave)
    assert len(list((cluster.root / "m" / "aside").iterdir())) == 1


async def test_brokers_take_turns_as_the_master(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    one = await cluster.start("one")
    two = await cluster.start("two", **SLAVE)
    await send(one.broker)
    await wait_copied(one, two)
    await one.end()
    await cluster.promote()
    await two.end()
    again = await cluster.start("two", **SLAVE)  # as a supervisor starts it
    assert "stays the master" in caplog.text
    assert again.broker.config.broker_id == 0
    await send(again.broker)
    one = await cluster.start("one", **SLAVE, ahead_ms=-3_600_000)  # its promotion counts as the later one nevertheless
    await wait_copied(again, one)
    await again.end()
    await cluster.promote()
    assert one.broker.registration.promotion.promoted_ms > again.broker.registration.promotion.promoted_ms
    await send(one.broker)
    two = await cluster.start("two", **SLAVE)  # it was promoted before, so it is a slave again
    assert two.broker.config.is_slave
    await wait_copied(one, two)
    assert cluster.addresses() == {0: one.address, 1: two.address}


async def test_any_broker_asks_and_only_administrators_promote(cluster: Cluster, tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    await trio.Path(accounts).write_text(
        "accounts:\n- {accessKey: operator, secretKey: secret-of-operator, admin: true}\n"
    )
    master = await cluster.start("m", acl=accounts)
    slave = await cluster.start("s", **SLAVE, acl=accounts)
    for life in (master, slave):
        async with connected(broker_port(life.broker)) as wire:
            answer = await wire.ask(RequestCode.GET_PROMOTION)
            assert (answer.code, answer.ext_fields[PROMOTED]) == (ResponseCode.SUCCESS, "0")
            assert "No accessKey" in ((await wire.ask(RequestCode.PROMOTE)).remark or "")
