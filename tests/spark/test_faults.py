"""Scenarios 36 and 38 to 40: what is killed or goes away, and every message is in the sink once."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.processes import Broker, start_triomq
from tests.spark.harness import Topics, batches, drain, numbered, read_stream
from tests.spark.killing import KillingSource, write_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "own-broker"
    path.mkdir()
    return path


def start_again(folder: Path, before: Broker) -> Broker:
    """Start the broker at the addresses it had; argparse takes the last of two equal options."""
    return start_triomq(folder, "--listen", before.broker, "--namesrv-listen", before.namesrv)


def test_a_broker_that_was_away_is_waited_for_but_not_for_ever(
    spark: "SparkSession", folder: Path, checkpoint: Folder
) -> None:
    """Scenario 40: within ``planTimeoutMs`` the query goes on; after it, an error with the address; then it resumes."""
    with start_triomq(folder) as first, Topics(first.namesrv) as topics:
        topic = topics.make(2)
        topics.send(topic, numbered(100))
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        patient = read_stream(spark, topics, **options, planTimeoutMs=30_000)
        query = (
            patient.writeStream.format("parquet").option("checkpointLocation", checkpoint("log"))
            .option("path", checkpoint("sink")).start()
        )  # fmt: skip
        try:
            wait_until(lambda: sum(batches(query)) == 100, 60)
            first.stop()
            time.sleep(3)  # longer than what is cached, shorter than the patience
            with start_again(folder, first) as second:
                with Topics(second.namesrv) as later:
                    later.send(topic, numbered(50, 100))
                wait_until(lambda: sum(batches(query)) == 150, 60)
                query.stop()
            impatient = read_stream(spark, topics, **options, planTimeoutMs=1000, connectTimeoutMs=500)
            with pytest.raises(StreamingQueryException, match=first.broker.rpartition(":")[0]):
                drain(impatient, checkpoint("log"), checkpoint("sink"))
            with start_again(folder, first):
                drain(patient, checkpoint("log"), checkpoint("sink"))
        finally:
            query.stop()
    assert rows(spark, checkpoint("sink")) == numbered(150)
