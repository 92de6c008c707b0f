"""Scenario 51: the jobs, as commands: exit codes, counts in the last line, signals.

Most run in this process and leave their session to the next one, since starts are what takes time; one starts and ends
its own, and ``spark-submit`` itself has one test.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from tests.spark.harness import Topics, numbered, stop_session
from triomq.spark.jobs import aggregate, consume, produce, replay
from triomq.spark.jobs.shared import program
from triomq.spark.jobs.shared.running import Tally
from triomq.spark.jobs.shared.session import submit_settings

SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
JOBS = ("produce", "consume", "aggregate", "replay")
Run = Callable[..., dict[str, Any]]
#: Carrier, delay and event time in hours; one delay is missing, the last row comes two days late.
FLIGHTS = [("UA", 5.0, 1), ("UA", None, 2), ("DL", -1.0, 30), ("DL", 3.0, 31), ("AA", 7.0, 100)]
LATE = ("UA", 9.0, 3)


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
        monkeypatch.setattr(program, "_stop", lambda _: None)


@pytest.fixture
def own_session() -> None:
    """Let the jobs of this test start and stop a session each."""
    stop_session()


@pytest.fixture
def run(topics: Topics, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a job in this process, with ``--json``; return its counts after checking its exit code."""

    def run_one(job: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
        local = ("--master", "local[1,4]", "--namesrv", topics.namesrv, "--json")
        assert job.main([*arguments, *local]) == code
        found = capsys.readouterr()
        # PySpark itself may write a traceback of its accumulator server when a session ends.
        said = [line for line in found.err.splitlines() if line.startswith("python -m triomq")]
        assert len(said) == (code == 1), found.err
        counts: dict[str, Any] = json.loads(found.out.splitlines()[-1]) | {"said": said}
        return counts

    return run_one


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def flight_line(carrier: str, delay: float | None, hour: int) -> str:
    stamp = f"2013-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z"
    return f"{carrier},{'NA' if delay is None else delay},{stamp}\n"


@pytest.mark.parametrize("name", JOBS)
def test_help_and_usage_errors_start_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = import_module(f"triomq.spark.jobs.{name}")
    assert job.main(["--help"]) == 0
    assert "exit codes: 0 done; 1 failed; 2 wrong option" in capsys.readouterr().out
    assert job.main(["--print-path"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == f"{name}.py"
    assert job.main(["--nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_flights_flow_from_file_to_windows_and_other_topic(topics: Topics, run: Run, tmp_path: Path) -> None:
    """Scenarios 24 and 51: produce, consume, aggregate with late rows in a second run, replay."""
    topic, copy = topics.make(1), topics.make(1)
    source = tmp_path / "flights.csv"
    source.write_text("carrier,dep_delay,time_hour\n" + "".join(flight_line(*flight) for flight in FLIGHTS))
    sent = run(produce, "--topic", topic, "--tags", "carrier", "--null", "NA", str(source))
    assert (sent["rows"], sent["bytes"]) == (5, sum(map(len, topics.bodies(topic))))
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


def test_the_rate_source_sends_as_many_rows_as_asked_for(topics: Topics, run: Run, own_session: None) -> None:
    """With a session that the job starts and ends."""
    topic = topics.make(2)
    assert run(produce, "--topic", topic, "--rate-source", "--rate", "100", "--rows", "150")["rows"] == 150
    assert sorted(json.loads(body)["value"] for body in topics.bodies(topic)) == list(range(150))
    assert SparkSession.getActiveSession() is None


@pytest.mark.parametrize("job", [consume, aggregate, replay], ids=["consume", "aggregate", "replay"])
def test_a_query_that_fails_gives_code_1_one_line_and_counts(
    job: Any, topics: Topics, run: Run, tmp_path: Path
) -> None:
    """Scenario 51: a missing topic before Spark starts, a wrong offset in Spark's planning."""
    more = {aggregate: ("--path", str(tmp_path)), replay: ("--topic", topics.make(1))}.get(job, ())
    name, topic = job.__name__.rpartition(".")[2], topics.make(1)
    counts = run(job, "--subscribe", "no-such-topic", *more, code=1)
    assert not counts["rows"]
    assert counts["said"][0].startswith(f"python -m triomq.spark.jobs.{name}: topic 'no-such-topic' does not exist")
    beyond = f'startingOffsets={{"{topic}": {{"broker-a": {{"0": 7}}}}}}'
    counts = run(job, "--subscribe", topic, *more, "--option", beyond, code=1)
    assert not counts["rows"]
    assert f"{topic}@broker-a:0 has the offsets 0 to 0, not 7" in counts["said"][0]


def test_unsendable_rows_exit_with_code_1_one_line_and_counts(topics: Topics, run: Run, tmp_path: Path) -> None:
    """Scenario 51."""
    source = tmp_path / "rows.json"
    source.write_text('{"text": "a"}\n{"other": 1}\n')
    counts = run(produce, "--topic", topics.make(1), "--body", "text", str(source), code=1)
    assert "row 1, column 'body': is null" in counts["said"][0]


@pytest.mark.parametrize(
    ("job", "number", "code"),
    [(consume, signal.SIGINT, 130), (aggregate, signal.SIGTERM, 143)],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_stops_a_stream_which_tells_its_counts(
    job: Any, number: int, code: int, topics: Topics, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 51; a new Spark context takes SIGINT for itself."""
    if number == signal.SIGINT:
        stop_session()
    topic = topics.make(1)
    topics.send(topic, [b'{"carrier": "UA", "dep_delay": 1, "time_hour": "2013-01-01T03:00:00Z"}'] * 50)
    hear = Tally.onQueryProgress

    def end_when_heard(tally: Tally, event: Any) -> None:
        hear(tally, event)
        if event.progress.numInputRows:  # once: a second signal would end this process
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Tally, "onQueryProgress", end_when_heard)
    more = ("--to", "parquet", "--checkpoint", str(tmp_path / "log")) if job is consume else ()
    counts = run(job, "--subscribe", topic, "--path", str(tmp_path / "files"), *more, "--follow", code=code)
    assert counts["rows"] == 50


@pytest.mark.parametrize("job", [produce, replay], ids=["produce", "replay"])
def test_a_signal_cancels_a_batch(job: Any, topics: Topics, run: Run, tmp_path: Path) -> None:
    """Scenario 51."""
    topic = topics.make(1)
    if job is produce:
        source = tmp_path / "rows.json"
        source.write_text("".join(f'{{"n": {n}}}\n' for n in range(2000)))
        words = [str(source)]
    else:
        origin = topics.make(1)
        topics.send(origin, numbered(2000))
        words = ["--subscribe", origin]

    def end_when_sent() -> None:
        deadline = time.monotonic() + 60
        while not topics.bodies(topic) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=end_when_sent)
    killer.start()
    run(job, "--topic", topic, "--rate", "10", *words, code=143)
    killer.join()
    assert len(topics.bodies(topic)) < 2000


def test_each_program_hands_on_its_code() -> None:
    """Scenario 51: all at once; that ``spark-submit`` does the same is in its own test."""
    with ExitStack() as stack:
        running = []
        for name in JOBS:
            path = Path(import_module(f"triomq.spark.jobs.{name}").__file__ or "")
            command = [sys.executable, str(path), "--nonsense"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            running.append((name, stack.enter_context(process)))
        for name, process in running:
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 2, said
            assert f"{name}: " in said


def test_spark_submit_runs_a_job_quietly_and_hands_on_its_code(topics: Topics, tmp_path: Path) -> None:
    """Scenario 51, section 8: one line of the JVM's own on stderr, counts last on stdout; SIGTERM gives 143."""
    topic = topics.make(2)
    topics.send(topic, numbered(100))
    path = Path(consume.__file__)
    sink = tmp_path / "files"
    settings = submit_settings()
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [
        *(str(SPARK_SUBMIT), "--master", "local[2,4]", *words, str(path)),
        *("--namesrv", topics.namesrv, "--subscribe", topic, "--to", "parquet", "--path", str(sink)),
        *("--checkpoint", str(tmp_path / "log")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) <= 1, done.stderr
    heading, counts = done.stdout.splitlines()[-2:]
    assert heading.split()[:2] == ["job", "rows"]
    assert counts.split()[:2] == ["consume", "100"]
    topics.send(topic, numbered(10))
    with subprocess.Popen(
        [*command, "--follow"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline().startswith("batch 1: 10 rows")
        finally:
            running.terminate()
        rest = running.stdout.read()
    assert running.returncode == 143
    assert rest.splitlines()[-1].split()[:2] == ["consume", "10"]
