"""Batch reads of a real Spark session from our broker as a process."""

import time

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.harness import Topics, numbered, read
from triomq.protocol.record.message import Message


def offsets(topic: str, **queues: int) -> str:
    """JSON of offsets: ``q0=5`` is queue 0 of our broker."""
    inner = ", ".join(f'"{name[1:]}": {value}' for name, value in queues.items())
    return f'{{"{topic}": {{"broker-a": {{{inner}}}}}}}'


def test_all_columns_equal_the_sent_messages(spark: SparkSession, topics: Topics) -> None:
    """Scenario 1: 10,000 messages in 4 queues."""
    topic = topics.make(4)
    began_ms = time.time_ns() // 1_000_000
    topics.send(topic, numbered(10_000), tags="A", keys=["k1", "k2"], properties={"name": "värde"}, flag=7)
    rows = read(spark, topics, subscribe=topic).collect()
    assert sorted(bytes(row.body) for row in rows) == numbered(10_000)
    assert {(row.queueId, row.queueOffset) for row in rows} == {(q, o) for q in range(4) for o in range(2500)}
    for row in rows:
        assert (row.topic, row.broker, row.keys, row.tags, row.flag) == (topic, "broker-a", "k1 k2", "A", 7)
        assert row.properties["name"] == "värde"
        assert row.msgId == row.properties["UNIQ_KEY"]
        assert (row.delayLevel, row.transactionState, row.rowId, row.reconsumeTimes) == (None, "none", None, 0)
        assert began_ms - 1 <= row.bornTime.timestamp() * 1000 <= row.storeTime.timestamp() * 1000 + 1
        assert row.storeTime.timestamp() <= time.time()
        assert row.bornHost.startswith("127.0.0.1:")
        assert row.storeHost == f"127.0.0.1:{row.storeHost.rpartition(':')[2]}"


def test_an_empty_topic_has_no_rows(spark: SparkSession, topics: Topics) -> None:
    """Scenario 2."""
    assert read(spark, topics, subscribe=topics.make()).count() == 0


def test_json_positions_give_exactly_their_ranges(spark: SparkSession, topics: Topics) -> None:
    """Scenario 3."""
    topic = topics.make(3)
    topics.send(topic, numbered(300))
    frame = read(
        spark, topics, subscribe=topic, startingOffsets=offsets(topic, q0=-2, q1=10, q2=99),
        endingOffsets=offsets(topic, q0=5, q1=-1, q2=100), schema="queueId int, queueOffset bigint",
    )  # fmt: skip
    found = {(row.queueId, row.queueOffset) for row in frame.collect()}
    assert found == {(0, o) for o in range(5)} | {(1, o) for o in range(10, 100)} | {(2, 99)}


def test_out_of_range_offset_error_names_the_bounds(spark: SparkSession, topics: Topics) -> None:
    """Scenario 3."""
    topic = topics.make(1)
    topics.send(topic, numbered(10))
    wrong = (
        (offsets(topic, q0=11), rf"{topic}@broker-a:0 has the offsets 0 to 10, not 11"),
        (offsets(topic, q7=0), rf"{topic}@broker-a:7 is not read; those that are: {topic}@broker-a:0"),
    )
    for position, words in wrong:
        with pytest.raises(AnalysisException, match=rf"startingOffsets.*{words}"):
            read(spark, topics, subscribe=topic, startingOffsets=position).collect()
    with pytest.raises(AnalysisException, match=rf"endingOffsets.*{topic}@broker-a:0 has the offsets 0 to 10, not 12"):
        read(spark, topics, subscribe=topic, endingOffsets=offsets(topic, q0=12)).collect()


def test_times_bound_the_rows(spark: SparkSession, topics: Topics) -> None:
    """Scenario 4: also between two messages, and after the last."""
    topic = topics.make(1)
    (queue,) = topics.queues(topic)
    for number in range(40):
        topics.send_to(queue, [b"%d" % number] * (1 + number % 3))
    rows = read(spark, topics, subscribe=topic).collect()
    times = sorted({round(row.storeTime.timestamp() * 1000) for row in rows})
    for begin, end in ((times[3], times[-4]), (times[5] + 1, times[-1]), (times[-1], 2**43)):
        frame = read(spark, topics, subscribe=topic, startingTimestamp=begin, endingTimestamp=end)
        wanted = {row.queueOffset for row in rows if begin <= round(row.storeTime.timestamp() * 1000) < end}
        assert {row.queueOffset for row in frame.collect()} == wanted
    assert read(spark, topics, subscribe=topic, startingTimestamp=times[-1] + 1).count() == 0


def test_an_sql_filter_chooses_rows_at_the_broker(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make(2)
    for amount in (5, 50, 500):
        topics.send(topic, numbered(100), properties={"amount": str(amount)})
    frame = read(spark, topics, subscribe=topic, sql="amount BETWEEN 10 AND 100")
    assert [row["count"] for row in frame.groupBy().count().collect()] == [100]
    with pytest.raises(Exception, match="'sql' is not an SQL expression"):
        read(spark, topics, subscribe=topic, sql="amount >").count()


def test_bodies_of_all_sizes_arrive(spark: SparkSession, topics: Topics) -> None:
    """Scenario 8, without the memory."""
    topic = topics.make(1)
    (queue,) = topics.queues(topic)
    bodies = [b"x", b"y" * 4095, b"z" * 4096, bytes(range(256)) * 4096, bytes(range(256)) * 16384, b"end"]
    for body in bodies:
        topics.producer.send(Message(topic, body), queue=queue)
    rows = read(spark, topics, subscribe=topic).orderBy("queueOffset").collect()
    assert [bytes(row.body) for row in rows] == bodies


def test_fixed_queues_are_the_only_ones_read(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make(4)
    topics.send(topic, numbered(40))
    frame = read(spark, topics, assign=f'{{"{topic}": {{"broker-a": [1, 3]}}}}')
    assert {row.queueId for row in frame.collect()} == {1, 3}
    with pytest.raises(AnalysisException, match=rf"there is no queue {topic}@broker-a:9"):
        read(spark, topics, assign=f'{{"{topic}": {{"broker-a": [9]}}}}').collect()


def test_frame_keeps_its_count_while_messages_arrive(spark: SparkSession, topics: Topics) -> None:
    """Scenario 11."""
    topic = topics.make(2)
    topics.send(topic, numbered(100))
    frame = read(spark, topics, subscribe=topic)
    assert frame.count() == 100
    topics.send(topic, numbered(50))
    assert frame.count() == 100
    assert read(spark, topics, subscribe=topic).count() == 150
