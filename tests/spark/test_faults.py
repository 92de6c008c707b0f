"""Scenarios 36 and 38 to 40: what is killed or goes away, and every message is in the sink once."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.processes import start_triomq
from tests.spark.harness import Topics, batches, drain, numbered, read_stream
from tests.spark.killing import KillingSource, write_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[2]
Folder = Callable[[str], str]
KILLED_S = 240
PHASES = ("initialOffset", "latestOffset", "offset log", "partitions", "read", "output", "commit", "idle")
ORPHAN_S = 3 + 5  # planTimeoutMs of the driver, and what the scenario allows


def rows(spark: "SparkSession", sink: str) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(sink).select("body").collect())


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie, which nobody may be left to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_killed_while_it_reads_costs_nothing(
    spark: "SparkSession", topics: Topics, checkpoint: Folder, tmp_path: Path
) -> None:
    """Scenario 36, on ``local[2,4]``: each task of each micro-batch is killed at its first try."""
    spark.sparkContext.environment["PYTHONPATH"] = str(ROOT)
    spark.dataSource.register(KillingSource)
    topic = topics.make(2)
    topics.send(topic, numbered(400))
    reader = spark.readStream.format("killing").option("nameServer", topics.namesrv).option("subscribe", topic)
    reader = reader.option("kill", "worker").option("pidFile", str(tmp_path / "killed"))
    frame = reader.option("startingOffsets", "earliest").option("minPartitions", "2").load()
    drain(frame, checkpoint("log"), checkpoint("sink"))
    killed = (tmp_path / "killed").read_text().split()
    assert len(killed) == len(set(killed)) >= 2
    assert rows(spark, checkpoint("sink")) == numbered(400)


def run_until_killed(topics: Topics, topic: str, checkpoint: Folder, phase: str, pid_file: Path) -> str:
    """Run a query in a process of its own until its end; return what it wrote to stderr."""
    words = (topics.namesrv, topic, checkpoint("log"), checkpoint("sink"), phase, str(pid_file))
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.killing", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=KILLED_S,
        check=False,
    )
    assert done.returncode, "nothing was killed"
    assert pid_file.exists(), done.stderr[-3000:]
    return done.stderr


@pytest.mark.slow
@pytest.mark.timeout(KILLED_S + 180)
@pytest.mark.parametrize("phase", PHASES)
def test_a_driver_killed_in_any_phase_goes_on_where_it_was(
    spark: "SparkSession", topics: Topics, checkpoint: Folder, tmp_path: Path, phase: str
) -> None:
    """Scenarios 38 and 39; the restart says ``latest``, and more messages came before it: none is lost.

    Without an offset log there is nothing to go on from, so the restart says ``earliest`` then.
    """
    topic = topics.make(2)
    topics.send(topic, numbered(100))
    pid_file = tmp_path / "pid"
    run_until_killed(topics, topic, checkpoint, phase, pid_file)
    reader = int(pid_file.read_text())
    wait_until(lambda: not is_running(reader), ORPHAN_S)
    is_logged = phase not in ("initialOffset", "latestOffset")
    assert Path(checkpoint("log"), "offsets", "0").exists() == is_logged
    topics.send(topic, numbered(10, 100))
    frame = read_stream(spark, topics, subscribe=topic, startingOffsets="latest" if is_logged else "earliest")
    if phase == "output":
        assert not list(Path(checkpoint("log"), "commits").glob("[0-9]*"))
        writer = frame.writeStream.foreachBatch(write_batch(checkpoint("sink")))
        query = writer.option("checkpointLocation", checkpoint("log")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    else:
        drain(frame, checkpoint("log"), checkpoint("sink"))
    assert rows(spark, checkpoint("sink")) == numbered(110)


@pytest.mark.slow
@pytest.mark.timeout(KILLED_S + 180)
def test_a_worker_killed_where_tasks_are_not_repeated_fails_the_query_which_goes_on_later(
    spark: "SparkSession", topics: Topics, checkpoint: Folder, tmp_path: Path
) -> None:
    """Scenario 36, on ``local[2]``."""
    topic = topics.make(2)
    topics.send(topic, numbered(100))
    said = run_until_killed(topics, topic, checkpoint, "worker", tmp_path / "killed")
    assert "Python worker exited unexpectedly (crashed)" in said
    assert len((tmp_path / "killed").read_text().split()) >= 1
    drain(read_stream(spark, topics, subscribe=topic), checkpoint("log"), checkpoint("sink"))
    assert rows(spark, checkpoint("sink")) == numbered(100)


class Restartable:
    """Our broker, which can be away for a while; it comes back at its addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = start_triomq(folder)
        self.broker, self.namesrv = self._running.broker, self._running.namesrv

    def stop(self) -> None:
        self._running.stop()

    def start(self) -> None:
        # argparse takes the last of two equal options
        self._running = start_triomq(self._folder, "--listen", self.broker, "--namesrv-listen", self.namesrv)


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Restartable]:
    folder = tmp_path / "own-broker"
    folder.mkdir()
    broker = Restartable(folder)
    try:
        yield broker
    finally:
        broker.stop()


def test_a_broker_that_was_away_is_waited_for_but_not_for_ever(
    spark: "SparkSession", restartable: Restartable, checkpoint: Folder
) -> None:
    """Scenario 40: within ``planTimeoutMs`` the query goes on; after it, an error with the address; then it resumes."""

    def start(**options: object) -> "StreamingQuery":
        frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", **options)
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint("log"))
        return writer.option("path", checkpoint("sink")).start()

    with Topics(restartable.namesrv) as topics:
        topic = topics.make(2)
        topics.send(topic, numbered(100))
    query = start(planTimeoutMs=60_000)
    try:
        wait_until(lambda: sum(batches(query)) == 100, 60)
        restartable.stop()
        time.sleep(1)  # longer than what is cached, shorter than the patience
        restartable.start()
        with Topics(restartable.namesrv) as later:
            later.send(topic, numbered(50, 100))
        wait_until(lambda: sum(batches(query)) == 150, 60)
    finally:
        query.stop()
    query = start(planTimeoutMs=1000, connectTimeoutMs=500)
    try:
        wait_until(lambda: query.lastProgress is not None, 60)
        restartable.stop()
        with pytest.raises(StreamingQueryException, match=f"given up .*{re.escape(restartable.broker)}"):
            query.awaitTermination(60)
    finally:
        query.stop()
    restartable.start()
    with Topics(restartable.namesrv) as later:
        later.send(topic, numbered(10, 150))
    drain(read_stream(spark, topics, subscribe=topic), checkpoint("log"), checkpoint("sink"))
    assert rows(spark, checkpoint("sink")) == numbered(160)
