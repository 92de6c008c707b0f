"""Scenarios 41 to 44: what retention, deletion and unreachable addresses do to streams, batches and tasks."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.harness import Topics, drain, numbered, read_stream, tapped_broker
from tests.spark.tap import PULLS, Tap, ask
from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.command import RemotingCommand

Folder = Callable[[str], str]
PADDING = b"x" * 3000
#: The commit log keeps this much after a deletion; a batch of messages is larger.
SMALL_LOG = ("--commit-log-file-size", "1MiB", "--retention-bytes", "1MiB")
MESSAGES = 1200
WAIT_S = 30


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Topics, Tap]]:
    """A broker that keeps little, behind a relay; a new one, since after a minute it deletes files by itself."""
    with tapped_broker(tmp_path, *SMALL_LOG) as running:
        yield running


def fill(topics: Topics, topic: str, count: int = MESSAGES, begin: int = 0) -> None:
    topics.send(topic, [body + PADDING for body in numbered(count, begin)])


def first_offset(topics: Topics, topic: str) -> int:
    return int(topics.consumer.min_offset(topics.queues(topic)[0]))


def expire(topics: Topics, tap: Tap, topic: str, beyond: int) -> int:
    """Let the broker delete old files until nothing up to an offset is left; return the first offset there is."""
    deadline = time.monotonic() + WAIT_S
    while (low := first_offset(topics, topic)) <= beyond:
        assert time.monotonic() < deadline, f"the first offset is {low}"
        ask(tap.target, RequestCode.DELETE_EXPIRED_COMMITLOG)  # it is done after the answer
        time.sleep(0.2)
    return low


def offsets(spark: SparkSession, sink: str) -> list[int]:
    return sorted(row.queueOffset for row in spark.read.parquet(sink).select("queueOffset").collect())


def test_retention_beyond_checkpoint_is_reported_or_skipped(
    spark: SparkSession, small: tuple[Topics, Tap], checkpoint: Folder
) -> None:
    """Scenario 41."""
    topics, tap = small
    topic = topics.make(1)
    fill(topics, topic, 100)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    fill(topics, topic)
    low, end = expire(topics, tap, topic, 100), 100 + MESSAGES
    words = (
        rf"{low - 100} messages of {topic}@broker-a:0 are lost: offset 100 was wanted, the broker has {low} to {end}"
    )
    with pytest.raises(StreamingQueryException, match=words):
        drain(read_stream(spark, topics, **options), checkpoint("log"), checkpoint("sink"))
    drain(read_stream(spark, topics, **options, failOnDataLoss="false"), checkpoint("log"), checkpoint("sink"))
    assert offsets(spark, checkpoint("sink")) == [*range(100), *range(low, end)]


@pytest.mark.parametrize("lenient", [False, True], ids=["fails", "continues"])
def test_retention_during_task_is_reported_exactly_or_skipped(
    spark: SparkSession, small: tuple[Topics, Tap], checkpoint: Folder, lenient: bool
) -> None:
    """Scenario 42: files go after the task's first pulls; the relay holds the next one until they are gone."""
    topics, tap = small
    topic = topics.make(1)
    fill(topics, topic)
    is_passed = threading.Event()

    def let_expire(request: RemotingCommand, _: int) -> None:
        fields = request.ext_fields
        if request.code not in PULLS or is_passed.is_set() or fields["topic"] != topic:
            return
        if int(fields["queueOffset"]) >= 64:
            expire(topics, tap, topic, 200)
            is_passed.set()

    tap.before = let_expire
    options = {"subscribe": topic, "startingOffsets": "earliest", "pullsInFlight": 1, "batchBytes": 65536}
    frame = read_stream(spark, topics, **options, failOnDataLoss=str(not lenient).lower())
    try:
        if lenient:
            drain(frame, checkpoint("log"), checkpoint("sink"))
            found = offsets(spark, checkpoint("sink"))
            before = [offset for offset in found if offset < first_offset(topics, topic)]
            assert before == list(range(len(before)))
            assert len(before) >= 64
            assert found[len(before) :] == list(range(first_offset(topics, topic), MESSAGES))
        else:
            with pytest.raises(StreamingQueryException) as caught:
                drain(frame, checkpoint("log"), checkpoint("sink"))
            match = re.search(rf"(\d+) messages of {topic}@broker-a:0 are lost: offset (\d+) was", str(caught.value))
            assert match is not None
            assert int(match[1]) + int(match[2]) == first_offset(topics, topic)
    finally:
        tap.before = lambda *_: None
    assert is_passed.is_set()
