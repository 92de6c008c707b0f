"""Scenarios 45 and 46: what is wrong with an option is told before any connection, and no secret is told at all."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.spark.harness import Topics, drain, numbered
from triomq.spark.options.options import OPTIONS, Option, Use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LEAKING_S = 300
SECRET = "xq7hidden4marker9zz"
#: Any text is right for these; the first names a column that is not there.
FREE_TEXT = ("writeId", "idColumn", "accessKey", "secretKey", "securityToken", "tlsCa", "tlsCert", "tlsKey")


@pytest.fixture
def untouched() -> Iterator[str]:
    """The address of a name server that nobody may connect to."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def wrong_value(option: Option) -> str:
    return {"subscribePattern": "(", "tags": "||"}.get(option.name, "a wrong {value")


def given(option: Option, namesrv: str, value: str) -> dict[str, str]:
    rest = {"nameServer": namesrv}
    if not option.name.startswith(("subscribe", "assign", "topic")):
        rest |= {"topic": "T"} if Use.WRITE in option.uses and Use.BATCH_READ not in option.uses else {"subscribe": "T"}
    return rest | {option.name: value}


def batch_error(spark: "SparkSession", options: dict[str, str]) -> str:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("rocketmq").options(**options).load().collect()
    return str(caught.value)


def write_error(spark: "SparkSession", options: dict[str, str]) -> str:
    writer = spark.range(1).selectExpr("cast(id as string) as body").write.format("rocketmq").options(**options)
    with pytest.raises(AnalysisException) as caught:
        writer.mode("append").save()
    return str(caught.value)


def stream_error(spark: "SparkSession", options: dict[str, str], folder: Path) -> str:
    frame = spark.readStream.format("rocketmq").options(**options).load()
    with pytest.raises(StreamingQueryException) as caught:
        drain(frame, str(folder / "log"), str(folder / "sink"))
    return str(caught.value)


def use_of(option: Option) -> Use:
    """The use to try an option in: that with the quickest error."""
    return next(use for use in (Use.BATCH_READ, Use.WRITE, Use.STREAM_READ) if use in option.uses)


def error_of(spark: "SparkSession", option: Option, options: dict[str, str], folder: Path) -> str:
    match use_of(option):
        case Use.BATCH_READ:
            return batch_error(spark, options)
        case Use.WRITE:
            return write_error(spark, options)
        case Use.STREAM_READ:
            return stream_error(spark, options, folder)


def test_a_wrong_value_is_told_with_what_is_possible(spark: "SparkSession", untouched: str, tmp_path: Path) -> None:
    """Scenario 45, values: types and ranges; one option of each kind, all of them are in ``test_options.py``."""
    checked = [option for option in OPTIONS if option.name not in FREE_TEXT]
    chosen = {re.sub(r"\d+", "N", option.values): option for option in checked}.values()
    assert {use_of(option) for option in chosen} == set(Use)
    for option in chosen:
        text = error_of(spark, option, given(option, untouched, wrong_value(option)), tmp_path)
        assert f"option '{option.name}' " in text
        assert f"possible: {option.values}" in text
        assert "wrong {value" not in text


def test_a_wrong_name_is_told_with_the_valid_ones(spark: "SparkSession", untouched: str, tmp_path: Path) -> None:
    """Scenario 45, names."""
    reading = {"nameServer": untouched, "subscribe": "T", "minPartition": "3"}
    for text, use in (
        (batch_error(spark, reading), Use.BATCH_READ),
        (stream_error(spark, reading, tmp_path), Use.STREAM_READ),
        (write_error(spark, {"nameServer": untouched, "topic": "T", "retry": "3"}), Use.WRITE),
    ):
        assert "unknown option" in text
        assert all(option.name in text for option in OPTIONS if use in option.uses)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": "T", "subscribePattern": "T.*"}, "given: subscribe, subscribePattern"),
        ({"subscribe": "T", "startingOffsets": "latest"}, "latest is for streams"),
        (
            {"subscribe": "T", "startingOffsets": "earliest", "startingTimestamp": "1"},
            "give one of the options starting",
        ),
        ({"subscribe": "T", "endingOffsets": "latest", "endingTimestamp": "1"}, "give one of the options ending"),
        ({"subscribe": "T", "maxOffsetsPerTrigger": "1"}, "'maxOffsetsPerTrigger' is for a streaming read"),
        ({"subscribe": "T", "badRows": "skip"}, "'badRows' is for a write"),
    ],
)
def test_options_that_do_not_fit_together_are_told(
    spark: "SparkSession", untouched: str, options: dict[str, str], words: str
) -> None:
    """Scenario 45, combinations."""
    assert words in batch_error(spark, {"nameServer": untouched, **options})


def test_limits_that_contradict_each_other_are_told(spark: "SparkSession", untouched: str, tmp_path: Path) -> None:
    """Scenario 45, combinations of a stream."""
    limits = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}
    text = stream_error(spark, {"nameServer": untouched, "subscribe": "T", **limits}, tmp_path)
    assert "'minOffsetsPerTrigger' must not be above" in text
    batch_only = {"nameServer": untouched, "subscribe": "T", "endingOffsets": "latest"}
    assert "'endingOffsets' is for a batch read" in stream_error(spark, batch_only, tmp_path)


def test_an_id_column_that_is_not_there_is_told(spark: "SparkSession", untouched: str) -> None:
    """Scenario 45, the column of an option."""
    assert "idColumn" in write_error(spark, {"nameServer": untouched, "topic": "T", "idColumn": "nowhere"})


@pytest.mark.slow
@pytest.mark.timeout(LEAKING_S + 60)
def test_a_secret_in_the_options_is_nowhere_to_be_found(topics: Topics, tmp_path: Path) -> None:
    """Scenario 46: in event log, logs, plans, progress and checkpoints, after signed reads and writes.

    And after errors of all kinds, those of options among them, which tell the option, never its value.
    """
    topic = topics.make(1)
    topics.send(topic, numbered(5))
    folder, secret_file = tmp_path / "out", tmp_path / "secret"
    folder.mkdir()
    secret_file.write_text(SECRET)
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    words = ("-m", "tests.spark.leaking", topics.namesrv, topic, str(folder), str(secret_file))
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, timeout=LEAKING_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:].replace(SECRET.encode(), b"<SECRET>")
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 20
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    texts = {**{str(path): text for path, text in files.items()}, "stdout": done.stdout, "stderr": done.stderr}
    assert any(b"SparkListenerSQLExecutionStart" in text for text in files.values())
    assert any(b"broker-a" in text for text in files.values())
    assert b"secretKey" in done.stdout
    assert b"INFO org.apache.spark" in files[folder / "driver.log"]
    assert [name for name, text in texts.items() if SECRET.encode() in text] == []
