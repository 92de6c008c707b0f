"""Micro-batch reads: offsets in the checkpoint, limits, new queues and topics, progress."""

import json
from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.checkpoints import change_newest, logged
from tests.spark.harness import Topics, batches, bodies, drain, numbered, read_stream
from tests.spark.killing import write_batch
from triomq.spark import lag

Folder = Callable[[str], str]


def test_available_now_ends_at_offsets_of_its_start(spark: SparkSession, topics: Topics, checkpoint: Folder) -> None:
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

    def send_meanwhile(batch: DataFrame, number: int) -> None:
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


def test_only_first_version_offsets_are_accepted(spark: SparkSession, topics: Topics, checkpoint: Folder) -> None:
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
