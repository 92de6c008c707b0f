"""Scenarios 12, 13 and 16 with a million messages that were there before the query: what is asked does not grow."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import expr

from tests.backlog import write_backlog
from tests.processes import start_triomq
from tests.spark.harness import Topics, batches, drain, read, read_stream, wait_until
from tests.spark.tap import Tap
from triomq.spark.options.options import Use, parse_options
from triomq.spark.source import BatchReader, RangesPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLION = 1_000_000
LONG, SHORT = "million", "thousand"
QUEUES = 4
PULL_BATCH = 32
PLAN_S = 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a store has a long and a short topic."""
    folder = tmp_path_factory.mktemp("backlog")
    for topic, messages in ((LONG, MILLION), (SHORT, 1000)):
        write_backlog(folder / "store", topic, QUEUES, messages // QUEUES)
    return folder


@pytest.fixture
def topics(folder: Path) -> Iterator[Topics]:
    with start_triomq(folder, "--no-index") as broker, Topics(broker.namesrv) as topics:
        yield topics


@pytest.fixture
def tapped(folder: Path) -> Iterator[tuple[Topics, Tap]]:
    with Tap() as tap, start_triomq(folder, "--no-index", "--advertise", tap.address) as broker:
        tap.target = broker.broker
        with Topics(broker.namesrv) as topics:
            yield topics, tap


def test_planning_asks_the_same_whatever_the_backlog_is(tapped: tuple[Topics, Tap]) -> None:
    """Scenario 13: at most two requests for each queue, and no time that one would notice."""
    topics, tap = tapped
    asked, times = [], []
    for topic, messages in 5 * ((SHORT, 1000), (LONG, MILLION)):
        options = parse_options({"nameServer": topics.namesrv, "subscribe": topic}, Use.BATCH_READ)
        before, began = tap.requests.copy(), time.monotonic()
        partitions = BatchReader(options, ("body",)).partitions()
        times.append(time.monotonic() - began)
        asked.append(tap.requests - before)
        ranges = [one for partition in partitions if isinstance(partition, RangesPartition) for one in partition.ranges]
        assert sum(one.size for one in ranges) == messages
    assert all(one == asked[0] for one in asked)
    assert 0 < asked[0].total() <= 2 * QUEUES
    assert min(times) < PLAN_S


def test_a_limit_stops_the_pulls(spark: "SparkSession", tapped: tuple[Topics, Tap]) -> None:
    """Scenario 12: a small part of the backlog is pulled: until Spark tells the worker, which takes it some moments.

    Once it is warm it takes less than 5 s, also where there is much else to do.
    """
    topics, tap = tapped

    def take_five_s() -> float:
        before, began = tap.pulls(), time.monotonic()
        rows = read(spark, topics, subscribe=LONG).limit(5).collect()
        took_s = time.monotonic() - began
        assert [row.queueOffset for row in rows] == list(range(5))
        assert tap.pulls() - before < MILLION // PULL_BATCH // 10
        return took_s

    wait_until(lambda: take_five_s() < 5)


def test_a_micro_batch_pulls_no_more_than_its_limit(
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """The first one as well, and however long the query is behind."""
    topics, tap = tapped
    before = tap.pulls()
    frame = read_stream(spark, topics, subscribe=LONG, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint("log")).start()
    try:
        wait_until(lambda: len(batches(query)) >= 3, 120)
    finally:
        query.stop()
    assert set(batches(query)) == {1000}
    pulls_of_one = QUEUES * -(-1000 // QUEUES // PULL_BATCH)
    assert tap.pulls() - before <= (len(batches(query)) + 1) * pulls_of_one  # one was perhaps under way


@pytest.mark.slow
def test_a_long_backlog_is_read_in_bounded_micro_batches(
    spark: "SparkSession", topics: Topics, checkpoint: Callable[[str], str]
) -> None:
    """Scenario 16: every message once, all queues advance in each of them."""
    frame = read_stream(spark, topics, subscribe=LONG, startingOffsets="earliest", maxOffsetsPerTrigger=300_000)
    shown = "cast(substring(cast(body as string), 1, 8) as bigint) = queueOffset as is_right"
    query = drain(frame.selectExpr("queueId", "queueOffset", shown), checkpoint("log"), checkpoint("sink"))
    assert batches(query) == [300_000, 300_000, 300_000, 100_000]
    rows = spark.read.parquet(checkpoint("sink"))
    each = MILLION // QUEUES
    counts = "min(is_right), min(queueOffset), max(queueOffset), count(queueOffset), count(distinct queueOffset)"
    found = rows.groupBy("queueId").agg(*map(expr, counts.split(", "))).collect()
    assert sorted(map(tuple, found)) == [(queue, True, 0, each - 1, each, each) for queue in range(QUEUES)]
