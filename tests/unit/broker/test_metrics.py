"""The metrics of a broker: each has its name and value, and disappears with its subject."""

import re
from pathlib import Path

import pytest
import trio

from tests.integration.broker_wire import pull_fields
from tests.unit.broker.recording import Clock, MakeBroker, Peer, make_steps_short, set_disk_full
from tests.unit.broker.scrape import SERVER, Scrape, join, make_busy, of, parse, scrape
from triomq.broker.addresses import Address
from triomq.broker.metrics import BrokerMetrics
from triomq.broker.server import Broker
from triomq.broker.statistics.counters import Events
from triomq.broker.statistics.exposition import METRICS
from triomq.protocol.bodies.client import ConsumerData
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.storage.config import Durability

ROOT = Path(__file__).resolve().parents[3]
NAMES = "lag_messages", "inflight_messages", "ready_messages", "queueing_latency_milliseconds"
LAG, AGE = "rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency_milliseconds"


@pytest.fixture
async def busy(broker: Broker, clock: Clock) -> Broker:
    make_busy(broker, clock, lambda address: Peer(broker, address))
    return broker


async def test_series_of_a_slave_have_its_id(make_broker: MakeBroker) -> None:
    slave = make_broker(role="slave", broker_id=3, ha_master=Address("192.0.2.1", 10912))
    found = parse(await BrokerMetrics(slave).metrics(), {**SERVER, "broker_id": "3"})
    assert of(found, "triomq_role", role="slave") == [1]


async def test_the_metrics_are_right(busy: Broker, clock: Clock) -> None:
    found = await scrape(busy)

    def value(name: str, **labels: str) -> float:
        (only,) = of(found, name, **labels)
        return only

    pair = {"topic": "T", "consumer_group": "G", "is_system": "false"}
    assert value("rocketmq_messages_in_total", topic="T", is_system="false") == 3  # with the committed one
    assert value("rocketmq_throughput_in_total", topic="T") == len("hellohello, worldhello")
    assert value("rocketmq_messages_in_total", topic="SCHEDULE_TOPIC_XXXX", is_system="true") == 1
    assert value("rocketmq_messages_out_total", **pair) == 1
    assert value("triomq_sent_back_messages_total", topic="T", consumer_group="G") == 1
    assert value("rocketmq_send_to_dlq_messages_total", consumer_group="G") == 1
    assert (value(LAG, is_retry="false", **pair), value(AGE, is_retry="false", **pair)) == (2, 80_000)
    assert value("rocketmq_consumer_connections", consumer_group="G", consume_mode="push") == 2
    assert value("rocketmq_producer_connections", version="v4_9_7") == 2
    assert value("rocketmq_commit_messages_total") == value("rocketmq_rollback_messages_total") == 1
    assert value("rocketmq_half_messages") == value("rocketmq_timing_messages") == 1
    assert value("triomq_delayed_messages", level="3") == 1
    for name in ("triomq_stalled_queues", "triomq_duplicate_client_ids", "triomq_different_subscriptions"):
        assert value(name, consumer_group="G") == 1
    assert of(found, "triomq_missing_topics", consumer_group="MISSING") == of(found, "triomq_missing_topics") == [1]
    assert value("triomq_table_size", table="topics") == len(busy.topics.configs)
    assert value("triomq_table_limit", table="topics") == busy.config.max_topics
    assert value("triomq_pull_seconds_count") == value("triomq_pull_seconds_bucket", le="+Inf") == 1
    assert value("rocketmq_storage_message_reserve_time_milliseconds") == 80_000


async def test_deleted_subjects_have_no_metrics(busy: Broker, peer: Peer) -> None:
    def told(found: Scrape, name: str, value: str) -> bool:
        return any((name, value) in labels for rows in found.values() for labels in rows)

    found = await scrape(busy)
    assert told(found, "topic", "T")
    assert told(found, "consumer_group", "G")
    for group in list(busy.groups.consumers):
        for connection in list(group.members):
            busy.groups.forget(connection, closed_by_peer=True)
    peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    async with trio.open_nursery() as busy.worker.nursery:
        peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    busy.housekeeping.stalls.scan(1000)
    found = await scrape(busy)
    assert not told(found, "topic", "T")
    assert not told(found, "consumer_group", "G")


async def test_a_group_lags_from_its_subscription_on(broker: Broker, peer: Peer) -> None:
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    peer.put("T")
    assert of(await scrape(broker), LAG) == []
    join(peer, "G", "T")
    assert of(await scrape(broker), LAG, topic="T", consumer_group="G") == [1]
    broker.groups.commit("G", "T", 0, 1)
    found = await scrape(broker)
    assert (of(found, LAG, topic="T"), of(found, AGE, topic="T")) == ([0], [0])
    join(peer, "G", "U")  # instead of T
    assert of(await scrape(broker), LAG, topic="T") == []


async def test_messages_in_flight_are_pulled_but_not_consumed(broker: Broker, peer: Peer, clock: Clock) -> None:
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    for queue_id in (0, 0, 0, 1, 1):
        peer.put("T", queue_id=queue_id)
        clock.now_ms += 1000
    join(peer, "G", "T")

    async def told() -> list[list[float]]:
        found = await scrape(broker)
        return [
            of(found, f"rocketmq_consumer_{name}", topic="T", consumer_group="G", is_retry="false") for name in NAMES
        ]

    def pull(queue_id: int, queue_offset: int, count: int) -> None:
        fields = pull_fields("T", queue_offset, queue_id, maxMsgNums=count)
        assert peer.get(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.SUCCESS

    assert await told() == [[5], [0], [5], [5000]]
    pull(0, 0, 2)
    assert await told() == [[5], [2], [3], [3000]]
    broker.groups.commit("G", "T", 0, 1)
    pull(1, 0, 32)
    assert await told() == [[4], [3], [1], [3000]]
    broker.groups.commit("G", "T", 0, 3)  # a tool: messages pulled earlier no longer count
    assert await told() == [[2], [2], [0], [0]]
    async with trio.open_nursery() as broker.worker.nursery:
        peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    peer.put("T")
    assert await told() == [[1], [0], [1], [0]]


async def test_names_of_peers_cannot_break_the_text(broker: Broker, peer: Peer) -> None:
    group = 'G"} 1\nfake{x="\\'
    broker.groups.consumers.heartbeat(peer.as_connection, "c1", ConsumerData(group))
    found = await scrape(broker)
    assert of(found, "rocketmq_consumer_connections", consumer_group=group) == [1]
    assert "fake" not in found


async def test_other_tasks_run_while_the_metrics_are_made(busy: Broker) -> None:
    make_steps_short(busy)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await BrokerMetrics(busy).metrics()
        nursery.cancel_scope.cancel()
    assert turns > 10


async def test_health_checks_disk_and_readiness_everything(busy: Broker) -> None:
    metrics = BrokerMetrics(busy)
    assert metrics.not_ready() == "the broker starts"
    busy.is_serving = True
    assert (metrics.failure(), metrics.not_ready()) == ("", "")
    set_disk_full(busy.store, is_full=True)
    assert metrics.failure() == ""
    assert "full" in metrics.not_ready()
    assert of(await scrape(busy), "triomq_store_refuses") == [1]
    set_disk_full(busy.store, is_full=False)
    busy.statistics.flushes.begin("somebody", trio.current_time() - 31)
    assert metrics.not_ready() == metrics.failure() == "a flush has not ended for 31 s"
    busy.statistics.flushes.end("somebody", trio.current_time())
    busy.stopping.set()
    assert (metrics.failure(), metrics.not_ready()) == ("", "the broker stops")


@pytest.mark.parametrize("durability", Durability)
async def test_sends_are_timed(make_broker: MakeBroker, durability: Durability) -> None:
    broker = make_broker({"durability": durability})
    peer = Peer(broker)
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    for _ in range(2):
        peer.ask(RequestCode.SEND_MESSAGE_V2, {**dict.fromkeys("defgh", 0), "a": "P", "b": "T", "c": "TBW102"})
    if broker.group_commit is not None:
        broker.store.flush()
        broker.group_commit._answer(broker.store.commit_log.flushed_offset)
    assert of(await scrape(broker), "triomq_send_seconds_count") == [2]


# --- contracts with others ----------------------------------------------------------------------------------


def used_in(text: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\b(?:rocketmq|triomq|process)_\w+", text))


@pytest.mark.parametrize("name", ["deploy/grafana/triomq.json", "deploy/prometheus/triomq.rules.yml"])
async def test_boards_and_rules_use_existing_metrics(busy: Broker, name: str) -> None:
    expressions = re.findall(r'"?expr"?: (.+)', (ROOT / name).read_text(encoding="utf-8"))
    used = {metric for expression in expressions for metric in used_in(expression)}
    assert len(expressions) > 10
    assert used <= (await scrape(busy)).keys()


async def test_documents_describe_each_metric_of_a_scrape(busy: Broker) -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    assert [(name, meaning) for name, _, _, meaning in rows] == list(METRICS.items())
    scraped = await BrokerMetrics(busy).metrics()
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", scraped.decode(), re.MULTILINE)
    assert sorted(kinds) == sorted((name, kind) for name, kind, _, _ in rows)
    expected = {
        f"{name}{part}": set(re.findall(r"`(\w+)`", labels))
        for name, kind, labels, _ in rows
        for part in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    found = parse(scraped)
    assert found.keys() == expected.keys()
    for series, labelled in found.items():
        assert all({name for name, _ in labels} - {"le"} == expected[series] for labels in labelled), series
    events = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", text, re.MULTILINE)
    assert events == [(name, row.__metadata__[0]) for name, row in Events.__annotations__.items()]
