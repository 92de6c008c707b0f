"""What Spark wrote is what Apache's Java client reads; ``test_against_apache.py`` has the same with Apache's broker."""

from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, concat, create_map, lit, when

from tests.interop.kit_driver import java_classpath, run
from tests.spark.harness import Topics
from tests.spark.test_write import source, write

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]  # a first run builds the kit

ROWS = 10_000
JAVA_S = 120


class Read(NamedTuple):
    """One message, as Java printed it."""

    queue: int
    offset: int
    flag: int
    delay_ms: int
    keys: str
    tag: str
    sharding_key: str
    n: str
    body: str


def read_by_java(namesrv: str, topic: str, count: int, folder: Path) -> list[Read]:
    """Wait until a topic has so many messages; return them."""
    printed = folder / "messages"
    program = Path(__file__).with_name("ReadTopic.java")
    done = run(["java", "-cp", java_classpath("4.9.7"), program, namesrv, topic, str(count), printed], JAVA_S)
    assert done.returncode == 0, done.stderr
    lines = (line.split("\t") for line in printed.read_text(encoding="utf-8").splitlines())
    return [Read(int(q), int(o), int(f), int(d), *rest[:5]) for q, o, f, d, *rest in lines]


def test_java_reads_all_columns_of_all_rows(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Scenario 28: keys, tags, properties, delay; equal sharding keys are in one queue, in order."""
    topic = topics.make(4)
    number, has_key, is_late = col("id").cast("string"), col("id") % 2 == 0, col("id") % 100 == 99
    frame = source(spark, ROWS, partitions=1).select(
        "body", array(concat(lit("k"), number), lit("all")).alias("keys"), lit("täg").alias("tags"),
        create_map(lit("n"), concat(lit("n°"), number)).alias("properties"),
        (col("id") % 100).cast("int").alias("flag"),
        when(has_key, concat(lit("key-"), col("id") % 7)).alias("shardingKey"), when(is_late, 1).alias("delayLevel"),
    )  # fmt: skip
    write(frame, topics, topic=topic)
    found = read_by_java(topics.namesrv, topic, ROWS, tmp_path)
    assert sorted(int(one.body) for one in found) == list(range(ROWS))
    by_key: dict[str, list[Read]] = {}
    for one in found:
        sent = int(one.body)
        assert (one.keys, one.tag, one.n, one.flag) == (f"k{sent} all", "täg", f"n°{sent}", sent % 100)
        assert one.sharding_key == (f"key-{sent % 7}" if sent % 2 == 0 else "null")
        if sent % 2 == 0:
            by_key.setdefault(one.sharding_key, []).append(one)
        if sent % 100 == 99:
            assert one.delay_ms >= 900  # delay level 1 is a second
    assert len(by_key) == 7
    for same in by_key.values():
        assert len({one.queue for one in same}) == 1
        assert [one.body for one in sorted(same, key=lambda one: one.offset)] == sorted(one.body for one in same)
