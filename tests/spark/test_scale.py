"""Scenarios 6, 19, 25, 29 and 33: what a broker is asked, counted by a relay in front of it, and what that answers."""

import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException

from tests.processes import start_triomq
from tests.spark.harness import Topics, batches, drain, numbered, read, read_stream, start, wait_until
from tests.spark.tap import PULLS, SENDS, Tap, owner_of
from tests.spark.test_write import source, write
from triomq.protocol.codes import ResponseCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.spark import deduplicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDLE_S = 5
ONE_BY_ONE = 12
WORKERS = 4  # two cores; a query that reads and writes may have two Python workers for each


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topics, Tap]]:
    with Tap() as tap, start_triomq(tmp_path_factory.mktemp("tapped"), "--advertise", tap.address) as broker:
        tap.target = broker.broker
        with Topics(broker.namesrv) as topics:
            yield topics, tap


def test_tags_are_filtered_by_the_broker(spark: "SparkSession", tapped: tuple[Topics, Tap]) -> None:
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


def test_an_idle_stream_asks_and_costs_little(
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 19: without trigger and data the stream's reader makes 6 requests a second and takes 5 % of a core."""
    topics, tap = tapped
    topic = topics.make(8)
    ports: set[int] = set()
    tap.before = lambda _, port: ports.add(port)
    query = start(read_stream(spark, topics, subscribe=topic), checkpoint("log"), checkpoint("sink"))
    try:
        wait_until(lambda: query.lastProgress is not None)
        ports.clear()
        wait_until(lambda: bool(ports))
        reader = owner_of(ports.pop())
        before, used_s, began = tap.requests.total(), cpu_s(reader), time.monotonic()
        query.awaitTermination(IDLE_S)
        asked, took_s = tap.requests.total() - before, time.monotonic() - began
        share = (cpu_s(reader) - used_s) / took_s
    finally:
        tap.before = lambda *_: None
        query.stop()
    assert 0 < asked <= 6 * took_s
    assert 0 < share < 0.05


def cpu_s(pid: int) -> float:
    """The processor time a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    spark: "SparkSession", tapped: tuple[Topics, Tap], busy: Callable[[float], None]
) -> None:
    """Scenario 33: for some seconds."""
    topics, _ = tapped
    topic = topics.make(2)
    busy(2)
    began = time.monotonic()
    write(source(spark, 500).drop("id"), topics, topic=topic, batchMessages=50)
    assert time.monotonic() - began >= 2
    assert sorted(topics.bodies(topic)) == numbered(500)


def test_a_broker_that_stays_busy_is_told_with_its_code(
    spark: "SparkSession", tapped: tuple[Topics, Tap], busy: Callable[[float], None]
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
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
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
    assert asked.total() <= 2 * ONE_BY_ONE + 4  # ends of queues for each batch, and those of the start
    assert tap.connections - connections <= 1 + WORKERS  # the stream's reader and each worker


def test_killed_writer_repeats_rows_with_the_same_ids(
    spark: "SparkSession", tapped: tuple[Topics, Tap], checkpoint: Callable[[str], str]
) -> None:
    """Scenario 29: the task is tried again; no message is missing, and what is there twice can be told."""
    topics, tap = tapped
    origin, target = topics.make(1), topics.make(2)
    topics.send(origin, numbered(500))
    killed: list[int] = []
    sent = itertools.count()

    def kill(request: RemotingCommand, port: int) -> None:
        if request.code in SENDS and not killed and next(sent) >= 4:
            killed.append(owner_of(port))
            os.kill(killed[0], signal.SIGKILL)

    tap.before = kill
    try:
        frame = read_stream(spark, topics, subscribe=origin, startingOffsets="earliest")
        query = (
            frame.writeStream.format("rocketmq").option("nameServer", topics.namesrv).option("topic", target)
            .option("batchMessages", 50).option("sendsInFlight", 1).option("checkpointLocation", checkpoint("log"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
    finally:
        tap.before = lambda *_: None
    assert len(killed) == 1
    rows = read(spark, topics, subscribe=target)
    found = Counter((bytes(row.body), row.rowId) for row in rows.select("body", "rowId").collect())
    assert sorted(body for body, _ in found) == numbered(500)
    assert found.total() > 500
    assert deduplicated(rows).count() == 500
