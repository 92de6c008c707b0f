"""Memory of a worker that reads one long queue as one partition, after a tenth of it and after all of it."""

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from bench.processes import Server, descendants, high_water_mib, triomq_server, work_folder
from bench.report import print_table, write_json
from bench.spark_load import drop, session
from tests.backlog import write_backlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

_TOPIC: Final = "bench-memory"
_BODY_BYTES: Final = 100
_WORKER: Final = "pyspark.daemon"
_TENTH: Final = 10
#: spark.md 6 (12, 50).
_BARS: Final = {"worker_mib": "<= 200", "growth": "<= 1.10", "limit_5_s": "< 5"}


def run(options: argparse.Namespace) -> int:
    """Fill a store, read a tenth of it and all of it; returns the exit code."""
    with work_folder() as folder:
        began = time.perf_counter()
        write_backlog(folder, _TOPIC, queues=1, messages=options.count, body_bytes=_BODY_BYTES)
        figures: dict[str, Any] = {"fill_rows_per_s": options.count / (time.perf_counter() - began)}
        with triomq_server(folder, "--no-index") as server:
            spark = session()
            try:
                figures |= _measure(spark, server, options.count)
            finally:
                spark.stop()
    rows = [[name, f"{value:,.2f}", _BARS.get(name, "")] for name, value in figures.items()]
    title = f"bench spark --memory, {options.count:,} messages of {_BODY_BYTES} bytes"
    print_table(title, ["figure", "value", "bar"], rows)
    if options.json:
        write_json(options.json, {"bench": "spark --memory", "count": options.count, **figures})
    return 0


def _measure(spark: SparkSession, server: Server, count: int) -> dict[str, float]:
    """Read in workers that stay, so that the second figure of one is not below the first."""
    figures = {}
    for name, end in (("tenth", count // _TENTH), ("all", count)):
        reader = _reader(spark, server).option("endingOffsets", f'{{"{_TOPIC}": {{"broker-a": {{"0": {end}}}}}}}')
        began = time.perf_counter()
        drop(reader.load())
        figures[f"{name}_rows_per_s"] = end / (time.perf_counter() - began)
        figures[f"{name}_worker_mib"] = max(map(high_water_mib, _workers()))
    began = time.perf_counter()
    _reader(spark, server).load().limit(5).collect()
    limit_s = time.perf_counter() - began
    return {
        "worker_mib": figures["all_worker_mib"],
        "growth": figures["all_worker_mib"] / figures["tenth_worker_mib"],
        "limit_5_s": limit_s,
        **figures,
    }


def _reader(spark: SparkSession, server: Server) -> "DataFrameReader":
    return spark.read.format("rocketmq").option("nameServer", server.namesrv).option("subscribe", _TOPIC)


def _workers() -> Iterator[int]:
    """Yield the Python workers of Spark, those that plan included: they have less."""
    for pid in descendants():
        with suppress(OSError):  # it has ended
            if _WORKER in Path(f"/proc/{pid}/cmdline").read_text():
                yield pid
