"""Scenarios 12, 13 and 16 with a million older messages: the number of requests does not grow."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.backlog import write_backlog
from tests.spark.harness import Topics, batches, read, read_stream, tapped_broker, wait_until
from tests.spark.tap import Tap
from triomq.spark.options.options import Use, parse_options
from triomq.spark.source import BatchReader

MILLION = 1_000_000
LONG, SHORT = "million", "thousand"
QUEUES = 4
PULL_BATCH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a store has a long and a short topic."""
    folder = tmp_path_factory.mktemp("backlog")
    for topic, messages in ((LONG, MILLION), (SHORT, 1000)):
        write_backlog(folder / "store", topic, QUEUES, messages // QUEUES)
    return folder


@pytest.fixture
def tapped(folder: Path) -> Iterator[tuple[Topics, Tap]]:
    with tapped_broker(folder, "--no-index") as running:
        yield running


def test_planning_requests_ignore_length_of_backlog(tapped: tuple[Topics, Tap]) -> None:
    """Scenario 13: at most two requests for each queue."""
    topics, tap = tapped
    asked = []
    for topic, messages in ((SHORT, 1000), (LONG, MILLION)):
        options = parse_options({"nameServer": topics.namesrv, "subscribe": topic}, Use.BATCH_READ)
        before = tap.requests.copy()
        partitions = BatchReader(options, ("body",)).partitions()
        asked.append(tap.requests - before)
        ranges = [one for partition in partitions for one in partition.value]
        assert sum(one.size for one in ranges) == messages
    assert asked[0] == asked[1]
    assert 0 < asked[0].total() <= 2 * QUEUES


def test_a_limit_stops_the_pulls(spark: SparkSession, tapped: tuple[Topics, Tap]) -> None:
    """Scenario 12: a small part of the backlog is pulled, until Spark stops the worker after some moments."""
    topics, tap = tapped
    before = tap.pulls()
    rows = read(spark, topics, subscribe=LONG).limit(5).collect()
    assert [row.queueOffset for row in rows] == list(range(5))
    assert tap.pulls() - before < MILLION // PULL_BATCH // 10


def test_micro_batch_pulls_at_most_its_limit(
    spark: SparkSession, tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
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
