"""A data source that stops in the phase of its option ``kill``, so that the driver can be killed there.

``python -m tests.spark.killing NAMESRV FOLDER PHASE...`` runs one query for each phase, all of them in one session, and
kills their JVM once each has reached its phase.  See :class:`Files` for the files in FOLDER.

Phases, in the order of a query: ``initialOffset``, ``latestOffset``, ``offset log`` (the first one is written),
``partitions``, ``read``, ``output`` (the sink has batch 0, the commit log has not), ``commit``, ``idle``.  Besides:
``latest``, which is ``read`` of a query that begins at the ends of queues; ``written``, which is ``output`` with the
topic ``TOPIC-sink`` for a sink; and ``worker``, which kills the first try of each task instead.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tests.spark.harness import Topics, numbered, wait_until
from triomq.spark import RocketMQDataSource
from triomq.spark.options.options import Options, Use, parse_options
from triomq.spark.reading.driver import MicroBatchReader
from triomq.spark.schema import wanted_columns
from triomq.spark.writing.writer import StreamWriter

IDLE_CALLS = 20
REACHED_S = 60
#: Of the messages that phase ``latest`` sends after the query knows where it begins.
LATER, LATER_BEGIN = 20, 1000


@dataclass(frozen=True)
class Files:
    """The files of one phase.

    Attributes:
        folder: of all phases.
        phase: its name.
    """

    folder: Path
    phase: str

    @property
    def topic(self) -> str:
        return f"{self.folder.name}-{self.phase.replace(' ', '-')}"

    @property
    def checkpoint(self) -> str:
        return str(self.folder / f"{self.phase}.log")

    @property
    def sink(self) -> str:
        return str(self.folder / f"{self.phase}.sink")

    @property
    def pids(self) -> Path:
        """Process id of the stream's reader, or those of killed workers."""
        return self.folder / f"{self.phase}.pid"

    @property
    def reached(self) -> Path:
        """Exists once the phase is reached."""
        return self.folder / f"{self.phase}.reached"

    def hold(self) -> None:
        """Stay in the phase until the driver is dead."""
        java = jvm_above(os.getpid())
        self.reached.touch()
        while is_running(java):
            time.sleep(0.02)


class KillingSource(RocketMQDataSource):
    """``rocketmq`` with the options ``kill`` (a phase) and ``folder``."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamReader(self, schema: StructType) -> MicroBatchReader:  # noqa: N802
        options = dict(self.options)
        files = Files(Path(options.pop("folder")), options.pop("kill"))
        return KillingReader(parse_options(options, Use.STREAM_READ), wanted_columns(schema), files)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options)
        files = Files(Path(options.pop("folder")), "written")
        return KillingWriter(parse_options(options, Use.WRITE), schema, files)


class KillingWriter(StreamWriter):
    def __init__(self, options: Options, schema: StructType, files: Files) -> None:
        super().__init__(options, schema)
        self._files = files

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        self._files.hold()


class KillingReader(MicroBatchReader):
    def __init__(self, options: Options, columns: tuple[str, ...], files: Files) -> None:
        super().__init__(options, columns)
        self._files = files
        self._phase = files.phase
        self._idle_calls = 0
        self._has_latest = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._phase != "worker":
            self._files.pids.write_text(str(os.getpid()))
        found = super().initialOffset()
        self._hold("initialOffset")
        if self._phase == "latest" and not self._has_latest:
            send_later(self._options)
        if self._has_latest:  # Spark asks again once the first offset is logged
            self._hold("offset log")
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found = super().latestOffset(start, limit)
        while self._phase == "latest" and found == start:
            found = super().latestOffset(start, limit)
        self._hold("latestOffset")
        self._has_latest = True
        self._idle_calls += found == start
        if self._idle_calls > IDLE_CALLS:
            self._hold("idle")
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._hold("partitions")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for batch in super().read(partition):
            yield batch
            self._hold("read")
            self._hold("latest")
            if self._phase == "worker" and not context.attemptNumber():
                with self._files.pids.open("a") as file:
                    file.write(f"{os.getpid()}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        self._hold("commit")

    def _hold(self, phase: str) -> None:
        if self._phase == phase:
            self._files.hold()


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


def write_batch(sink: str) -> Callable[[DataFrame, int], None]:
    """Make a sink for ``foreachBatch`` that has each micro-batch once, however often it is written."""
    return lambda frame, batch_id: frame.write.mode("overwrite").parquet(f"{sink}/batch={batch_id}")


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie, whose parent may have ended, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gateway() -> int:
    """The JVM that PySpark started."""
    (java,) = (int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_child_jvm(path))
    return java


def _is_child_jvm(process: Path) -> bool:
    try:
        name, _, rest = (process / "stat").read_text().rpartition(")")
    except OSError:
        return False
    return name.endswith("(java") and int(rest.split()[1]) == os.getpid()


def start(session: SparkSession, namesrv: str, files: Files) -> StreamingQuery:
    """Start the query of a phase."""
    reader = session.readStream.format("killing").option("nameServer", namesrv).option("subscribe", files.topic)
    reader = reader.option("startingOffsets", "latest" if files.phase == "latest" else "earliest")
    reader = reader.option("maxOffsetsPerTrigger", 50).option("group.id", group_of(files.topic))
    frame = reader.option("kill", files.phase).option("folder", str(files.folder)).option("planTimeoutMs", 3000).load()
    writer = frame.writeStream.option("checkpointLocation", files.checkpoint)
    if files.phase == "output":
        write = write_batch(files.sink)

        def write_and_hold(batch: DataFrame, batch_id: int) -> None:
            write(batch, batch_id)
            files.reached.touch()
            threading.Event().wait()

        return writer.foreachBatch(write_and_hold).start()
    if files.phase == "written":
        writer = writer.format("killing").option("nameServer", namesrv).option("folder", str(files.folder))
        return writer.option("topic", f"{files.topic}-sink").start()
    return writer.format("parquet").option("path", files.sink).start()


def main(namesrv: str, folder: str, *phases: str) -> None:
    from tests.spark.killing import Files as TheFiles  # by its module's name, not that of a program
    from tests.spark.killing import KillingSource as Source

    session = (
        SparkSession.builder.master("local[6,4]")
        .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )  # fmt: skip
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(Source)
    all_files = [TheFiles(Path(folder), phase) for phase in phases]
    for files in all_files:
        start(session, namesrv, files)
        wait_until(files.reached.exists, REACHED_S)  # one after the other: starts take the processor
    os.kill(gateway(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
