"""Scenarios 6, 12, 13, 19, 20, 25, 29, 34 and 49: what brokers are asked, counted by relays in front of them."""

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import start_triomq
from tests.spark.harness import Topics, batches, drain, numbered, read, read_stream
from tests.spark.tap import PULLS, SENDS, OneNameServer, Tap, owner_of
from tests.spark.test_write import source, write
from triomq.client.sync import Admin
from triomq.protocol.command import RemotingCommand
from triomq.spark import deduplicated

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
        self._name_servers = dict(zip(NAMES, (broker.namesrv for broker in brokers), strict=True))
        self.name_server = stack.enter_context(OneNameServer(list(self._name_servers.values())))
        self.topics = stack.enter_context(Topics(self.name_server.address))

    def make(self, name: str, queues: int = QUEUES, brokers: Sequence[str] = NAMES) -> str:
        for broker in brokers:
            with Admin(namesrv=self._name_servers[broker]) as admin:
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


def test_a_stream_reads_all_brokers_also_one_that_comes_later(
    spark: "SparkSession", three: Cluster, checkpoint: Callable[[str], str]
) -> None:
    """Scenarios 20 and 49 for a stream: the new broker's queues are read from their first message."""
    topic = three.make("streamed", 2, NAMES[:2])
    three.topics.send(topic, numbered(400))
    frame = read_stream(spark, three.topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    drain(frame, checkpoint("log"), checkpoint("sink"))
    three.make("streamed", 2)
    three.topics.send(topic, numbered(600, 400))
    drain(frame, checkpoint("log"), checkpoint("sink"))
    rows = spark.read.parquet(checkpoint("sink")).select("broker", "body").collect()
    assert sorted(bytes(row.body) for row in rows) == numbered(1000)
    assert Counter(row.broker for row in rows) == dict(zip(NAMES, (400, 400, 200), strict=True))


def test_rows_go_to_the_other_brokers_while_one_is_away(spark: "SparkSession", three: Cluster) -> None:
    """Scenario 34: it goes away between two sends of the same task; none is lost."""
    topic = three.make("written", 2)
    away = three.taps[NAMES[1]]
    sent_there = itertools.count()

    def leave(request: RemotingCommand, _: int) -> None:
        if request.code in SENDS and next(sent_there) >= 2:
            away.is_cut = True

    away.before = leave
    try:
        write(source(spark, 2000).drop("id"), three.topics, topic=topic, batchMessages=50)
        assert away.is_cut
    finally:
        away.before = lambda *_: None
        away.is_cut = False
    rows = read(spark, three.topics, subscribe=topic).select("broker", "body").collect()
    assert sorted({bytes(row.body) for row in rows}) == numbered(2000)
    assert 0 < sum(row.broker == NAMES[1] for row in rows) < 2000 // 3


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


def test_a_writer_killed_between_two_sends_repeats_rows_with_their_ids(
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 29: the task is tried again; no message is missing, and what is there twice can be told."""
    topics, tap = tapped
    origin, target = topics.make(1), topics.make(2)
    topics.send(origin, numbered(500))
    killed: list[int] = []
    sent = itertools.count()

    def kill(request: RemotingCommand, port: int) -> None:
        if request.code in SENDS and not killed and next(sent) >= 4:
            killed.append(owner_of(port))
            os.kill(killed[0], signal.SIGKILL)

    tap.before = kill
    try:
        frame = read_stream(spark, topics, subscribe=origin, startingOffsets="earliest")
        query = (
            frame.writeStream.format("rocketmq").option("nameServer", topics.namesrv).option("topic", target)
            .option("batchMessages", 50).option("sendsInFlight", 1).option("checkpointLocation", checkpoint("log"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
    finally:
        tap.before = lambda *_: None
    assert len(killed) == 1
    rows = read(spark, topics, subscribe=target)
    found = Counter((bytes(row.body), row.rowId) for row in rows.select("body", "rowId").collect())
    assert sorted(body for body, _ in found) == numbered(500)
    assert found.total() > 500
    assert deduplicated(rows).count() == 500
