"""Scenarios 37, 47 and 48: the jobs on a standalone cluster, the package as a zip or in a packed environment."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.spark.cluster import Cluster, make_packed_environment, open_cluster
from tests.spark.harness import Topics, numbered, tapped_broker
from tests.spark.tap import PULLS, Tap, ancestors, owner_of
from triomq.protocol.wire.command import RemotingCommand
from triomq.spark.archive import write_archive
from triomq.spark.jobs import consume, produce

ROWS = 20_000
#: Shorter queues would share a task.
PACKED_ROWS = 20_000
JOB_S = 170

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def package(cluster: Cluster) -> str:
    path = cluster.folder / "triomq-spark.zip"
    write_archive(path)
    return str(path)


def path_of(job: Any) -> Path:
    return Path(job.__file__)


def submit(
    cluster: Cluster, command: list[str], folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=JOB_S, check=False, cwd=folder,
        env={**cluster.environment, **environment},
    )  # fmt: skip


def told_in(events: Path) -> dict[str, str]:
    """Settings that make Spark wait for all executors, and log the executor of each task."""
    return {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def executors_with_tasks(log: Path) -> set[str]:
    """Ids of the executors that ended a task well, by Spark's event log."""
    (path,) = (file for file in log.rglob("*") if file.is_file() and not file.name.startswith("."))
    events = map(json.loads, path.read_text().splitlines())
    return {
        event["Task Info"]["Executor ID"]
        for event in events
        if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success"
    }


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topics, Tap]]:
    with tapped_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def topics(tapped: tuple[Topics, Tap]) -> Topics:
    return tapped[0]


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    return topics.make(4)


def test_a_zip_is_all_that_executors_need(
    cluster: Cluster, package: str, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Scenario 47, produce: all rows arrived, and both executors worked."""
    source, events = tmp_path / "rows", tmp_path / "events"
    source.mkdir()
    events.mkdir()
    for part in range(4):
        lines = (json.dumps({"n": n, "filler": "x" * 100}) for n in range(part, ROWS, 4))
        (source / f"{part}.json").write_text("\n".join(lines) + "\n")
    settings = {
        "spark.submit.pyFiles": package,
        "spark.sql.files.openCostInBytes": "16777216",  # so that each file is a task
        **told_in(events),
    }
    words = ("--topic", topic, "--format", "json", "--namesrv", topics.namesrv, "--json", str(source))
    done = submit(cluster, cluster.command(path_of(produce), *words, settings=settings))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == ROWS
    assert executors_with_tasks(events) == {"0", "1"}
    assert sorted(json.loads(body)["n"] for body in topics.bodies(topic)) == list(range(ROWS))


def committed_files(sink: Path) -> list[str]:
    """Files that belong to the sink by its log; a killed task may leave others behind, which Spark does not read."""
    logs = [path for path in (sink / "_spark_metadata").iterdir() if path.name.isdigit()]
    entries = [json.loads(line) for path in logs for line in path.read_text().splitlines()[1:]]
    return [str(sink / Path(entry["path"]).name) for entry in entries if entry["action"] == "add"]


def kill_reader(cluster: Cluster, killed: list[int]) -> Callable[[RemotingCommand, int], None]:
    """Return a hook that kills the first executor in the middle of a queue, before its next pull reaches the broker."""

    def before(request: RemotingCommand, port: int) -> None:
        if killed or request.code not in PULLS or int(request.ext_fields["queueOffset"]) < 64:
            return
        above, executors = ancestors(owner_of(port)), cluster.executors()
        if found := [pid for pid in above if pid in executors]:
            killed.extend(found)
            os.kill(found[0], signal.SIGKILL)

    return before


def test_executor_killed_during_task_loses_nothing(
    cluster: Cluster, package: str, tapped: tuple[Topics, Tap], topic: str, tmp_path: Path
) -> None:
    """Scenarios 37 and 47, consume: the sink has the rows of the previous test, each once."""
    topics, tap = tapped
    killed: list[int] = []
    tap.before = kill_reader(cluster, killed)
    sink = tmp_path / "sink"
    words = ("--subscribe", topic, "--to", "parquet", "--path", str(sink), "--checkpoint", str(tmp_path / "log"))
    limits = ("--max-per-trigger", "5000", "--namesrv", topics.namesrv)
    command = cluster.command(path_of(consume), *words, *limits, settings={"spark.submit.pyFiles": package})
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(cluster.environment)
    ) as running:
        assert running.stdout is not None
        try:
            said += running.stdout
        except BaseException:
            running.terminate()
            raise
    assert running.returncode == 0, "".join(said)
    assert len(killed) == 1
    assert said[-1].startswith(f"{ROWS} rows, ")
    rows = pyarrow.parquet.read_table(committed_files(sink), columns=["queueId", "queueOffset", "body"]).to_pylist()
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == len(rows) == ROWS
    assert sorted(json.loads(row["body"])["n"] for row in rows) == list(range(ROWS))


def test_executors_without_package_name_it(cluster: Cluster, package: str, topics: Topics) -> None:
    """Scenario 48: the driver has it, on its own path."""
    topic = topics.make(1)
    topics.send(topic, [b"x"])
    words = ("--subscribe", topic, "--namesrv", topics.namesrv, "--json")
    done = submit(cluster, cluster.command(path_of(consume), *words), PYTHONPATH=package)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No module named 'triomq'" in done.stdout + done.stderr


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Path]:
    """The tar of an environment; with that it has 0.4 GB, so it does not stay."""
    yield make_packed_environment(tmp_path / "packed")
    shutil.rmtree(tmp_path / "packed")


def test_a_packed_environment_is_all_that_executors_need(
    cluster: Cluster, packed: Path, topics: Topics, tmp_path: Path
) -> None:
    """Scenario 47, the second way, consume: both executors read.

    The interpreter's path is relative, so an executor finds only its unpacked archive.
    """
    topic, events = topics.make(2), tmp_path / "events"
    events.mkdir()
    topics.send(topic, numbered(PACKED_ROWS))
    here = packed.parent
    (job,) = here.glob("environment/lib/*/site-packages/triomq/spark/jobs/consume.py")
    sink = tmp_path / "sink"
    words = ("--subscribe", topic, "--to", "parquet", "--path", str(sink), "--checkpoint", str(tmp_path / "log"))
    command = cluster.command(
        job.relative_to(here), *words, "--namesrv", topics.namesrv, "--json",
        settings={"spark.archives": f"{packed}#environment", **told_in(events)},
    )  # fmt: skip
    done = submit(cluster, command, here, PYSPARK_PYTHON="./environment/bin/python")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == PACKED_ROWS
    assert executors_with_tasks(events) == {"0", "1"}
    rows = pyarrow.parquet.read_table(committed_files(sink), columns=["body"]).to_pylist()
    assert sorted(row["body"] for row in rows) == numbered(PACKED_ROWS)
