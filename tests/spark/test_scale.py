"""Scenarios 6, 19, 25, 29 and 33: what a broker is asked, counted by a relay in front of it, and what that answers."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from tests.spark.harness import Topics, batches, drain, numbered, read, read_stream, start, tapped_broker, wait_until
from tests.spark.tap import PULLS, SENDS, Tap
from tests.spark.test_write import source, write
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.wire.command import RemotingCommand

IDLE_S = 5
ONE_BY_ONE = 12
WORKERS = 4  # two cores; a query that reads and writes may have two Python workers for each


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topics, Tap]]:
    with tapped_broker(tmp_path_factory.mktemp("tapped")) as running:
        yield running


def test_tags_are_filtered_by_the_broker(spark: SparkSession, tapped: tuple[Topics, Tap]) -> None:
    """Scenario 6: 30 % match, and less than 60 % of the bytes come."""
    topics, tap = tapped
    topic = topics.make(1)
    for number in range(20):
        topics.send(topic, [body + bytes(1000) for body in numbered(150)], tags="A" if number % 10 < 3 else "B")
    sent = []
    for tags, rows in (("*", 3000), ("A", 900)):
        before = tap.answered_bytes
        assert read(spark, topics, subscribe=topic, tags=tags).count() == rows
        sent.append(tap.answered_bytes - before)
    assert sent[1] < 0.6 * sent[0]


def test_idle_stream_makes_few_requests(
    spark: SparkSession, tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 19: without trigger and data the stream's reader makes 6 requests a second."""
    topics, tap = tapped
    topic = topics.make(8)
    query = start(read_stream(spark, topics, subscribe=topic), checkpoint("log"), checkpoint("sink"))
    try:
        wait_until(lambda: query.lastProgress is not None)
        before, began = tap.requests.total(), time.monotonic()
        query.awaitTermination(IDLE_S)
        asked, took_s = tap.requests.total() - before, time.monotonic() - began
    finally:
        query.stop()
    assert 0 < asked <= 6 * took_s


@pytest.fixture
def busy(tapped: tuple[Topics, Tap]) -> Iterator[Callable[[float], None]]:
    """What makes the broker refuse sends for some time from the first one on."""
    _, tap = tapped
    until: list[float] = []

    def refuse_for(duration_s: float) -> None:
        until.clear()

        def refusal(request: RemotingCommand) -> RemotingCommand | None:
            if request.code not in SENDS:
                return None
            if not until:
                until.append(time.monotonic() + duration_s)
            if time.monotonic() > until[0]:
                return None
            return request.reply(ResponseCode.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]")

        tap.refusal = refusal

    yield refuse_for
    tap.refusal = lambda _: None


def test_rows_wait_for_a_busy_broker(
    spark: SparkSession, tapped: tuple[Topics, Tap], busy: Callable[[float], None]
) -> None:
    """Scenario 33: for some seconds."""
    topics, _ = tapped
    topic = topics.make(2)
    busy(2)
    began = time.monotonic()
    write(source(spark, 500).drop("id"), topics, topic=topic, batchMessages=50)
    assert time.monotonic() - began >= 2
    assert sorted(topics.bodies(topic)) == numbered(500)


def test_lasting_busy_error_has_broker_code(
    spark: SparkSession, tapped: tuple[Topics, Tap], busy: Callable[[float], None]
) -> None:
    """Scenario 33: for ever; within ``taskTimeoutMs``, at each try of a task."""
    topics, tap = tapped
    topic = topics.make(1)
    busy(3600)
    words = rf"taskTimeoutMs.*given up after [0-9.]+ s.*SYSTEM_BUSY\(2\) from {tap.address}"
    with pytest.raises(PythonException, match=words) as caught:
        write(source(spark, 10, 1).drop("id"), topics, topic=topic, taskTimeoutMs=1500)
    (took_s,) = set(re.findall(r"given up after ([0-9.]+) s", str(caught.value)))
    assert float(took_s) <= 1.5
    assert topics.bodies(topic) == []


def test_single_message_micro_batch_costs_one_pull(
    spark: SparkSession, tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 25, what can be counted; ``python -m bench spark`` has the times."""
    topics, tap = tapped
    topic = topics.make(1)
    topics.send(topic, numbered(ONE_BY_ONE))
    connections, before = tap.connections, tap.requests.copy()
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1)
    query = drain(frame.select("body"), checkpoint("log"), checkpoint("sink"))
    assert batches(query) == [1] * ONE_BY_ONE
    asked = tap.requests - before
    assert sum(asked[code] for code in PULLS) == ONE_BY_ONE
    polls = asked[RequestCode.GET_TOPIC_STATS_INFO]  # as many as the time allows
    assert asked.total() - polls <= ONE_BY_ONE + 4
    assert tap.connections - connections <= 1 + WORKERS  # the stream's reader and each worker
