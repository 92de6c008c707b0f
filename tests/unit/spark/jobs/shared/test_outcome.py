import json

import pytest

from triomq.spark.jobs.shared.outcome import Outcome, as_pairs, one_line

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
        (OF_PYTHON, "is not"),
        ("\nno  such\nfolder", "no such"),
        ("", "OSError"),
        ("x" * 5000, "x" * 2000),
    ],
)
def test_of_an_error_inside_of_sparks_only_ours_is_told(text: str, line: str) -> None:
    assert one_line(OSError(text)) == line


def test_counts_come_last_and_what_is_not_known_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(job="consume", rows=10, body_bytes=80, batches=2, seconds=4.0, more={"late": 1})
    outcome.table = (("carrier", "rows"), [("UA", 10)])
    outcome.write(as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["carrier", "rows"],
        ["UA", "10"],
        ["job", "rows", "bytes", "batches", "late", "seconds", "rows/s"],
        ["consume", "10", "80", "2", "1", "4.0", "2"],
    ]
    Outcome(job="produce").write(as_json=False)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["produce", "-", "-", "0.0", "-"]


def test_json_is_one_line_with_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(job="aggregate", rows=1, seconds=0.5)
    outcome.table = (("carrier", "rows"), [("UA", 1)])
    outcome.write(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["table"] == [{"carrier": "UA", "rows": 1}]
    assert (found["rows"], found["bytes"], found["rows/s"]) == (1, None, 2)


def test_options_are_pairs() -> None:
    assert as_pairs(["a=1", "b = x=y"]) == {"a": "1", "b": " x=y"}
    with pytest.raises(ValueError, match="NAME=VALUE, not 'secret'"):
        as_pairs(["secret"])
