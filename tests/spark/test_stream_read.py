"""Micro-batch reads: offsets in the checkpoint, limits, new queues and topics, progress."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.harness import Topics, batches, drain, numbered, read_stream
from triomq.spark import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Folder = Callable[[str], str]


def rows(spark: "SparkSession", sink: str) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(sink).select("body").collect())


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_available_now_reads_what_was_there_at_its_start(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenarios 15, 16 and 23: all of it, in batches of the limit's size; a second run reads the rest."""
    topic = topics.make(4)
    topics.send(topic, numbered(2500))
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    query = drain(frame, checkpoint("log"), checkpoint("sink"))
    assert batches(query) == [1000, 1000, 500]
    assert rows(spark, checkpoint("sink")) == numbered(2500)
    assert [sum(lag(progress).values()) for progress in query.recentProgress[:3]] == [1500, 500, 0]
    topics.send(topic, numbered(30, 2500))
    drain(frame, checkpoint("log"), checkpoint("sink"))
    assert rows(spark, checkpoint("sink")) == numbered(2530)


def test_latest_reads_what_comes_later_also_in_queues_and_topics_that_come_later(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenarios 17, 20 and 21: messages before the start are not read, those of new queues are from their first."""
    topic = topics.make(2, "growing-1")
    topics.send(topic, numbered(50))
    frame = read_stream(spark, topics, subscribePattern="growing-.*", discoveryIntervalMs=1000)
    query = (
        frame.writeStream.format("parquet").option("checkpointLocation", checkpoint("log"))
        .option("path", checkpoint("sink")).start()
    )  # fmt: skip
    try:
        wait_for(lambda: query.lastProgress is not None)
        topics.send(topic, numbered(20, 100))
        wait_for(lambda: sum(batches(query)) >= 20)
        topics.make(4, topic)
        topics.send(topic, numbered(40, 200))
        topics.send(topics.make(1, "growing-2"), numbered(10, 300))
        wait_for(lambda: sum(batches(query)) >= 70)
    finally:
        query.stop()
    assert rows(spark, checkpoint("sink")) == numbered(20, 100) + numbered(40, 200) + numbered(10, 300)


def test_a_group_gets_the_durable_offsets_and_no_others(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenario 22: at the end of AvailableNow the lag is 0."""
    topic = topics.make(2)
    topics.send(topic, numbered(100))
    frame = read_stream(
        spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=60, group_id="watched"
    )
    drain(frame, checkpoint("log"), checkpoint("sink"))
    found = topics.admin.group_lag("watched", topic)
    assert [(one.consumer_offset, one.lag) for one in found] == [(50, 0), (50, 0)]


def test_a_restart_goes_on_whatever_the_start_says_and_takes_new_topics_from_their_first(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenario 26."""
    first, second = topics.make(2), topics.make(1)
    topics.send(first, numbered(20))
    topics.send(second, numbered(10, 1000))
    drain(
        read_stream(spark, topics, subscribe=first, startingOffsets="earliest"), checkpoint("log"), checkpoint("sink")
    )
    topics.send(first, numbered(5, 100))
    both = read_stream(spark, topics, subscribe=f"{first},{second}", startingOffsets="latest")
    drain(both, checkpoint("log"), checkpoint("sink"))
    assert rows(spark, checkpoint("sink")) == numbered(20) + numbered(5, 100) + numbered(10, 1000)


def test_a_topic_made_again_is_data_loss_or_begins_anew(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenarios 41 and 43, for a topic that is shorter than the checkpoint."""
    topic = topics.make(1)
    topics.send(topic, numbered(100))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    topics.admin.delete_topic(topic)
    topics.make(1, topic)
    topics.send(topic, numbered(30, 500))
    with pytest.raises(StreamingQueryException, match=rf"{topic}@broker-a:0 .*made again.*failOnDataLoss"):
        drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    drain(read_stream(spark, topics, **options, failOnDataLoss="false"), checkpoint("log"), checkpoint("sink"))
    assert rows(spark, checkpoint("sink")) == numbered(100) + numbered(30, 500)


def test_a_window_aggregation_equals_the_batch(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
    """Scenario 24, the sum: by tag and minute."""
    from pyspark.sql.functions import count, window

    topic = topics.make(2)
    for tag in ("A", "B"):
        topics.send(topic, numbered(300), tags=tag)
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=200)
    totals = frame.withWatermark("storeTime", "1 minute").groupBy(window("storeTime", "1 minute"), "tags")
    query = (
        totals.agg(count("*").alias("n")).writeStream.format("memory").queryName("totals").outputMode("complete")
        .option("checkpointLocation", checkpoint("log")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    found = spark.sql("select tags, sum(n) from totals group by tags").collect()
    assert {tuple(row) for row in found} == {("A", 300), ("B", 300)}


def test_options_of_a_batch_and_unreachable_brokers_end_a_stream(spark: "SparkSession", checkpoint: Folder) -> None:
    """Scenarios 44 and 45, for a stream."""
    reader = spark.readStream.format("rocketmq").option("nameServer", "127.0.0.1:1").option("subscribe", "T")
    with pytest.raises(StreamingQueryException, match="endingOffsets' is for a batch read"):
        drain(reader.option("endingOffsets", "latest").load(), checkpoint("log"), checkpoint("sink"))
    reader = spark.readStream.format("rocketmq").option("nameServer", "127.0.0.1:1").option("subscribe", "T")
    with pytest.raises(StreamingQueryException, match=r"127\.0\.0\.1:1"):
        drain(reader.option("planTimeoutMs", "1000").load(), checkpoint("log2"), checkpoint("sink"))
