"""A data source that kills: a worker, or the driver's JVM, in the middle of what its option ``kill`` names.

``python -m tests.spark.killing NAMESRV TOPIC CHECKPOINT SINK PHASE PID_FILE`` runs a query with it until it is killed.

Phases, in the order of a query: ``initialOffset``, ``latestOffset``, ``offset log`` (the first one is written),
``partitions``, ``read``, ``output`` (the sink has batch 0, the commit log has not), ``commit``, ``idle``.  Besides:
``latest``, which is ``read`` of a query that begins at the ends of queues; ``written``, which is ``output`` with the
topic SINK for a sink; and ``worker``, which ends the first try of each task.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tests.spark.harness import Topics, numbered
from triomq.spark import RocketMQDataSource
from triomq.spark.options.options import Options, Use, parse_options
from triomq.spark.schema import wanted_columns
from triomq.spark.source import MicroBatchReader
from triomq.spark.writing.writer import StreamWriter, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IDLE_CALLS = 20
#: Of the messages that phase ``latest`` sends after the query knows where it begins.
LATER, LATER_BEGIN = 20, 1000


class KillingSource(RocketMQDataSource):
    """``rocketmq`` with the options ``kill`` (a phase) and ``pidFile``: the stream's reader, or killed workers."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = dict(self.options)
        phase, pid_file = options.pop("kill"), options.pop("pidfile", None)
        return KillingReader(parse_options(options, Use.STREAM_READ), wanted_columns(schema), phase, pid_file)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return KillingWriter(WriteTask.prepare(parse_options(self.options, Use.WRITE), schema))


class KillingWriter(StreamWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        os.kill(jvm_above(os.getpid()), signal.SIGKILL)


class KillingReader(MicroBatchReader):
    def __init__(self, options: Options, columns: tuple[str, ...], phase: str, pid_file: str | None) -> None:
        super().__init__(options, columns)
        self._phase = phase
        self._pid_file = pid_file
        self._idle_calls = 0
        self._has_latest = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._pid_file is not None and self._phase != "worker":
            Path(self._pid_file).write_text(str(os.getpid()))
        found = super().initialOffset()
        self._kill_driver("initialOffset")
        if self._phase == "latest" and not self._has_latest:
            send_later(self._options)
        if self._has_latest:  # Spark asks again once the first offset is logged
            self._kill_driver("offset log")
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found = super().latestOffset(start, limit)
        while self._phase == "latest" and found == start:
            found = super().latestOffset(start, limit)
        self._kill_driver("latestOffset")
        self._has_latest = True
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
            self._kill_driver("latest")
            if self._phase == "worker" and not context.attemptNumber():
                with Path(self._pid_file or "").open("a") as file:
                    file.write(f"{os.getpid()}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self._kill_driver("commit")

    def _kill_driver(self, phase: str) -> None:
        if self._phase == phase:
            os.kill(jvm_above(os.getpid()), signal.SIGKILL)


def send_later(options: Options) -> None:
    """Send what must not be lost although the query began at the ends."""
    with Topics(options["nameServer"]) as topics:
        (topic,) = options["subscribe"]
        topics.send(topic, numbered(LATER, LATER_BEGIN))


def jvm_above(pid: int) -> int:
    """The nearest process that is Java, from this one upwards."""
    while pid > 1:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        if name.endswith("(java"):
            return pid
        pid = int(rest.split()[1])
    raise ProcessLookupError("no java above this process")


def group_of(topic: str) -> str:
    """The group that a query of this program stores its offsets in."""
    return f"group-of-{topic}"


def write_batch(sink: str) -> "Callable[[DataFrame, int], None]":
    """Make a sink for ``foreachBatch`` that has each micro-batch once, however often it is written."""
    return lambda frame, batch_id: frame.write.mode("overwrite").parquet(f"{sink}/batch={batch_id}")


def _write_and_kill(frame: "DataFrame", batch_id: int, sink: str) -> None:
    write_batch(sink)(frame, batch_id)
    java = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_child_jvm(path)]
    os.kill(java[0], signal.SIGKILL)


def _is_child_jvm(process: Path) -> bool:
    """Whether a process is Java and below this one: the gateway that PySpark started."""
    try:
        name, _, rest = (process / "stat").read_text().rpartition(")")
    except OSError:
        return False
    return name.endswith("(java") and int(rest.split()[1]) == os.getpid()


def main(namesrv: str, topic: str, checkpoint: str, sink: str, phase: str, pid_file: str) -> None:
    from pyspark.sql import SparkSession

    from tests.spark.killing import KillingSource as Source  # by its module's name, not that of a program

    session = (
        SparkSession.builder.master("local[2]" if phase == "worker" else "local[2,4]")
        .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )  # fmt: skip
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(Source)
    reader = session.readStream.format("killing").option("nameServer", namesrv).option("subscribe", topic)
    reader = reader.option("startingOffsets", "latest" if phase == "latest" else "earliest")
    reader = reader.option("maxOffsetsPerTrigger", 50).option("group.id", group_of(topic))
    frame = reader.option("kill", phase).option("pidFile", pid_file).option("planTimeoutMs", 3000).load()
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    if phase == "output":
        writer = writer.foreachBatch(lambda batch, batch_id: _write_and_kill(batch, batch_id, sink))
    elif phase == "written":
        writer = writer.format("killing").option("nameServer", namesrv).option("topic", sink)
    else:
        writer = writer.format("parquet").option("path", sink)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
