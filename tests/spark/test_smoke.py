"""The quickest proof that the data source works: write a batch, read it as a batch and as a stream."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from tests.spark.harness import Topics, bodies, drain, numbered, read, read_stream
from tests.spark.test_write import source, write


@pytest.mark.smoke
def test_rows_survive_write_batch_and_stream(
    spark: SparkSession, topics: Topics, checkpoint: Callable[[str], str]
) -> None:
    topic = topics.make(2)
    write(source(spark, 100).drop("id"), topics, topic=topic)
    rows = read(spark, topics, subscribe=topic).select(col("body"), "rowId").collect()
    assert sorted(bytes(row.body) for row in rows) == numbered(100)
    assert len({row.rowId for row in rows}) == 100
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest")
    drain(frame, checkpoint("log"), checkpoint("sink"))
    assert bodies(spark, checkpoint("sink")) == numbered(100)
