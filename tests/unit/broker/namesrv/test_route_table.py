"""The route table against a model that keeps one row for each address and topic, and the key-value table."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.broker.recording import Clock
from triomq.broker.namesrv import route_table
from triomq.broker.namesrv.kv_table import MAX_CHARACTERS, MAX_TEXTS, KvTable
from triomq.broker.namesrv.route_table import LEASE_MS, Master, RouteTable
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.bodies.route import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader
from triomq.storage.files.json_table import JsonTable

OWN = "127.0.0.1:10911"


class Link:
    """A connection."""

    def __init__(self, peer_ip: str = "10.0.0.1", *, is_local: bool = False) -> None:
        self.peer_ip = peer_ip
        self.is_local = is_local

    def is_from_host_of(self, other: "Link") -> bool:
        return self.peer_ip == other.peer_ip or (self.is_local and other.is_local)

    def close(self, reason: str) -> None:
        raise AssertionError("the table closes nothing")


def header(name: str = "a", broker_id: int = 0, address: str = "10.0.0.1:1") -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(name, address, "C", broker_id, f"ha-{address}")


def body(counter: int, **queues: int) -> TopicConfigSerializeWrapper:
    topics = {name: TopicConfig(name, count, count) for name, count in queues.items()}
    return TopicConfigSerializeWrapper(topics, DataVersion(0, counter))


@dataclass
class Row:
    """A lease, as the model keeps it."""

    address: str
    version: int
    link: Link
    renewed_ms: int


@dataclass
class ModelBroker:
    rows: dict[int, Row] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    perms: dict[str, int] = field(default_factory=dict)


names = st.sampled_from(("a", "b"))
ids = st.integers(0, 2)
addresses = st.sampled_from(("h:1", "h:2", "h:3"))
topics = st.sampled_from(("T", "U"))
links = st.integers(0, 4)


class RouteTableMachine(RuleBasedStateMachine):
    """Brokers come, change and go in any order."""

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.table = RouteTable(self.clock, BrokerStatistics(0))
        self.table.add_own("C", "own", 0, {"T": TopicConfig("T", 1, 1)})
        here = [Link("127.0.0.1", is_local=True), Link("10.0.0.9", is_local=True)]
        self.links = [Link(), Link(), Link("10.0.0.2"), *here]
        self.brokers: dict[str, ModelBroker] = {}

    @rule(
        name=names, broker_id=ids, address=addresses, link=links,
        version=st.integers(1, 3), queues=st.dictionaries(topics, st.integers(1, 4)),
    )  # fmt: skip
    def register(
        self, name: str, broker_id: int, address: str, link: int, version: int, queues: dict[str, int]
    ) -> None:
        broker = self.brokers.get(name, ModelBroker())
        before, owner = broker.rows.get(broker_id), self.links[link]
        for held in [row for i, row in broker.rows.items() if i == broker_id or row.address == address]:
            if self.clock.now_ms - held.renewed_ms <= LEASE_MS and not owner.is_from_host_of(held.link):
                with pytest.raises(RefusedError, match="from another host"):
                    self.table.register(header(name, broker_id, address), body(version, **queues), owner)
                return
        self.brokers[name] = broker
        changed = before is None or (before.address, before.version) != (address, version)
        broker.rows = {i: row for i, row in broker.rows.items() if row.address != address}
        broker.rows[broker_id] = Row(address, version, owner, self.clock.now_ms)
        for topic, count in queues.items():
            if broker_id == 0 and (changed or topic not in broker.queues):
                broker.queues[topic] = count
                broker.perms[topic] = 6
        master = self.table.register(header(name, broker_id, address), body(version, **queues), owner)
        row = broker.rows.get(0)
        assert master == (None if broker_id == 0 or row is None else Master(row.address, f"ha-{row.address}"))

    @rule(name=names, address=addresses, broker_id=ids)
    def unregister(self, name: str, address: str, broker_id: int) -> None:
        self.table.unregister(BrokerRequestHeader(name, address, "C", broker_id))
        self._drop(lambda found, row: found == name and row.address == address)

    @rule(link=links)
    def lose(self, link: int) -> None:
        self.table.lost(self.links[link])
        self._drop(lambda _, row: row.link is self.links[link])

    @rule(name=names, address=addresses, version=st.integers(1, 3))
    def query_version(self, name: str, address: str, version: int) -> None:
        known = self.table.version_of(BrokerRequestHeader(name, address, "C", 0), DataVersion(0, version))
        broker = self.brokers.get(name, ModelBroker())
        row = next((row for row in broker.rows.values() if row.address == address), None)
        assert known == (None if row is None else DataVersion(0, row.version))
        if row is not None and row.version == version:
            row.renewed_ms = self.clock.now_ms

    @rule(passed_ms=st.sampled_from((1, LEASE_MS // 2, LEASE_MS)))
    def expire(self, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms
        silent = self._drop(lambda _, row: self.clock.now_ms - row.renewed_ms > LEASE_MS)
        assert {id(owner) for owner in self.table.expire()} == {id(row.link) for row in silent}

    @rule(name=names, is_writable=st.booleans())
    def set_writable(self, name: str, is_writable: bool) -> None:
        broker = self.brokers.get(name, ModelBroker())
        assert self.table.set_writable(name, is_writable=is_writable) == len(broker.queues)
        for topic in broker.queues:
            broker.perms[topic] = 6 if is_writable else broker.perms[topic] & ~2

    @rule(topic=topics, cluster=st.sampled_from(("C", "other", None)))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)
        if cluster != "other":
            for broker in self.brokers.values():
                broker.queues.pop(topic, None)

    def _drop(self, ends: Callable[[str, Row], bool]) -> list[Row]:
        ended = [row for name, broker in self.brokers.items() for row in broker.rows.values() if ends(name, row)]
        for broker in self.brokers.values():
            broker.rows = {i: row for i, row in broker.rows.items() if not any(row is each for each in ended)}
        self.brokers = {name: broker for name, broker in self.brokers.items() if broker.rows}
        return ended

    @invariant()
    def routes_are_those_of_the_model(self) -> None:
        for topic in ("T", "U"):
            expected = {
                name: (broker.queues[topic], broker.perms[topic], {i: row.address for i, row in broker.rows.items()})
                for name, broker in self.brokers.items()
                if topic in broker.queues
            }
            if topic == "T":
                expected["own"] = 1, 6, {0: OWN}
            route = self.table.route(topic, OWN)
            found = {}
            if route is not None:
                addresses = {data.broker_name: data.broker_addrs for data in route.broker_datas}
                found = {
                    data.broker_name: (data.read_queue_nums, data.perm, addresses[data.broker_name])
                    for data in route.queue_datas
                }
                assert len(addresses) == len(found) == len(route.broker_datas)
            assert found == expected

    @invariant()
    def the_cluster_is_that_of_the_model(self) -> None:
        info = self.table.cluster_info(OWN)
        assert set(info.cluster_addr_table) == {"C"}
        assert set(info.cluster_addr_table["C"]) == set(info.broker_addr_table) == {*self.brokers, "own"}
        wanted = {"T"} | {topic for broker in self.brokers.values() for topic in broker.queues}
        assert set(self.table.topics()) == set(self.table.topics("C")) == wanted
        assert self.table.topics("other") == []


TestRouteTable = RouteTableMachine.TestCase


@pytest.fixture
def table(clock: Clock) -> RouteTable:
    return RouteTable(clock, BrokerStatistics(0))


def queues(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic, OWN)
    return {} if route is None else {data.broker_name: data.read_queue_nums for data in route.queue_datas}


def test_name_of_own_broker_is_refused(table: RouteTable) -> None:
    table.add_own("C", "a", 0, {"T": TopicConfig("T", 1, 1)})
    with pytest.raises(RefusedError, match="broker name a belongs"):
        table.register(header("a"), body(1, T=4), Link())
    with pytest.raises(RefusedError, match="broker name a belongs"):
        table.register(header("a", 1, ""), body(1, T=4), Link())  # the table has no address for it
    table.register(header("a", 1, "10.0.0.9:1"), body(1, T=4), Link())  # a slave of it
    route = table.route("T", OWN)
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: OWN, 1: "10.0.0.9:1"}
    assert queues(table, "T") == {"a": 1}


def test_topics_of_own_broker_appear_at_once(table: RouteTable) -> None:
    own = {"T": TopicConfig("T", 1, 1)}
    table.add_own("C", "a", 0, own)
    own["U"] = TopicConfig("U", 2, 2)
    assert queues(table, "U") == {"a": 2}
    assert table.set_writable("a", is_writable=False) == 2
    route = table.route("U", OWN)
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert own["U"].perm == 6
    table.delete_topic("U")
    assert queues(table, "U") == {"a": 2}


def test_first_5x_slave_registers_topics_without_master(table: RouteTable) -> None:
    slave = header("a", 1, "10.0.0.9:1")
    table.register(slave, body(1, T=4), Link())
    assert queues(table, "T") == {}
    slave.enable_acting_master = False
    table.register(slave, body(1, T=4), Link())
    assert queues(table, "T") == {"a": 4}


def test_brokers_with_one_name_are_reported(table: RouteTable, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def names() -> list[tuple[str, list[str]]]:
        return [(each.broker_name, each.broker_addrs) for each in table.cluster_info(OWN).name_conflicts or ()]

    for address in ("h:1", "h:1", "h:2", "h:2"):  # it restarts elsewhere
        table.register(header(address=address), body(1), Link())
    assert not names()
    for _ in range(3):
        for address in ("h:1", "h:2", "h:3"):
            table.register(header(address=address), body(1), Link())
    assert names() == [("a", ["h:1", "h:2", "h:3"])]
    assert caplog.text.count("two brokers have one name broker=a id=0") == 1
    clock.now_ms += LEASE_MS
    assert not names()
    table.register(header("b", address="h:1"), body(1), Link())
    with pytest.raises(RefusedError, match=r"broker name b is taken .*from another host"):
        table.register(header("b", address="h:2"), body(1), Link("10.0.0.2"))
    assert names() == [("b", ["h:1", "h:2"])]
    table.add_own("C", "own", 0, {})
    with pytest.raises(RefusedError):
        table.register(header("own", address="h:4"), body(1), Link())
    assert names()[1:] == [("own", [OWN, "h:4"])]


def test_promoted_master_replaces_former_one_only(table: RouteTable, clock: Clock) -> None:
    def registered(address: str, promoted_ms: int | None, link: Link, broker_id: int = 0) -> bool:
        sent = header("a", broker_id, address)
        sent.promoted_ms = promoted_ms
        with suppress(RefusedError):
            table.register(sent, body(1), link)
        return table.cluster_info(OWN).broker_addr_table["a"].broker_addrs.get(broker_id) == address

    one, two = Link("10.0.0.1"), Link("10.0.0.2")
    assert registered("one", None, one)
    assert registered("two", None, two, 1)
    assert registered("two", 70, two)
    for link in (one, two):  # also from the same host
        assert not registered("one", None, link)
        assert not registered("one", 69, link)
    assert registered("one", None, one, 1)
    assert registered("one", 71, one)
    assert not registered("two", 70, two)
    clock.now_ms += LEASE_MS + 1
    assert registered("two", 70, two)


def test_missing_brokers_are_listed(table: RouteTable, clock: Clock) -> None:
    def missing() -> list[tuple[str, int, str, int, str]]:
        found = table.cluster_info(OWN).missing_brokers or ()
        return [(each.broker_name, each.broker_id, each.broker_addr, each.seconds_ago, each.reason) for each in found]

    link = Link()
    for name in ("in-order", "lost", "back"):
        table.register(header(name), body(1), link)
    table.unregister(header("in-order"))
    table.lost(link)
    clock.now_ms += 7000
    table.register(header("back"), body(1), Link())
    assert missing() == [("lost", 0, "10.0.0.1:1", 7, "its connection ended")]
    for number in range(route_table.MAX_MISSING):
        table.register(header(f"b{number}"), body(1), link)
    table.lost(link)
    assert len(missing()) == route_table.MAX_MISSING
    assert "lost" not in [name for name, *_ in missing()]
    clock.now_ms += route_table.MISSED_MS
    assert not missing()


def test_size_is_limited(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "MAX_ADDRESSES", 2)
    monkeypatch.setattr(route_table, "MAX_TOPICS", 3)
    table.register(header("a"), body(1, T=1, U=1), Link())
    with pytest.raises(RefusedError, match="name server is full"):
        table.register(header("b"), body(1, T=1, U=1), Link())
    table.register(header("b"), body(1, T=1), Link())
    with pytest.raises(RefusedError, match="name server is full"):
        table.register(header("b", 1, "10.0.0.9:1"), body(1), Link())
    assert queues(table, "T") == {"a": 1, "b": 1}
    assert queues(table, "U") == {"a": 1}


def test_topics_are_selected_by_their_system_flag(table: RouteTable) -> None:
    sent = body(1, T=1, U=1)
    sent.topic_config_table["U"].topic_sys_flag = 3
    table.register(header(), sent, Link())
    assert table.topics(wanted=lambda flag: flag == 3) == ["U"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "kvConfig.json"


def opened(path: Path) -> KvTable:
    table = KvTable(JsonTable(path), on_change=lambda: None)
    table.load()
    return table


def test_only_changes_mark_the_table_dirty(path: Path) -> None:
    table = opened(path)
    table.delete("N", "none")
    assert not table.is_dirty
    table.put("N", "key", "value")
    assert table.is_dirty


def test_key_value_table_is_limited(path: Path) -> None:
    table = opened(path)
    table.put("N", "key", "v" * (MAX_CHARACTERS - 4))
    with pytest.raises(RefusedError, match="key-value table is full"):
        table.put("N", "key2", "")
    table.put("N", "key", "short")
    for number in range(MAX_TEXTS // 2 - 2):
        table.put("N", str(number), "")
    with pytest.raises(RefusedError, match="key-value table is full"):
        table.put("N", "one more", "")
    assert table.get("N", "one more") is None
