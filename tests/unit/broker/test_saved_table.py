"""The tables of ``config/``: written, read again, read as RocketMQ writes them, refused with other content."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.unit.broker.recording import Clock, MakeBroker, Peer
from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.saved_table import SavedTable
from triomq.broker.server import Broker
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicConfig
from triomq.protocol.errors import StoreLayoutError


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
