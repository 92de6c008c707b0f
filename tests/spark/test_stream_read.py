"""Micro-batch reads: offsets in the checkpoint, limits, new queues and topics, progress."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, count, split, window
from pyspark.sql.functions import sum as total

from tests.spark.checkpoints import change_newest, durable, logged
from tests.spark.harness import Topics, batches, bodies, drain, numbered, read, read_stream, start, wait_until
from tests.spark.killing import write_batch
from triomq.demo.flights import read_lines
from triomq.protocol.message_queue import MessageQueue
from triomq.spark import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Folder = Callable[[str], str]


def test_available_now_reads_what_was_there_at_its_start(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenarios 15, 16 and 23: 10,500 messages in 11 batches, all queues in each, with their lag.

    What was sent meanwhile is read by the second run.
    """
    topic = topics.make(4)
    queues = topics.queues(topic)
    sizes = dict(zip(queues, (6000, 3000, 1000, 500), strict=True))
    begin = 0
    for queue, size in sizes.items():
        topics.send_to(queue, numbered(size, begin))
        begin += size
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    write = write_batch(checkpoint("sink"))

    def send_meanwhile(batch: "DataFrame", number: int) -> None:
        if number == 5:
            topics.send(topic, numbered(30, begin))
        write(batch, number)

    writer = frame.writeStream.foreachBatch(send_meanwhile).option("checkpointLocation", checkpoint("log"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert batches(query) == [1000] * 10 + [500]
    before = dict.fromkeys(queues, 0)
    for number, end in sorted(logged(checkpoint("log")).items()):
        assert all(end.ends[queue] > before[queue] for queue in queues)
        if number < 5:
            left = {queue: size - end.ends[queue] for queue, size in sizes.items()}
            assert lag(query.recentProgress[number]) == left
        before = end.ends
    assert before == sizes
    assert bodies(spark, checkpoint("sink")) == numbered(begin)
    query = writer.start()
    assert query.awaitTermination(240)
    assert bodies(spark, checkpoint("sink")) == numbered(begin + 30)


def test_latest_reads_later_messages_queues_and_topics(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenarios 17, 20 and 21: messages before the start are not read, those of new queues are from their first."""
    topic = topics.make(2, "growing-1")
    topics.send(topic, numbered(50))
    frame = read_stream(spark, topics, subscribePattern="growing-.*", discoveryIntervalMs=1000)
    query = start(frame, checkpoint("log"), checkpoint("sink"))
    try:
        wait_until(lambda: query.lastProgress is not None)
        topics.send(topic, numbered(20, 100))
        wait_until(lambda: sum(batches(query)) >= 20)
        topics.make(4, topic)
        topics.send(topic, numbered(40, 200))
        topics.send(topics.make(1, "growing-2"), numbered(10, 300))
        wait_until(lambda: sum(batches(query)) >= 70)
    finally:
        query.stop()
    assert bodies(spark, checkpoint("sink")) == numbered(20, 100) + numbered(40, 200) + numbered(10, 300)


def test_a_group_gets_the_durable_offsets_and_no_others(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenario 22: after each batch within a second, never more than is durable; no lag after AvailableNow.

    One of the batches must be so quick; the others may meet a machine with much else to do.
    """
    topic = topics.make(2)
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", group_id="watched")

    def stored() -> dict[MessageQueue, int]:
        return {one.queue: one.consumer_offset for one in topics.admin.group_lag("watched", topic)}

    def store_of_next_batch_s(query: "StreamingQuery", begin: int) -> float:
        topics.send(topic, numbered(10, begin))
        wait_until(lambda: sum(batches(query)) == begin + 10)
        began = time.monotonic()
        wait_until(lambda: stored() == dict.fromkeys(topics.queues(topic), (begin + 10) // 2))
        took_s = time.monotonic() - began
        found = durable(checkpoint("log"))
        assert found is not None
        assert stored() == found.ends
        return took_s

    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint("log")).start()
    try:
        took_s = [store_of_next_batch_s(query, begin) for begin in range(0, 50, 10)]
    finally:
        query.stop()
    assert min(took_s) <= 1
    topics.send(topic, numbered(100, 50))
    drain(frame, checkpoint("log"), checkpoint("sink"))
    found = topics.admin.group_lag("watched", topic)
    assert [(one.consumer_offset, one.lag) for one in found] == [(75, 0), (75, 0)]


def test_few_messages_wait_for_more_or_for_the_delay(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
    """Scenario 18: 50 wait for 2 s, 100 for nothing, and nothing waits where all is read that there is."""
    topic = topics.make(1)

    def stream(delay: str) -> "DataFrame":
        limits = {"minOffsetsPerTrigger": 100, "maxTriggerDelay": delay}
        return read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", **limits)

    query = start(stream("2s"), checkpoint("log"), checkpoint("sink"))
    try:
        wait_until(lambda: query.lastProgress is not None)
        began = time.monotonic()
        topics.send(topic, numbered(50))
        wait_until(lambda: batches(query) == [50])
        assert time.monotonic() - began >= 2
    finally:
        query.stop()
    query = start(stream("1h"), checkpoint("log"), checkpoint("sink"))
    try:
        topics.send(topic, numbered(100, 50))
        wait_until(lambda: batches(query) == [100])
    finally:
        query.stop()
    topics.send(topic, numbered(50, 150))
    drain(stream("1h"), checkpoint("log"), checkpoint("sink"))
    assert bodies(spark, checkpoint("sink")) == numbered(200)


def test_restart_ignores_start_option_and_reads_all_new_topics(
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
    assert bodies(spark, checkpoint("sink")) == numbered(20) + numbered(5, 100) + numbered(10, 1000)


def test_restart_with_fewer_queues_drops_no_message_silently(
    spark: "SparkSession", topics: Topics, checkpoint: Folder
) -> None:
    """Scenario 26: queues that the route has no more were read, or what is left of them is data loss."""
    topic = topics.make(4)
    topics.send(topic, numbered(40))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    topics.make(2, topic)
    topics.send(topic, numbered(10, 40))
    drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    assert bodies(spark, checkpoint("sink")) == numbered(50)
    topics.send(topic, numbered(6, 50))  # three to each
    topics.make(1, topic)
    with pytest.raises(
        StreamingQueryException, match=rf"3 messages of {topic}@broker-a:1 are lost.*no longer in the route"
    ):
        drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    drain(read_stream(spark, topics, **options, failOnDataLoss="false"), checkpoint("log"), checkpoint("sink"))
    assert bodies(spark, checkpoint("sink")) == numbered(50) + numbered(6, 50)[::2]


def test_only_first_version_offsets_are_accepted(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
    """Scenario 27: there was no version before the first; the text is what its first release wrote."""
    topic = topics.make(1)
    topics.send(topic, numbered(30))
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest")
    drain(frame, checkpoint("log"), checkpoint("sink"))
    text = '{"v":1,"q":{"%s":{"broker-a":{"0":20}}},"from":{"%s":{"broker-a":{"0":0}}},"at":%d}'
    change_newest(checkpoint("log"), lambda offset: json.loads(text % (topic, topic, offset["at"])))
    drain(frame, checkpoint("log"), checkpoint("sink"))
    assert bodies(spark, checkpoint("sink")) == sorted(numbered(30) + numbered(10, 20))
    change_newest(checkpoint("log"), lambda offset: offset | {"v": 2})
    with pytest.raises(StreamingQueryException, match=r"checkpoint has offsets of version 2, .* reads version 1"):
        drain(frame, checkpoint("log"), checkpoint("sink"))


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
    with pytest.raises(StreamingQueryException, match=rf"{topic}@broker-a:0 .*recreated.*failOnDataLoss"):
        drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    drain(read_stream(spark, topics, **options, failOnDataLoss="false"), checkpoint("log"), checkpoint("sink"))
    assert bodies(spark, checkpoint("sink")) == numbered(100) + numbered(30, 500)


def test_a_window_aggregation_equals_the_batch(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
    """Scenario 24: flights by carrier and day; what comes later than the watermark is left out and counted."""
    _, *lines = read_lines(2000)
    topic = topics.make(1)
    topics.send(topic, lines)

    def windows(frame: "DataFrame") -> "DataFrame":
        cells = split(col("body").cast("string"), ",")
        delay, stamp = cells[5].try_cast("double"), cells[18].try_cast("timestamp")
        flights = frame.select(cells[9].alias("carrier"), delay.alias("delay"), stamp.alias("time"))
        grouped = flights.withWatermark("time", "1 day").groupBy(window("time", "1 day").alias("day"), "carrier")
        return grouped.agg(count("*").alias("rows"), total("delay").alias("delay"))

    found: dict[tuple[Any, str], tuple[int, float]] = {}

    def keep(frame: "DataFrame", _: int) -> None:
        found.update({(row.day.start, row.carrier): (row.rows, row.delay) for row in frame.collect()})

    def run() -> "StreamingQuery":
        frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=800)
        writer = windows(frame).writeStream.outputMode("update").foreachBatch(keep)
        query = writer.option("checkpointLocation", checkpoint("log")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query

    run()
    frame = windows(read(spark, topics, subscribe=topic))
    wanted = {(row.day.start, row.carrier): (row.rows, row.delay) for row in frame.collect()}
    assert found == wanted
    assert sum(rows for rows, _ in wanted.values()) == 2000
    topics.send(topic, lines[:7])  # of the first day; the watermark is at the second
    query = run()
    assert sum(one.numRowsDroppedByWatermark for progress in query.recentProgress for one in progress.stateOperators)
    assert found == wanted
