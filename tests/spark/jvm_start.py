"""Halves the start time of Spark's JVMs: quick compilation, and Spark's classes from an archive.

``python -m tests.spark.jvm_start`` uses Spark as the tests do, so that a JVM that archives its
classes loads them first.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

#: Full optimization does not pay in a JVM that runs for minutes.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MAKE_S: Final = 240


def options(cache: Path) -> str:
    """Return the options for Spark's JVMs; the first call with a cache creates the archive.

    A JVM that the archive does not fit ignores it.
    """
    archive = cache / f"{_fingerprint()}.jsa"
    with (cache / "lock").open("w") as lock:  # only one process creates it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for other in cache.glob("*.jsa"):
                other.unlink()
            _make(archive)
    return f"{QUICK} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _make(archive: Path) -> None:
    made = archive.with_name(f"{os.getpid()}.part")
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={made} -Xlog:disable",
    }
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", __name__], cwd=root, env=environment, capture_output=True, text=True,
        timeout=MAKE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    made.rename(archive)


def _fingerprint() -> str:
    """Return a hash of everything that determines the classes."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=MAKE_S, check=True).stderr
    return hashlib.sha256(f"{java} {pyspark.__version__} {pyspark.__file__}".encode()).hexdigest()[:16]


def load_classes(folder: str) -> None:
    """Read and write a batch and a stream, with Python workers."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    batch = session.range(10).selectExpr("id % 2 as key", "cast(id as string) as text", "map('a', 'b') as pairs")
    batch.mapInArrow(lambda batches: batches, batch.schema).write.parquet(f"{folder}/batch")
    session.read.parquet(f"{folder}/batch").groupBy("key").count().orderBy("key").collect()
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rows.writeStream.format("parquet").option("path", f"{folder}/stream")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(once=True).start()
    query.awaitTermination(MAKE_S)
    session.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        load_classes(folder)
