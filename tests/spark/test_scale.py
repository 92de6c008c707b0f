"""Scenarios 6, 12, 13, 19, 25 and 49: what brokers are asked, counted by relays in front of them."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import start_triomq
from tests.spark.harness import Topics, batches, drain, numbered, read, read_stream
from tests.spark.tap import PULLS, OneNameServer, Tap
from triomq.client.sync import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("broker-a", "broker-b", "broker-c")
QUEUES = 8
PULL_BATCH = 32
ONE_BY_ONE = 12
WORKERS = 4  # two cores; a query that reads and writes may have two Python workers for each


class Cluster:
    """Three brokers with a relay in front of each, known to one name server."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.taps = {name: stack.enter_context(Tap()) for name in NAMES}
        brokers = []
        for name, tap in self.taps.items():
            place = folder / name
            place.mkdir()
            options = ("--broker-name", name, "--advertise", tap.address)
            brokers.append(stack.enter_context(start_triomq(place, *options)))
            tap.target = brokers[-1].broker
        self._name_servers = [broker.namesrv for broker in brokers]
        self.name_server = stack.enter_context(OneNameServer(self._name_servers))
        self.topics = stack.enter_context(Topics(self.name_server.address))

    def make(self, name: str, queues: int = QUEUES) -> str:
        for address in self._name_servers:
            with Admin(namesrv=address) as admin:
                admin.create_topic(name, queues)
        return name

    def requests(self) -> "Counter[int]":
        return sum((tap.requests for tap in self.taps.values()), Counter())


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path_factory.mktemp("three"))


def test_three_brokers_share_the_pulls_of_one_job(spark: "SparkSession", three: Cluster) -> None:
    """Scenario 49: 24 queues, and in no third of the job does a broker get more than 40 % of the pulls."""
    topic = three.make("shared")
    three.topics.send(topic, numbered(24 * 1600))
    before = {name: tap.pulls() for name, tap in three.taps.items()}
    frame = read(spark, three.topics, subscribe=topic, minPartitions=24)
    rows = frame.select("broker", "queueId", "queueOffset").collect()
    found = Counter((row.broker, row.queueId) for row in rows)
    assert found == {(name, queue): 1600 for name in NAMES for queue in range(QUEUES)}
    assert len({tuple(row) for row in rows}) == 24 * 1600
    pulls = sorted((at, name) for name, tap in three.taps.items() for at in tap.pull_times[before[name] :])
    assert len(pulls) >= 24 * 1600 // PULL_BATCH
    third = len(pulls) // 3
    for begin in range(0, 3 * third, third):
        served = Counter(name for _, name in pulls[begin : begin + third])
        assert max(served.values()) <= 0.4 * third, served


def test_a_stream_reads_all_brokers_and_goes_on_at_those_that_are_left(
    spark: "SparkSession", three: Cluster, checkpoint: Callable[[str], str]
) -> None:
    """Scenario 49 for a stream."""
    topic = three.make("streamed", 2)
    three.topics.send(topic, numbered(600))
    frame = read_stream(spark, three.topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=200)
    drain(frame, checkpoint("log"), checkpoint("sink"))
    rows = spark.read.parquet(checkpoint("sink")).select("broker", "body").collect()
    assert sorted(bytes(row.body) for row in rows) == numbered(600)
    assert Counter(row.broker for row in rows) == dict.fromkeys(NAMES, 200)


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topics, Tap]]:
    with Tap() as tap, start_triomq(tmp_path_factory.mktemp("tapped"), "--advertise", tap.address) as broker:
        tap.target = broker.broker
        with Topics(broker.namesrv) as topics:
            yield topics, tap


def test_planning_asks_the_same_whatever_the_backlog_is(spark: "SparkSession", tapped: tuple[Topics, Tap]) -> None:
    """Scenario 13: at most two requests for each queue; 1 k and 50 k messages."""
    topics, tap = tapped
    asked = []
    for count in (1000, 50_000):
        topic = topics.make(4)
        topics.send(topic, numbered(count))
        frame = read(spark, topics, subscribe=topic)
        before = tap.requests.copy()
        frame.rdd.getNumPartitions()  # makes the plan, and runs no task
        asked.append(tap.requests - before)
    assert asked[0] == asked[1]
    assert 0 < asked[0].total() <= 2 * 4


def test_tags_are_filtered_by_the_broker(spark: "SparkSession", tapped: tuple[Topics, Tap]) -> None:
    """Scenario 6: 30 % match, and less than 60 % of the bytes come."""
    topics, tap = tapped
    topic = topics.make(1)
    for number in range(20):
        topics.send(topic, [body + bytes(1000) for body in numbered(150)], tags="A" if number % 10 < 3 else "B")
    sent = []
    for tags, rows in (("*", 3000), ("A", 900)):
        before = tap.answered_bytes
        assert read(spark, topics, subscribe=topic, tags=tags).count() == rows
        sent.append(tap.answered_bytes - before)
    assert sent[1] < 0.6 * sent[0]


def test_a_limit_stops_the_pulls(spark: "SparkSession", tapped: tuple[Topics, Tap]) -> None:
    """Scenario 12: no more than are in flight and in the chunks of a task."""
    topics, tap = tapped
    topic = topics.make(1)
    topics.send(topic, numbered(40_000))
    before = tap.pulls()
    rows = read(spark, topics, subscribe=topic, batchBytes=65536, fetchBytes=65536).limit(5).collect()
    assert len(rows) == 5
    assert tap.pulls() - before < 40_000 // PULL_BATCH // 4


def test_an_idle_stream_asks_little(
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 19, the requests: no trigger, no data; half of the 10 seconds."""
    topics, tap = tapped
    topic = topics.make(8)
    frame = read_stream(spark, topics, subscribe=topic)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint("log")).start()
    try:
        deadline = time.monotonic() + 60
        while query.lastProgress is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before, began = tap.requests.total(), time.monotonic()
        query.awaitTermination(5)
        asked, took_s = tap.requests.total() - before, time.monotonic() - began
    finally:
        query.stop()
    assert 0 < asked <= 6 * took_s


def test_a_micro_batch_of_one_message_costs_one_pull_and_no_connection(
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 25, what can be counted; ``python -m bench spark`` has the times."""
    topics, tap = tapped
    topic = topics.make(1)
    topics.send(topic, numbered(ONE_BY_ONE))
    connections, before = tap.connections, tap.requests.copy()
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1)
    query = drain(frame.select("body"), checkpoint("log"), checkpoint("sink"))
    assert batches(query) == [1] * ONE_BY_ONE
    asked = tap.requests - before
    assert sum(asked[code] for code in PULLS) == ONE_BY_ONE
    assert asked.total() <= 2 * ONE_BY_ONE + 4  # ends of queues for each batch, and those of the start
    assert tap.connections - connections <= 1 + WORKERS  # the stream's reader and each worker
