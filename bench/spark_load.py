"""The PySpark data source beside a bare Python Arrow source, in turns in one session: ratios count."""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench.processes import Server, cpu_s, processes_with, triomq_server, work_folder
from bench.report import print_table, write_json
from bench.spark_stream import stream_figures
from triomq.client.sync import Admin
from triomq.protocol.host import encode_host
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import encode_record
from triomq.spark import register
from triomq.spark.options.options import Options, Use, parse_options
from triomq.spark.reading.columns import ARROW_TYPES, Decoder
from triomq.spark.schema import READ_COLUMNS, ddl_of
from triomq.spark.writing.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

#: The columns that the bars apply to.
COLUMNS: Final = tuple(column.name for column in READ_COLUMNS[:11])
_BATCH_ROWS: Final = 1000
_WRITTEN_ROWS: Final = 100_000
_WRITTEN_BATCH_ROWS: Final = 10_000  # Spark's default
#: Bars of the figures; spark.md 9.
_BARS: Final = {
    "decode_us_per_row": "<= 2.5",
    "read_share_of_bare": ">= 0.40",
    "read_rows_per_s": ">= 100,000",
    "write_rows_per_s": ">= 40,000",
    "writer_cpu_us_per_row": "<= 8",
    "one_row_batch_to_bare": "<= 1.30",
    "idle_reader_cpu_share": "< 0.05",
}
_WORKER: Final = "pyspark.daemon"
_HOST: Final = encode_host("127.0.0.1", 10911)


def run(options: argparse.Namespace) -> int:
    """Fill a topic, read it and a bare source in turns; returns the exit code."""
    figures: dict[str, Any] = {"decode_us_per_row": decode_cpu_us(options.size)}
    with work_folder() as folder, triomq_server(folder) as server:
        figures["writer_cpu_us_per_row"] = writer_cpu_us(server, options.size)
        spark = session()
        try:
            if not options.only_stream:
                figures |= interleaved(spark, server, options)
            if not options.no_stream:
                figures |= stream_figures(spark, server, options.runs)
        finally:
            spark.stop()
    rows = [[name, f"{value:,.2f}", _BARS.get(name, "")] for name, value in figures.items()]
    print_table("bench spark", ["figure", "value", "bar"], rows)
    if options.json:
        write_json(options.json, {"bench": "spark", "count": options.count, "size": options.size, **figures})
    return 0


def session(jars: Iterable[Path] = ()) -> SparkSession:
    """Start Spark quietly, on two cores of this machine, with some more jars."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", ",".join(map(str, jars)))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    spark.dataSource.register(BareSource)
    return spark


def interleaved(spark: SparkSession, server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Write, then read both sources in turns; returns medians of rows per second and ratios."""
    topic = make_topic(server)
    rows = made_rows(spark, options.count, options.size)
    bare = spark.read.format("bare").option("count", options.count).option("size", options.size)
    ours = reader(spark, server, topic, COLUMNS)
    written, cpu_us = [], 0.0
    for _ in range(2):
        used_s = _workers_cpu_s()
        written.append(timed(lambda: write(rows, server, topic), options.count))
        cpu_us = (_workers_cpu_s() - used_s) / options.count * 1e6
    total = 2 * options.count
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(options.runs + 1):
        rates["bare"].append(timed(lambda: drop(bare.load()), options.count))
        rates["ours"].append(timed(lambda: drop(ours.load()), total))
    medians = {name: statistics.median(found[1:]) for name, found in rates.items()}
    return {
        "read_share_of_bare": medians["ours"] / medians["bare"],
        "read_rows_per_s": medians["ours"],
        "bare_rows_per_s": medians["bare"],
        "write_rows_per_s": written[-1],
        "write_worker_cpu_us_per_row": cpu_us,
        "load_average": os.getloadavg()[0],
    }


def _workers_cpu_s() -> float:
    """Return the CPU time that Spark's Python workers used so far, with taking rows from the JVM."""
    return sum(cpu_s(pid) for pid in processes_with(_WORKER))


def make_topic(server: Server) -> str:
    """Make a topic with a queue for each core."""
    topic = f"bench-{time.time_ns():x}"
    with Admin(namesrv=server.namesrv) as admin:
        admin.create_topic(topic, queues=2)
    return topic


def made_rows(spark: SparkSession, count: int, size: int) -> "DataFrame":
    """Return so many messages with bodies of so many bytes."""
    return spark.range(count, numPartitions=2).select(
        f.lpad(f.col("id").cast("string"), size, "x").alias("body"),
        f.col("id").cast("string").alias("keys"),
        f.lit("A").alias("tags"),
        f.create_map(f.lit("a"), f.lit("b")).alias("properties"),
    )


def reader(spark: SparkSession, server: Server, topic: str, columns: Sequence[str]) -> "DataFrameReader":
    """Return a reader of one of our topics."""
    return (
        spark.read.format("rocketmq").option("nameServer", server.namesrv).option("subscribe", topic)
        .schema(ddl_of(columns))
    )  # fmt: skip


def write(rows: "DataFrame", server: Server, topic: str) -> None:
    """Append rows to a topic."""
    rows.write.format("rocketmq").option("nameServer", server.namesrv).option("topic", topic).mode("append").save()


def drop(frame: "DataFrame") -> None:
    """Read everything and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def timed(action: Callable[[], None], rows: int) -> float:
    """Return rows per second."""
    began = time.perf_counter()
    action()
    return rows / (time.perf_counter() - began)


def decode_cpu_us(size: int) -> float:
    """Return the CPU time for decoding a record of a chunk of 1 MiB, in microseconds."""
    count = max(256, 1024**2 // size)
    chunk = b"".join(_record(number, size) for number in range(count))
    decoder = Decoder(MessageQueue("T", "broker-a", 0), COLUMNS, Options({}))
    times = []
    for _ in range(20):
        began = time.process_time()
        for _batch in decoder.decode(chunk, 0, count):
            pass
        times.append(time.process_time() - began)
    return statistics.median(times) / count * 1e6


def writer_cpu_us(server: Server, size: int) -> float:
    """Return the CPU time for encoding and sending a row, in microseconds, without taking it from Spark."""
    batches = [_rows_to_write(begin, size) for begin in range(0, _WRITTEN_ROWS, _WRITTEN_BATCH_ROWS)]
    given = {"nameServer": server.namesrv, "topic": make_topic(server)}
    task = BatchWriter(parse_options(given, Use.WRITE), from_arrow_schema(batches[0].schema))
    times = []
    for turn in range(5):
        began = time.process_time()
        task.send(iter(batches), "bench", 0, turn)
        times.append(time.process_time() - began)
    return statistics.median(times) / _WRITTEN_ROWS * 1e6


def _rows_to_write(begin: int, size: int) -> Any:
    numbers = [str(number) for number in range(begin, begin + _WRITTEN_BATCH_ROWS)]
    offsets = pa.array(range(len(numbers) + 1), pa.int32())
    properties = pa.MapArray.from_arrays(offsets, pa.array(["a"] * len(numbers)), pa.array(["b"] * len(numbers)))
    columns = {
        "body": [number.rjust(size, "x") for number in numbers],
        "keys": numbers,
        "tags": ["A"] * len(numbers),
        "properties": properties,
    }
    return pa.RecordBatch.from_pydict(columns)


def _record(number: int, size: int) -> bytes:
    properties = {
        "KEYS": f"k{number}", "TAGS": "A", "UNIQ_KEY": f"7F00000100002A139A55{number:012X}", "WAIT": "true",
        "CLUSTER": "DefaultCluster", "a": "b",
    }  # fmt: skip
    return encode_record(
        queue_id=0, queue_offset=number, physical_offset=number * 1200, sys_flag=0, born_timestamp=1, born_host=_HOST,
        store_timestamp=2, store_host=_HOST, body=bytes(size), topic=b"T", properties=encode_properties(properties),
    )  # fmt: skip


class BareSource(DataSource):
    """What a Python source can do at most: batches made from nothing, with the same columns."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return ddl_of(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BareReader(int(self.options["count"]), int(self.options["size"]))


class BareReader(DataSourceReader):
    """Two partitions."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        pairs = pa.MapArray.from_arrays(
            pa.array(range(0, 3 * _BATCH_ROWS + 1, 3), pa.int32()),
            pa.array(["a", "b", "c"] * _BATCH_ROWS),
            pa.array(["x", "y", "z"] * _BATCH_ROWS),
        )
        made: dict[str, Any] = {
            "body": bytes(self._size), "queueId": 0, "queueOffset": 1, "flag": 0, "bornTime": 0
        }  # fmt: skip
        for _ in range(self._count // 2 // _BATCH_ROWS):
            columns = [
                pairs
                if name == "properties"
                else pa.repeat(pa.scalar(made.get(name, "text"), ARROW_TYPES[name]), _BATCH_ROWS)
                for name in COLUMNS
            ]
            schema = pa.schema([(name, ARROW_TYPES[name]) for name in COLUMNS])
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
