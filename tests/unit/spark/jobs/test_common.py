"""The command line of the jobs, before Spark starts, and their reports."""

import argparse
import json
import runpy
import sys
from typing import Any
from unittest.mock import Mock

import pytest

from triomq.protocol.errors import ConfigError
from triomq.spark.jobs import aggregate, common, consume, produce, replay
from triomq.spark.jobs.common import (
    Counts,
    JobParser,
    SourceOptions,
    _add,
    one_line,
    open_session,
    read_options,
    run_job,
)
from triomq.spark.options.options import Use

OF_A_QUERY = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_ERROR]
Traceback (most recent call last):
  File "reading.py", line 7, in _read
triomq.protocol.errors.RequestTimeoutError: finding queues at 127.0.0.1:1: given
triomq.client.Other: x
"""
OF_PYTHON = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted
Traceback (most recent call last):
  File "x.py", line 1
KeyError: 'a'
ValueError: is not
"""
OF_THE_JVM = """An error occurred while calling o183.load.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed
\tat org.apache.spark.Some.call(Some.scala:1)
Caused by: java.lang.RuntimeException: file:/x is not a Parquet file. Expected: magic
\tat java.base/Thread.run
\t... 1 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OF_THE_JVM, "RuntimeException: file:/x is not a Parquet file. Expected: magic"),
        (OF_A_QUERY, "finding queues at 127.0.0.1:1: given"),
        (OF_PYTHON, "ValueError: is not"),
        ("\nno  such\nfolder", "no such"),
        ("", "OSError"),
        ("x" * 5000, "x" * 2000),
    ],
)
def test_error_line_names_our_error_or_last_cause(text: str, line: str) -> None:
    assert one_line(OSError(text)) == line


@pytest.mark.parametrize("job", [produce, consume, aggregate, replay])
def test_each_program_exits_with_its_code(
    job: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, code in (("--help", 0), ("--print-path", 0), ("--nonsense", 2)):
        monkeypatch.setattr(sys, "argv", ["", option])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(job.__file__, run_name="__main__")
        assert ended.value.code == code
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == job.__file__
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("job", "words", "reason"),
    [
        (consume, ("--to", "csv", "--path", "x"), "--to csv needs --path and --checkpoint"),
        (consume, ("--path", "x"), "--path needs --to parquet or csv"),
        (consume, ("--trigger", "1 second"), "--trigger needs --follow"),
        (consume, ("--columns", "body,nothing"), "--columns: nothing does not exist; the columns are: topic, broker,"),
        (produce, (), "give files, or --rate-source"),
        (produce, ("a.csv", "--rows", "5"), "--rows needs --rate-source"),
        (produce, ("a.txt",), "--format is needed"),
        (replay, ("--topic", "T"), "--topic must differ from the topics that are read"),
    ],
)
def test_contradicting_arguments_are_rejected(
    job: Any, words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--topic", "T") if job is produce else ("--subscribe", "T,U")
    with pytest.raises(SystemExit) as ended:
        job.main([*words, *given, "--namesrv", "h:1"])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_each_micro_batch_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    def progress(batch: int, rows: int) -> Mock:
        metrics = {"parsing": Mock(**{"asDict.return_value": {"unreadable": 1}})}
        return Mock(batchId=batch, numInputRows=rows, processedRowsPerSecond=2.0, sources=[], observedMetrics=metrics)

    counts = Counts()
    last = _add(counts, [progress(0, 5), progress(1, 0)], -1, is_silent=True)
    assert _add(counts, [progress(0, 5), progress(1, 7), progress(2, 1)], last, is_silent=False) == 2
    assert (counts.rows, counts.more) == (13, {"batches": 3, "unreadable": 3})
    assert capsys.readouterr().out.startswith("batch 2: 1 rows, 2 rows/s, lag 0, ")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"startingOffsets": "earliest"}),
        (("--from", "latest", "--tags", "A || B"), {"startingOffsets": "latest", "tags": "A || B"}),
        (("--from", "5", "--max-per-trigger", "9"), {"startingTimestamp": "5", "maxOffsetsPerTrigger": "9"}),
    ],
)
def test_arguments_become_options_of_the_source(words: tuple[str, ...], options: dict[str, str]) -> None:
    parser = JobParser("consume", "")
    parser.add_stream_arguments("none")
    assert read_options(parser.parse_args(["--subscribe", "T", *words])) == {"subscribe": "T", **options}


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "find_topics", Mock())
    monkeypatch.setattr(common, "open_session", Mock())


def start(*words: str, both: bool = True, counts: Counts | None = None) -> tuple[int, SourceOptions]:
    """Run a job that only gets its options."""
    seen: list[SourceOptions] = []

    def run(_spark: object, _arguments: argparse.Namespace, options: SourceOptions) -> Counts:
        seen.append(options)
        return counts or Counts(rows=1)

    reading = {Use.BATCH_READ: {"subscribe": "T"}}
    use = reading | {Use.WRITE: {"topic": "U"}} if both else reading
    return run_job(JobParser("replay", ""), ["--namesrv", "h:1", *words], lambda _: use, run), seen[0]


@pytest.mark.usefixtures("_no_spark")
def test_each_side_gets_the_options_it_knows() -> None:
    words = ("--option", "rateLimit=7", "--option", "tags = A=B", "--option", "planTimeoutMs=9")
    common_options = {"nameServer": "h:1", "planTimeoutMs": "9"}
    assert start(*words) == (
        0,
        {
            Use.BATCH_READ: {"subscribe": "T", "tags": " A=B", **common_options},
            Use.WRITE: {"topic": "U", "rateLimit": "7", **common_options},
        },
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--option", "secret"), "--option takes NAME=VALUE, not 'secret'"),
        (("--option", "rateLimit=7"), "option 'rateLimit' is for a write, this is a batch read"),
        (("--from", "5"), "unrecognized arguments: --from 5"),
    ],
)
def test_wrong_options_end_with_code_2(words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        start(*words, both=False)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"python -m triomq.spark.jobs.replay: {reason}; see --help\n"


@pytest.mark.usefixtures("_no_spark")
def test_counts_are_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = Mock()
    table.collect.return_value = [Mock(**{"asDict.return_value": {"carrier": "UA"}})]
    counts = Counts(rows=10, signal=15, table=table)
    counts.more["late"] = 1
    code, _ = start(counts=counts)
    assert code == 143
    assert capsys.readouterr().out.startswith("10 rows, 1 late, 0.0 seconds, ")
    table.show.assert_called_once()
    start("--json", counts=counts)
    found = json.loads(capsys.readouterr().out)
    assert found.items() >= {"rows": 10, "late": 1, "table": [{"carrier": "UA"}]}.items()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark leaves a pipe open
def test_missing_java_error_names_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with pytest.raises(ConfigError, match=r"Java 17 or newer.*openjdk"):
        open_session("consume", "local[1]")
