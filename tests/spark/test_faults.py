"""Scenarios 22, 30, 36, 38 to 40 and 44: processes are killed, and every message is in the sink once."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.processes import start_triomq
from tests.spark.checkpoints import durable, logged
from tests.spark.harness import (
    ROOT,
    Topics,
    batches,
    bodies,
    bounded,
    drain,
    numbered,
    read,
    read_stream,
    run_program,
    start,
    wait_until,
)  # fmt: skip
from tests.spark.killing import LATER, LATER_BEGIN, Files, KillingSource, group_of, is_running, write_batch
from triomq.spark import deduplicated

Folder = Callable[[str], str]
KILLED_S = 240
PHASES = (
    "initialOffset", "latestOffset", "offset log", "partitions", "read",
    "output", "written", "commit", "idle", "latest",
)  # fmt: skip
AWAY_S = 4  # longer than the pauses between attempts, shorter than planTimeoutMs
ORPHAN_S = 60  # on a calm machine 3, planTimeoutMs of the driver, and 2 to end


def test_a_worker_killed_while_it_reads_costs_nothing(
    spark: SparkSession, topics: Topics, checkpoint: Folder, tmp_path: Path
) -> None:
    """Scenario 36, where Spark tries again: each task of each micro-batch is killed at its first try."""
    spark.sparkContext.environment["PYTHONPATH"] = str(ROOT)
    spark.dataSource.register(KillingSource)
    topic = topics.make(2)
    topics.send(topic, numbered(400))
    reader = spark.readStream.format("killing").option("nameServer", topics.namesrv).option("subscribe", topic)
    reader = reader.option("kill", "worker").option("folder", str(tmp_path))
    frame = reader.option("startingOffsets", "earliest").option("minPartitions", "2").load()
    drain(frame, checkpoint("log"), checkpoint("sink"))
    killed = Files(tmp_path, "worker").pids.read_text().split()
    assert len(killed) == len(set(killed)) >= 2
    assert bodies(spark, checkpoint("sink")) == numbered(400)


def run_until_killed(topics: Topics, folder: Path, *phases: str) -> str:
    """Run a query for each phase in one process until its end; return its stderr."""
    for phase in phases:
        topics.send(topics.make(2, Files(folder, phase).topic), numbered(100))
    done = run_program("tests.spark.killing", topics.namesrv, str(folder), *phases, timeout_s=KILLED_S)
    assert done.returncode, "nothing was killed"
    for phase in phases:
        assert Files(folder, phase).pids.exists(), done.stderr[-3000:]
    return done.stderr


def check_group(topics: Topics, files: Files) -> None:
    """Scenario 22: a group's offsets are never above those of the commit log, and equal to them in the end."""
    stored = {one.queue: one.consumer_offset for one in topics.admin.group_lag(group_of(files.topic), files.topic)}
    found = durable(files.checkpoint)
    assert all(offset <= (found.ends[queue] if found else 0) for queue, offset in stored.items())
    if files.phase == "idle":
        assert found is not None
        assert stored == found.ends


@pytest.fixture(scope="module")
def killed(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver that was killed in all phases: one query was in each of them."""
    folder = tmp_path_factory.mktemp("killed")
    topics.make(2, f"{Files(folder, 'written').topic}-sink")
    said = run_until_killed(topics, folder, *PHASES)
    readers = [int(Files(folder, phase).pids.read_text()) for phase in PHASES]
    for phase in PHASES:
        assert Files(folder, phase).reached.exists(), (phase, said[-3000:])
    wait_until(lambda: not any(map(is_running, readers)), ORPHAN_S)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(KILLED_S + 180)
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "written"])
def test_a_driver_killed_in_any_phase_resumes(spark: SparkSession, topics: Topics, killed: Path, phase: str) -> None:
    """Scenarios 22, 38 and 39; the restart says ``latest``, and more messages came before it: none is lost.

    Without an offset log a query cannot resume, so the restart begins at ``earliest``.
    """
    files = Files(killed, phase)
    check_group(topics, files)
    is_logged = phase not in ("initialOffset", "latestOffset")
    assert (0 in logged(files.checkpoint)) == is_logged
    topics.send(files.topic, numbered(10, 100))
    frame = read_stream(spark, topics, subscribe=files.topic, startingOffsets="latest" if is_logged else "earliest")
    if phase == "output":
        assert durable(files.checkpoint) is None
        writer = frame.writeStream.foreachBatch(write_batch(files.sink))
        query = writer.option("checkpointLocation", files.checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    else:
        drain(frame, files.checkpoint, files.sink)
    found = bodies(spark, files.sink)
    if phase == "latest":
        assert found == numbered(10, 100) + numbered(LATER, LATER_BEGIN)
    else:
        assert found == numbered(110)


@pytest.mark.slow
@pytest.mark.timeout(KILLED_S + 180)
def test_rows_resent_after_driver_kill_keep_their_ids(spark: SparkSession, topics: Topics, killed: Path) -> None:
    """Scenario 30: killed after all rows of batch 0 were sent, before the commit."""
    files = Files(killed, "written")
    target = f"{files.topic}-sink"
    assert durable(files.checkpoint) is None
    first = Counter(row.rowId for row in read(spark, topics, subscribe=target).collect())
    assert list(first.values()) == [1] * 50
    frame = read_stream(spark, topics, subscribe=files.topic)
    writer = frame.writeStream.format("rocketmq").option("nameServer", topics.namesrv).option("topic", target)
    query = writer.option("checkpointLocation", files.checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    rows = read(spark, topics, subscribe=target)
    again = Counter(row.rowId for row in rows.collect())
    assert {row_id: again[row_id] for row_id in first} == dict.fromkeys(first, 2)
    assert sorted(again.values()) == [1] * 50 + [2] * 50
    assert sorted(bytes(row.body) for row in deduplicated(rows).collect()) == numbered(100)


class Restartable:
    """Our broker, which can stop for a while and restart at the same addresses."""

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


@pytest.mark.slow
def test_start_without_broker_names_topic_and_name_server(
    spark: SparkSession, restartable: Restartable, checkpoint: Folder
) -> None:
    """Scenario 44; Apache's name server is still there, but has forgotten the topic with its broker."""
    with Topics(restartable.namesrv) as topics:
        topic = topics.make(2)
        topics.send(topic, numbered(10))
    limits = {"subscribe": topic, "planTimeoutMs": 1500, "readTimeoutMs": 1500, "connectTimeoutMs": 500}
    planned = read(spark, topics, **limits)
    assert planned.count() == 10
    restartable.stop()
    name_server = re.escape(restartable.namesrv)
    with pytest.raises(AnalysisException, match=f"{topic} at {name_server} .*planTimeoutMs.*given up .*{name_server}"):
        bounded(lambda: read(spark, topics, **limits).count())
    stream = read_stream(spark, topics, **limits)
    with pytest.raises(StreamingQueryException, match=f"{topic} at {name_server} .*planTimeoutMs.*given up"):
        bounded(lambda: drain(stream, checkpoint("log"), checkpoint("sink")))
    with pytest.raises(PythonException, match=f"{topic}@.*readTimeoutMs.*given up .*{name_server}"):
        planned.count()  # Spark tries a task twice
    rows = spark.createDataFrame([("x",)], "body string").write.format("rocketmq").mode("append")
    rows = rows.options(nameServer=restartable.namesrv, topic=topic, readTimeoutMs=1500)
    with pytest.raises(PythonException, match=f"{topic}, rows 0 to 0 .*readTimeoutMs.*given up .*{name_server}"):
        rows.save()
    restartable.start()
    assert planned.count() == 10


def test_query_waits_limited_time_for_broker(spark: SparkSession, restartable: Restartable, checkpoint: Folder) -> None:
    """Scenario 40: the query continues for ``planTimeoutMs``; then it ends with the address; a restart resumes it."""

    def begin(**options: object) -> StreamingQuery:
        frame = read_stream(spark, topics, subscribe=topic, startingOffsets="earliest", **options)
        return start(frame, checkpoint("log"), checkpoint("sink"))

    with Topics(restartable.namesrv) as topics:
        topic = topics.make(2)
        topics.send(topic, numbered(100))
    query = begin(planTimeoutMs=60_000)
    try:
        wait_until(lambda: sum(batches(query)) == 100, 60)
        restartable.stop()
        time.sleep(AWAY_S)
        restartable.start()
        with Topics(restartable.namesrv) as later:
            later.send(topic, numbered(50, 100))
        wait_until(lambda: sum(batches(query)) == 150, 60)
    finally:
        query.stop()
    query = begin(planTimeoutMs=1000, connectTimeoutMs=500)
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
    assert bodies(spark, checkpoint("sink")) == numbered(160)
