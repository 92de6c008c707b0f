"""Scenarios 45 and 46: wrong options are errors before any connection, and no error shows a secret."""

import os
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
from triomq.spark.options.options import OPTIONS, Use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LEAKING_S = 300
SECRET = "xq7hidden4marker9zz"


@pytest.fixture
def untouched() -> Iterator[str]:
    """The address of a name server that must get no connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


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


def test_wrong_name_error_lists_valid_names(spark: "SparkSession", untouched: str, tmp_path: Path) -> None:
    """Scenario 45, names."""
    reading = {"nameServer": untouched, "subscribe": "T", "minPartition": "3"}
    for text, use in (
        (batch_error(spark, reading), Use.BATCH_READ),
        (stream_error(spark, reading, tmp_path), Use.STREAM_READ),
        (write_error(spark, {"nameServer": untouched, "topic": "T", "retry": "3"}), Use.WRITE),
    ):
        assert "unknown option" in text
        assert all(option.name in text for option in OPTIONS if use in option.uses)


@pytest.mark.slow
@pytest.mark.timeout(LEAKING_S + 60)
def test_secret_appears_in_no_file_or_log(topics: Topics, tmp_path: Path) -> None:
    """Scenario 46: in event log, logs, plans, progress and checkpoints, after signed reads and writes.

    Also after errors of all kinds, including those of options, which name the option, never its value.
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
