"""Our data source beside Spark's Kafka connector: the same rows, written and read in turns in one session.

Each has its broker on this machine, with its log on disk, settings as they come, and two queues.  A turn
writes the same rows to both, or reads all that was written into the sink ``noop``.  Reads are compared twice: with the
six columns that both have, and with all that the connector gives, headers too, beside our first eleven.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from bench.kafka import VERSION, Connector, JarsMissingError, fetch_connector, fetch_server, kafka_server
from bench.processes import Server, tree_cpu_s, triomq_server, work_folder
from bench.report import print_table, write_json
from bench.spark_load import COLUMNS, drop, made_rows, make_topic, reader, session, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOPIC: Final = "bench"
#: What both have, ours and theirs.
_SHARED: Final = {
    "keys": "key", "body": "value", "topic": "topic", "queueId": "partition", "queueOffset": "offset",
    "storeTime": "timestamp",
}  # fmt: skip
_BAR: Final = 1.0
_WRITES: Final = 3  # the first one of each does not count


class Turn(NamedTuple):
    """What one action took."""

    rows_per_s: float
    cpu_us_per_row: float


def run(options: argparse.Namespace) -> int:
    """Fetch the jars, run both brokers and measure; returns the exit code."""
    with work_folder() as folder:
        cache = Path(options.jars).absolute() if options.jars else folder / "jars"
        try:
            server_jars = fetch_server(cache)
            connector, connector_jars = fetch_connector(cache, pyspark.__version__)
        except JarsMissingError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 1
        (folder / "kafka").mkdir()
        with triomq_server(folder / "triomq") as ours, kafka_server(server_jars, folder / "kafka", 2) as theirs:
            spark = session(sorted(connector_jars.glob("*.jar")))
            try:
                turns = _measure(spark, ours, theirs, options)
            finally:
                spark.stop()
    _report(turns, connector, options)
    return 0


def _measure(spark: SparkSession, ours: Server, bootstrap: str, options: argparse.Namespace) -> dict[str, list[Turn]]:
    topic = make_topic(ours)
    rows = made_rows(spark, options.count, options.size)
    turns: dict[str, list[Turn]] = {}

    def measure(rows_of_turn: int, actions: dict[str, Callable[[], None]], runs: int) -> None:
        for number in range(runs):
            for name, action in actions.items():
                turn = _timed(action, rows_of_turn)
                print(f"{name:26} {turn.rows_per_s:10,.0f} rows/s", file=sys.stderr, flush=True)
                if number:
                    turns.setdefault(name, []).append(turn)

    writes = {
        "triomq, write": lambda: write(rows, ours, topic),
        "Kafka, write": lambda: _write_kafka(rows, bootstrap),
    }
    measure(options.count, writes, _WRITES)
    frames: dict[str, Callable[[], DataFrame]] = {
        "triomq, shared columns": reader(spark, ours, topic, tuple(_SHARED)).load,
        "Kafka, shared columns": lambda: _load_kafka(spark, bootstrap).select(*_SHARED.values()),
        "triomq, all columns": reader(spark, ours, topic, COLUMNS).load,
        "Kafka, all columns": lambda: _load_kafka(spark, bootstrap, includeHeaders="true"),
    }
    total = _WRITES * options.count
    for name, load in frames.items():
        if (found := load().count()) != total:
            raise RuntimeError(f"{name}: {found} rows were read, {total} were written")
    measure(total, {name: _dropping(load) for name, load in frames.items()}, options.runs + 1)
    return turns


def _write_kafka(rows: "DataFrame", bootstrap: str) -> None:
    """Append the same rows; tags and properties are headers there."""
    headers = f.expr(
        "transform(map_entries(map_concat(map('TAGS', tags), properties)), "
        "each -> named_struct('key', each.key, 'value', cast(each.value as binary)))"
    )
    frame = rows.select(f.col("keys").alias("key"), f.col("body").alias("value"), headers.alias("headers"))
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", _TOPIC).option(
        "includeHeaders", "true"
    ).mode("append").save()


def _load_kafka(spark: SparkSession, bootstrap: str, **settings: str) -> "DataFrame":
    return (
        spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", _TOPIC)
        .options(**settings).load()
    )  # fmt: skip


def _dropping(load: Callable[[], "DataFrame"]) -> Callable[[], None]:
    return lambda: drop(load())


def _timed(action: Callable[[], None], rows: int) -> Turn:
    cpu_s, began = tree_cpu_s(), time.perf_counter()
    action()
    return Turn(rows / (time.perf_counter() - began), (tree_cpu_s() - cpu_s) / rows * 1e6)


def _report(turns: dict[str, list[Turn]], connector: Connector, options: argparse.Namespace) -> None:
    """Print ratios first, then the times they come from."""
    rates = {name: statistics.median(turn.rows_per_s for turn in found) for name, found in turns.items()}
    costs = {name: statistics.median(turn.cpu_us_per_row for turn in found) for name, found in turns.items()}
    bars = {"shared columns": _BAR, "all columns": _BAR, "write": None}
    ratios = {name: rates[f"triomq, {name}"] / rates[f"Kafka, {name}"] for name in bars}
    rows = [[name, f"{ratios[name]:.2f}", "" if bar is None else f"{bar:.1f}"] for name, bar in bars.items()]
    title = (
        f"triomq / Kafka {VERSION}, rows/s; PySpark {pyspark.__version__}, connector {connector.version} "
        f"(tokens {connector.token_version}), local[2], {options.size} B, {_WRITES * options.count:,} rows"
    )
    print_table(title, ["ratio of medians", "value", "bar"], rows)
    figures = [
        [name, f"{rates[name]:,.0f}", f"{costs[name]:.1f}", " ".join(f"{turn.rows_per_s:,.0f}" for turn in found)]
        for name, found in turns.items()
    ]
    print_table(
        f"Medians, CPU of all processes; load average {os.getloadavg()[0]:.1f}",
        ["what", "rows/s", "CPU us/row", "turns"],
        figures,
    )
    if options.json:
        report: dict[str, Any] = {"bench": "spark-kafka", "count": options.count, "size": options.size}
        report |= {"kafka": VERSION, "spark": pyspark.__version__, "connector": connector._asdict()}
        write_json(options.json, report | {"ratios": ratios, "rows_per_s": rates, "cpu_us_per_row": costs})
