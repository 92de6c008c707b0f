"""Micro-batch reads: offsets in the checkpoint, limits, new queues and topics, progress."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.checkpoints import change_newest, durable, logged
from tests.spark.harness import Topics, batches, bodies, drain, numbered, read_stream, start, wait_until
from tests.spark.killing import write_batch
from triomq.protocol.message_queue import MessageQueue
from triomq.spark import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Folder = Callable[[str], str]


def test_available_now_ends_at_offsets_of_its_start(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
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


def test_group_gets_only_durable_offsets(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
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


def test_restart_ignores_start_option(spark: "SparkSession", topics: Topics, checkpoint: Folder) -> None:
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
    """Scenario 26: queues that left the route were read, or their unread messages are data loss."""
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
    """Scenario 27: an offset in the format of the first release."""
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
