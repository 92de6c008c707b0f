"""Micro-batches of one row beside those of a bare Python source, in turns; and the CPU time of an idle stream."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bench.processes import Server, cpu_s, processes_with
from triomq.client.sync import Admin, Producer
from triomq.protocol.record.message import Message
from triomq.spark.reading.columns import ARROW_TYPES
from triomq.spark.schema import READ_COLUMNS, ddl_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_COLUMNS: Final = tuple(column.name for column in READ_COLUMNS)
#: Batches of one query; Spark keeps the progress of no more than 100.
_BATCHES: Final = 25
_WARM_UP_BATCHES: Final = 3
_QUERY_S: Final = 300
_IDLE_S: Final = 10
_READER: Final = "python_streaming_source_runner"


def stream_figures(spark: SparkSession, server: Server, runs: int) -> dict[str, float]:
    """Run queries of both sources in turns; returns medians of a trigger in milliseconds, ratios and idle costs."""
    spark.dataSource.register(BareStreamSource)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for run in range(runs + 1):
        topic = new_topic(server)
        with Producer("BENCH", namesrv=server.namesrv) as producer:
            producer.send_batch([Message(topic, b"x" * 1024, tags="A", keys=["k"]) for _ in range(_BATCHES)])
        ours = _ours(spark, server, topic).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1)
        for name, reader in (("bare", spark.readStream.format("bare-stream")), ("ours", ours)):
            found = trigger_times_ms(reader.load())
            if run:  # the first does not count
                times[name] += found
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "one_row_batch_to_bare": medians["ours"] / medians["bare"],
        "one_row_batch_ms": medians["ours"],
        "one_row_batch_bare_ms": medians["bare"],
        "idle_reader_cpu_share": idle_cpu_share(_ours(spark, server, new_topic(server)).load()),
    }


def new_topic(server: Server) -> str:
    """Make a topic of one queue."""
    topic = f"bench-stream-{time.time_ns():x}"
    with Admin(namesrv=server.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    return topic


def _ours(spark: SparkSession, server: Server, topic: str) -> Any:
    return spark.readStream.format("rocketmq").option("nameServer", server.namesrv).option("subscribe", topic)


def trigger_times_ms(frame: "DataFrame") -> list[float]:
    """Read the topic in micro-batches of one row; return the time of each without the first ones."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        query = _to_nowhere(frame, folder, availableNow=True)
        if not query.awaitTermination(_QUERY_S):
            raise TimeoutError(f"the query did not end within {_QUERY_S} s")
        found = [progress for progress in query.recentProgress if progress.numInputRows]
    if [progress.numInputRows for progress in found] != [1] * _BATCHES:
        raise RuntimeError(f"the query had other batches than {_BATCHES} of one row")
    return [float(progress.durationMs["triggerExecution"]) for progress in found[_WARM_UP_BATCHES:]]


def idle_cpu_share(frame: "DataFrame") -> float:
    """Return the share of a core that the process of a stream's reader takes while the topic is empty."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        before = set(processes_with(_READER))
        query = _to_nowhere(frame, folder)
        try:
            while query.lastProgress is None:
                query.awaitTermination(1)  # raises its error
            (pid,) = set(processes_with(_READER)) - before
            began, used_s = time.perf_counter(), cpu_s(pid)
            query.awaitTermination(_IDLE_S)
            return (cpu_s(pid) - used_s) / (time.perf_counter() - began)
        finally:
            query.stop()


def _to_nowhere(frame: "DataFrame", checkpoint: str, **trigger: bool) -> "StreamingQuery":
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


class BareStreamSource(DataSource):
    """What a Python source costs at least: one row in each micro-batch, made from nothing."""

    @classmethod
    def name(cls) -> str:
        return "bare-stream"

    def schema(self) -> str:
        return ddl_of(_COLUMNS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return BareStreamReader()


class BareStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One partition."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"offset": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"offset": min(start["offset"] + 1, _BATCHES)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        return

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        made: dict[str, Any] = {"body": b"x" * 1024, "properties": {"a": "b"}}
        types = {name: ARROW_TYPES[name] for name in _COLUMNS}
        columns = [
            pa.array([made.get(name, "text" if pa.types.is_string(kind) else 0)], kind) for name, kind in types.items()
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(types.items())))
