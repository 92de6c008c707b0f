"""The tables of ``config/``: written soon after they change, read again, read as RocketMQ writes them."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.unit.broker.recording import Clock, MakeBroker, Peer, make_steps_short
from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.saved_table import SavedTable
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.errors import StoreError, StoreLayoutError


def key_values(broker: Broker) -> KvTable:
    return next(table for table in broker.table_saving.tables if isinstance(table, KvTable))


TABLES: Final[dict[str, Callable[[Broker], SavedTable]]] = {
    "topics": lambda broker: broker.topics,
    "subscriptionGroup": lambda broker: broker.groups.settings,
    "consumerOffset": lambda broker: broker.groups.offsets,
    "kvConfig": key_values,
    "delayOffset": lambda broker: broker.delayed.schedule.offsets,
    "timerProgress": lambda broker: broker.delayed.timer.progress,
}


def load(broker: Broker, name: str, content: bytes) -> dict[str, Any]:
    path = broker.config.store.root / "config" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    table = TABLES[name](broker)
    table.load()
    return table.to_json()


def test_tables_survive_a_restart(make_broker: MakeBroker, clock: Clock) -> None:
    broker = make_broker()
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=4))
    broker.groups.settings.put(SubscriptionGroupConfig(group_name="G", consume_enable=False))
    broker.groups.settings.put(SubscriptionGroupConfig(group_name="TOOLS_CONSUMER", retry_max_times=1))
    for delay in ("DELAY\x011", "TIMER_DELAY_SEC\x011"):
        Peer(broker).put("U", i=delay)
    clock.now_ms += 1000
    broker.delayed.schedule.deliver(clock.now_ms)
    broker.delayed.timer.deliver(clock.now_ms)
    broker.groups.offsets.commit("G", "U", 0, 1)
    broker.groups.offsets.commit("G", "U", 1, 0)
    key_values(broker).put("N", "one", "1 ünd")
    key_values(broker).put("empty", "gone", "")
    key_values(broker).delete("empty", "gone")
    assert all(table(broker).is_dirty for table in TABLES.values())
    before = {name: table(broker).to_json() for name, table in TABLES.items()}
    assert before["consumerOffset"] == {"offsetTable": {"U@G": {0: 1, 1: 0}}}
    assert before["kvConfig"] == {"configTable": {"N": {"one": "1 ünd"}, "empty": {}}}
    assert before["delayOffset"] == {"offsetTable": {1: 1}}
    assert before["timerProgress"] == {
        "timeMs": clock.now_ms, "queueOffset": 0, "firstOffset": 1, "earlier": [],
    }  # fmt: skip
    broker.save_tables()
    assert not any(table(broker).is_dirty for table in TABLES.values())
    again = make_broker()
    assert {name: table(again).to_json() for name, table in TABLES.items()} == before


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("consumerOffset", b'{"offsetTable":{"T@G":{0:5,1:9},"U@H":{3:1}}}', {"T@G": {0: 5, 1: 9}, "U@H": {3: 1}}),
        ("delayOffset", b'{\n\t"offsetTable":{1:1,3:-2\n\t}\n}', {1: 1, 3: 0}),
        ("kvConfig", b'{\n\t"configTable":{"ORDER":{"T":"broker-a:4"}\n\t}\n}', {"ORDER": {"T": "broker-a:4"}}),
    ],
)
def test_files_of_rocketmq_are_read(broker: Broker, name: str, content: bytes, found: object) -> None:
    assert list(load(broker, name, content).values()) == [found]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, b"[1]") for name in TABLES),
        ("topics", b'{"topicConfigTable":[1]}'),
        ("topics", b'{"topicConfigTable":{"T":1}}'),
        ("topics", b'{"topicConfigTable":{"T":{"perm":"x"}}}'),
        ("subscriptionGroup", b'{"subscriptionGroupTable":{"G":"x"}}'),
        ("consumerOffset", b'{"offsetTable":{"T@G":7}}'),
        ("consumerOffset", b'{"offsetTable":{"T@G":{"x":1}}}'),
        ("kvConfig", b'{"configTable":{"N":"x"}}'),
        ("delayOffset", b'{"offsetTable":{"x":1}}'),
        ("delayOffset", b'{"offsetTable":{1:{}}}'),
        ("timerProgress", b"{}"),
        ("timerProgress", b'{"timeMs":1,"queueOffset":"x","firstOffset":2}'),
    ],
)
def test_other_content_is_refused_by_name(broker: Broker, name: str, content: bytes) -> None:
    with pytest.raises(StoreLayoutError, match=rf"{name}\.json does not hold its table"):
        load(broker, name, content)


@pytest.fixture(autouse=True)
def saves(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, bytes]]:
    """When the topics were written, and what; threads take no time, as a clock that jumps does not wait for them."""
    written: list[tuple[float, bytes]] = []

    async def run_sync(write: Callable[[list[bytes]], None], pieces: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        write(pieces)
        if write == broker.topics.write:
            written.append((trio.current_time(), b"".join(pieces)))

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return written


@asynccontextmanager
async def saving(broker: Broker) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.table_saving.run, broker.config.persist_offsets_interval_s)
        yield
        nursery.cancel_scope.cancel()


async def test_first_new_topic_is_saved_at_once(
    broker: Broker, saves: list[tuple[float, bytes]], autojump_clock: MockClock
) -> None:
    async with saving(broker):
        await trio.sleep(3)
        saves.clear()
        began = trio.current_time()
        for name in ("first", "second", "third"):
            broker.topics.put(TopicConfig(topic_name=name))
            await trio.sleep(0.01)
        await trio.sleep(10)
    assert [time - began for time, _ in saves] == [0, pytest.approx(0.1)]
    assert b"first" in saves[0][1]
    assert b"second" in saves[1][1]
    assert b"third" in saves[1][1]


async def test_long_encoding_makes_saves_rarer(
    broker: Broker,
    saves: list[tuple[float, bytes]],
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = broker.topics.pieces

    def pieces_slowly() -> Iterator[bytes]:
        autojump_clock.jump(0.05)
        return pieces()

    async with saving(broker):
        await trio.sleep(3)
        saves.clear()
        monkeypatch.setattr(broker.topics, "pieces", pieces_slowly)
        for number in range(100):
            broker.topics.put(TopicConfig(topic_name=f"topic-{number}"))
            await trio.sleep(0.05)
        await trio.sleep(10)
    times = [time for time, _ in saves]
    assert len(times) > 3
    assert [after - before for before, after in pairwise(times)] == [pytest.approx(1.05)] * (len(times) - 1)
    assert b"topic-99" in saves[-1][1]


async def test_change_during_long_encoding_is_saved_next(
    broker: Broker, saves: list[tuple[float, bytes]], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triomq.storage.files.json_table._MEMBERS_AT_ONCE", 8)
    make_steps_short(broker)
    broker.topics.put(TopicConfig(topic_name="goes"))
    async with saving(broker):
        await trio.sleep(3)
        saves.clear()
        broker.topics.put(TopicConfig(topic_name="first"))
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert saves == []
        broker.topics.delete("goes")
        broker.topics.put(TopicConfig(topic_name="later"))
        await trio.sleep(10)
    assert [content.count(b"later") > 0 for _, content in saves] == [False, True]
    assert all(b"goes" not in content and b"first" in content for _, content in saves)
    broker.topics.load()
    assert broker.topics.get("later") is not None


async def test_group_is_saved_before_offset(broker: Broker, autojump_clock: MockClock) -> None:
    config = broker.config.store.root / "config"
    async with saving(broker):
        await trio.sleep(3)
        broker.groups.settings.put(SubscriptionGroupConfig(group_name="G"))
        await trio.sleep(0.1)
        assert b'"G"' in (config / "subscriptionGroup.json").read_bytes()
        broker.groups.offsets.commit("G", "T", 0, 7)
        await trio.sleep(5)
    assert b"T@G" in (config / "consumerOffset.json").read_bytes()


async def test_failed_table_save_is_retried_every_second(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    tries = []

    def refuse(_pieces: list[bytes]) -> None:
        tries.append(trio.current_time())
        raise StoreError("no room")

    monkeypatch.setattr(broker.topics, "write", refuse)
    began = trio.current_time()
    broker.groups.offsets.commit("G", "T", 0, 7)
    async with saving(broker):
        await trio.sleep(2.5)
    assert [time - began for time in tries] == [0, pytest.approx(1), pytest.approx(2)]
    assert (broker.topics.is_dirty, broker.groups.offsets.is_dirty) == (True, False)
    assert b"T@G" in (broker.config.store.root / "config" / "consumerOffset.json").read_bytes()
    messages = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert messages == ["tables are not saved for now: no room"]


async def test_pending_saves_are_completed_at_shutdown(
    broker: Broker, saves: list[tuple[float, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = broker.topics.write
    with trio.CancelScope() as stopping:

        def write_while_it_stops(pieces: list[bytes]) -> None:
            stopping.cancel()
            write(pieces)

        monkeypatch.setattr(broker.topics, "write", write_while_it_stops)
        async with saving(broker):
            broker.topics.put(TopicConfig(topic_name="first"))
            broker.groups.offsets.commit("G", "first", 0, 5)
            await trio.sleep_forever()
    assert (broker.topics.is_dirty, broker.groups.offsets.is_dirty) == (False, True)
    broker.save_tables()
    assert b"first@G" in (broker.config.store.root / "config" / "consumerOffset.json").read_bytes()
