"""A data source that kills: a worker, or the driver's JVM, in the middle of what its option ``kill`` names.

``python -m tests.spark.killing NAMESRV TOPIC CHECKPOINT SINK PHASE PID_FILE`` runs a query with it until it is killed.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from triomq.spark import RocketMQDataSource
from triomq.spark.options import Options, Use, parse_options
from triomq.spark.schema import wanted_columns
from triomq.spark.source import MicroBatchReader

IDLE_CALLS = 20


class KillingSource(RocketMQDataSource):
    """``rocketmq`` with the options ``kill`` (a phase) and ``pidFile``: the stream's reader, or killed workers."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = dict(self.options)
        phase, pid_file = options.pop("kill"), options.pop("pidfile", None)
        return KillingReader(parse_options(options, Use.STREAM_READ), wanted_columns(schema), phase, pid_file)


class KillingReader(MicroBatchReader):
    def __init__(self, options: Options, columns: tuple[str, ...], phase: str, pid_file: str | None) -> None:
        super().__init__(options, columns)
        self._phase = phase
        self._pid_file = pid_file
        self._idle_calls = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._pid_file is not None and self._phase != "worker":
            Path(self._pid_file).write_text(str(os.getpid()))
        return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found = super().latestOffset(start, limit)
        self._idle_calls += found == start
        if self._idle_calls > IDLE_CALLS:
            self._kill_driver("idle")
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._kill_driver("partitions")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for batch in super().read(partition):
            yield batch
            self._kill_driver("read")
            if self._phase == "worker" and not context.attemptNumber():
                with Path(self._pid_file or "").open("a") as file:
                    file.write(f"{os.getpid()}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self._kill_driver("commit")

    def _kill_driver(self, phase: str) -> None:
        if self._phase == phase:
            os.kill(_jvm(), signal.SIGKILL)


def _jvm() -> int:
    """The nearest process above this one that is Java."""
    pid = os.getpid()
    while pid > 1:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        if name.endswith("(java"):
            return pid
        pid = int(rest.split()[1])
    raise ProcessLookupError("no java above this process")


def main(namesrv: str, topic: str, checkpoint: str, sink: str, phase: str, pid_file: str) -> None:
    from pyspark.sql import SparkSession

    from tests.spark.killing import KillingSource as Source  # by its module's name, not that of a program

    session = (
        SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )  # fmt: skip
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(Source)
    reader = session.readStream.format("killing").option("nameServer", namesrv).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 50)
    frame = reader.option("kill", phase).option("pidFile", pid_file).option("planTimeoutMs", 3000).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", sink)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
