"""Scenario 51: the jobs, as commands: exit codes, counts in the last line, signals.

Most run in this process and share a session, because starts take most of the time; one starts and ends its own, and
``spark-submit`` itself has one test.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tests.spark.harness import Topics, numbered, stop_session, wait_until
from triomq.spark.jobs import aggregate, common, consume, produce, replay

SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
Run = Callable[..., dict[str, Any]]
#: Carrier, delay and event time in hours; one delay is missing, the last row comes two days late.
FLIGHTS = [("UA", 5.0, 1), ("UA", None, 2), ("DL", -1.0, 30), ("DL", 3.0, 31), ("AA", 7.0, 100)]


@pytest.fixture(scope="module", autouse=True)
def _jobs_session() -> Iterator[None]:
    """Take no session of another module, and leave none to it: jobs start theirs with other settings."""
    stop_session()
    yield
    stop_session()


@pytest.fixture(autouse=True)
def _lasting_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs not stop their session, but where the test asks for its own."""
    if "own_session" not in request.fixturenames:
        monkeypatch.setattr(SparkSession, "stop", lambda _: None)


@pytest.fixture
def own_session() -> None:
    """Let the jobs of this test start and stop a session each."""
    stop_session()


@pytest.fixture
def run(topics: Topics, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a job in this process, with ``--json``; check its exit code, and return its counts or its error."""

    def run_one(job: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        local = ("--master", "local[1,4]", "--namesrv", topics.namesrv, "--json")
        assert job.main([*arguments, *local]) == code
        found = capsys.readouterr()
        # PySpark itself may write a traceback of its accumulator server when a session ends.
        errors = [line for line in found.err.splitlines() if line.startswith("python -m triomq")]
        assert len(errors) == (code == 1), found.err
        return {"error": errors[0]} if errors else dict(json.loads(found.out.splitlines()[-1]))

    return run_one


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def flight_line(carrier: str, delay: float | None, hour: int) -> str:
    stamp = f"2013-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z"
    return f"{carrier},{'NA' if delay is None else delay},{stamp}\n"


def test_flights_flow_through_all_four_jobs(topics: Topics, run: Run, tmp_path: Path) -> None:
    """Scenarios 24 and 51: produce, consume, aggregate with late rows in a second run, replay."""
    topic, copy = topics.make(1), topics.make(1)
    source = tmp_path / "flights.csv"
    source.write_text("carrier,dep_delay,time_hour\n" + "".join(flight_line(*flight) for flight in FLIGHTS))
    sent = run(produce, "--topic", topic, "--tags", "carrier", "--null", "NA", str(source))
    assert sent["rows"] == len(topics.bodies(topic)) == 5
    assert json.loads(topics.bodies(topic)[1]) == {"carrier": "UA", "time_hour": "2013-01-01T02:00:00.000Z"}

    files = ("--to", "csv", "--path", str(tmp_path / "files"), "--checkpoint", str(tmp_path / "log"))
    read = run(consume, "--subscribe", topic, "--tags", "UA || AA", "--columns", "tags,body", *files)
    assert read["rows"] == 3
    written = "".join(path.read_text() for path in (tmp_path / "files").glob("*.csv"))
    assert [written.count(carrier) // 2 for carrier in ("UA", "AA", "DL")] == [2, 1, 0]

    windows = ("--subscribe", topic, "--path", str(tmp_path / "windows"), "--watermark", "1 day")
    assert run(aggregate, *windows)["late"] == 0
    topics.send(topic, [json.dumps({"carrier": "UA", "dep_delay": 9, "time_hour": "2013-01-01T03:00:00Z"}).encode()])
    topics.send(topic, [b"no JSON"])
    second = run(aggregate, *windows)
    assert (second["rows"], second["late"], second["unreadable"]) == (2, 1, 1)
    assert second["table"] == [
        {"carrier": carrier, "rows": rows, "with value": values, "mean dep_delay": mean}
        for carrier, rows, values, mean in (("AA", 1, 1, 7.0), ("DL", 2, 2, 1.0), ("UA", 2, 1, 5.0))
    ]
    totals = pyarrow.parquet.read_table(tmp_path / "windows" / "totals").to_pylist()
    assert sorted((row["group"], row["start"].day, row["rows"]) for row in totals) == [
        ("AA", 5, 1), ("DL", 2, 2), ("UA", 1, 2)
    ]  # fmt: skip

    assert run(replay, "--subscribe", topic, "--topic", copy, "--tags", "DL")["rows"] == 2
    assert topics.bodies(copy) == topics.bodies(topic)[2:4]


def test_rate_source_sends_rows_asked_for(topics: Topics, run: Run, own_session: None) -> None:
    """With a session that the job starts and ends."""
    topic = topics.make(2)
    assert run(produce, "--topic", topic, "--rate-source", "--rate", "100", "--rows", "150")["rows"] == 150
    assert sorted(json.loads(body)["value"] for body in topics.bodies(topic)) == list(range(150))
    assert SparkSession.getActiveSession() is None


@pytest.mark.parametrize("job", [consume, replay], ids=["consume", "replay"])
def test_failed_query_ends_with_one_line(job: Any, topics: Topics, run: Run) -> None:
    """Scenario 51: a missing topic before Spark starts, a wrong offset in Spark's planning."""
    more = ("--topic", topics.make(1)) if job is replay else ()
    name, topic = job.__name__.rpartition(".")[2], topics.make(1)
    error = run(job, "--subscribe", "no-such-topic", *more, code=1)["error"]
    assert error.startswith(f"python -m triomq.spark.jobs.{name}: topic 'no-such-topic' does not exist")
    beyond = f'startingOffsets={{"{topic}": {{"broker-a": {{"0": 7}}}}}}'
    error = run(job, "--subscribe", topic, *more, "--option", beyond, code=1)["error"]
    assert f"{topic}@broker-a:0 has the offsets 0 to 0, not 7" in error


def test_unsendable_row_ends_with_one_line(topics: Topics, run: Run, tmp_path: Path) -> None:
    """Scenario 51."""
    source = tmp_path / "rows.json"
    source.write_text('{"text": "a"}\n{"other": 1}\n')
    error = run(produce, "--topic", topics.make(1), "--body", "text", str(source), code=1)["error"]
    assert "row 1, column 'body': is null" in error


@pytest.mark.parametrize(
    ("job", "number", "code"),
    [(consume, signal.SIGINT, 130), (aggregate, signal.SIGTERM, 143)],
    ids=["SIGINT", "SIGTERM"],
)
def test_signal_stops_stream_and_prints_counts(
    job: Any, number: int, code: int, topics: Topics, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 51; a new Spark context takes SIGINT for itself."""
    if number == signal.SIGINT:
        stop_session()
    topic = topics.make(1)
    topics.send(topic, [b'{"carrier": "UA", "dep_delay": 1, "time_hour": "2013-01-01T03:00:00Z"}'] * 50)
    add = common._add

    def end_when_counted(counts: common.Counts, *arguments: Any, **options: Any) -> int:
        last = add(counts, *arguments, **options)
        if counts.rows and not counts.signal:  # once: a second signal would end this process
            os.kill(os.getpid(), number)
        return last

    monkeypatch.setattr(common, "_add", end_when_counted)
    more = ("--to", "parquet", "--checkpoint", str(tmp_path / "log")) if job is consume else ()
    counts = run(job, "--subscribe", topic, "--path", str(tmp_path / "files"), *more, "--follow", code=code)
    assert counts["rows"] == 50


def test_ctrl_c_ends_batch(topics: Topics, tmp_path: Path) -> None:
    """Scenario 51."""
    topic, source = topics.make(1), tmp_path / "rows.json"
    source.write_text("".join(f'{{"n": {n}}}\n' for n in range(2000)))
    command = (sys.executable, "-m", "triomq.spark.jobs.produce", "--namesrv", topics.namesrv, "--topic", topic)
    with subprocess.Popen((*command, "--rate", "10", str(source)), stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: bool(topics.bodies(topic)), timeout_s=240)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert len(topics.bodies(topic)) < 2000


def test_spark_submit_runs_job(topics: Topics, tmp_path: Path) -> None:
    """Scenario 51, section 8: the counts are the last line."""
    topic = topics.make(2)
    topics.send(topic, numbered(100))
    command = [
        *(str(SPARK_SUBMIT), "--master", "local[2,4]", consume.__file__),
        *("--namesrv", topics.namesrv, "--subscribe", topic, "--to", "parquet", "--path", str(tmp_path / "files")),
        *("--checkpoint", str(tmp_path / "log")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("100 rows, ")
