"""Batch and streaming writes."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array, col, concat, create_map, lit, lpad, when

from tests.spark.harness import Topics, drain, numbered, read, read_stream
from triomq.spark import deduplicated


def source(spark: SparkSession, count: int = 1000, partitions: int = 2) -> DataFrame:
    """Bodies as ``numbered`` makes them, with the number as ``id``."""
    return spark.range(count, numPartitions=partitions).withColumn("body", lpad(col("id").cast("string"), 8, "0"))


def write(frame: DataFrame, topics: Topics, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("rocketmq").option("nameServer", topics.namesrv).mode(mode)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def test_all_columns_of_all_rows_become_messages(spark: SparkSession, topics: Topics) -> None:
    """Scenario 28: 10,000 rows."""
    topic = topics.make(4)
    number = col("id").cast("string")
    frame = source(spark, 10_000).select(
        "body", lit(topic).alias("topic"), array(concat(lit("k"), number), lit("all")).alias("keys"),
        lit("A").alias("tags"), create_map(lit("n"), number).alias("properties"),
        (col("id") % 100).cast("int").alias("flag"),
    )  # fmt: skip
    write(frame, topics)
    rows = read(spark, topics, subscribe=topic).collect()
    assert sorted(bytes(row.body) for row in rows) == numbered(10_000)
    for row in rows:
        sent = int(row.body)
        assert (row.keys, row.tags, row.flag) == (f"k{sent} all", "A", sent % 100)
        assert row.properties["n"] == str(sent)
    assert len({row.rowId for row in rows}) == 10_000
    assert len({row.queueId for row in rows}) == 4


def test_delayed_rows_arrive_later(spark: SparkSession, topics: Topics) -> None:
    """Scenario 28: delay level 1 is a second."""
    topic = topics.make(1)
    write(source(spark, 3, 1).withColumn("delayLevel", lit(1)).drop("id"), topics, topic=topic)
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest")
    query = frame.writeStream.format("memory").queryName("delayed").start()
    try:
        for _ in range(60):
            if spark.table("delayed").count() == 3:
                break
            query.awaitTermination(1)
        rows = spark.table("delayed").collect()
    finally:
        query.stop()
    assert len(rows) == 3
    assert all((row.storeTime - row.bornTime).total_seconds() >= 0.9 for row in rows)


def test_bad_row_is_named(spark: SparkSession, topics: Topics) -> None:
    """Scenario 31: partition, row and column."""
    frame = source(spark, 10, 2).withColumn("body", when(col("id") != 7, col("body"))).drop("id")
    with pytest.raises(PythonException, match="partition 1, row 2, column 'body': is null"):
        write(frame, topics, topic=topics.make(1))


def test_a_topic_cannot_be_replaced(spark: SparkSession, topics: Topics) -> None:
    """Scenario 32."""
    with pytest.raises(AnalysisException, match="cannot be replaced"):
        write(source(spark, 1).drop("id"), topics, "overwrite", topic="T")
    with pytest.raises(AnalysisException, match="ErrorIfExists"):
        write(source(spark, 1).drop("id"), topics, "error", topic="T")


def test_stream_repeats_row_ids_of_repeated_epoch(
    spark: SparkSession, topics: Topics, checkpoint: Callable[[str], str]
) -> None:
    """Scenarios 29 and 30: row ids belong to query and epoch, and de-duplication drops the repeated ones.

    The read schema can be written unchanged.
    """
    origin, target = topics.make(2), topics.make(3)
    topics.send(origin, numbered(500), tags="A", properties={"a": "b"})
    frame = read_stream(spark, topics, subscribe=origin, startingOffsets="earliest", maxOffsetsPerTrigger=200)
    writer = frame.writeStream.format("rocketmq").option("nameServer", topics.namesrv).option("topic", target)
    writer = writer.option("checkpointLocation", checkpoint("log")).trigger(availableNow=True)
    query = writer.start()
    assert query.awaitTermination(120)
    rows = read(spark, topics, subscribe=target).collect()
    assert sorted(bytes(row.body) for row in rows) == numbered(500)
    assert {(row.tags, row.properties["a"]) for row in rows} == {("A", "b")}
    writers = {tuple(row.rowId.split(":")[:2]) for row in rows}
    assert writers == {(str(query.id).replace("-", "")[:12], str(epoch)) for epoch in range(3)}
    for name in ("2", ".2.crc"):  # as left by a driver that ended between the last send and the commit
        Path(checkpoint("log"), "commits", name).unlink()
    assert writer.start().awaitTermination(120)
    again = Counter(row.rowId for row in read(spark, topics, subscribe=target).collect())
    assert again == {row.rowId: 2 if row.rowId.split(":")[1] == "2" else 1 for row in rows}
    assert deduplicated(read(spark, topics, subscribe=target)).count() == 500
    once = deduplicated(read_stream(spark, topics, subscribe=target, startingOffsets="earliest")).select("body")
    drain(once, checkpoint("once"), checkpoint("sink"))
    assert spark.read.parquet(checkpoint("sink")).count() == 500
