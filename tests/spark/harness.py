"""What the tests do with topics, and how they read them with Spark."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.processes import start_triomq
from tests.spark.tap import Tap
from triomq.client import TopicSettings
from triomq.client.sync import Admin, ClientInstance, Producer, PullConsumer
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message

ROOT = Path(__file__).parents[2]
_BATCH = 200
_numbers = itertools.count()


class Topics:
    """Makes topics, and fills and looks at them by the client."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        instance = self._stack.enter_context(ClientInstance(self.namesrv))
        self.admin = self._stack.enter_context(Admin(instance=instance))
        self.producer = self._stack.enter_context(Producer("TEST", instance=instance))
        self.consumer = self._stack.enter_context(PullConsumer("TEST", instance=instance))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def make(self, queues: int = 2, name: str | None = None) -> str:
        """Make a topic with a unique name."""
        name = name or f"topic-{next(_numbers)}"
        make_topic(self.admin, name, queues)
        self.consumer.queues(name, refresh=True)
        return name

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self.consumer.queues(topic, refresh=True)

    def send(self, topic: str, bodies: Iterable[bytes], **fields: Any) -> None:
        """Send bodies, evenly over the queues."""
        all_bodies = list(bodies)
        queues = self.queues(topic)
        for index, queue in enumerate(queues):
            self.send_to(queue, all_bodies[index :: len(queues)], **fields)

    def send_to(self, queue: MessageQueue, bodies: Sequence[bytes], **fields: Any) -> None:
        """Send bodies to one queue, in order."""
        for begin in range(0, len(bodies), _BATCH):
            messages = [Message(queue.topic, body, **fields) for body in bodies[begin : begin + _BATCH]]
            self.producer.send_batch(messages, queue=queue)

    def bodies(self, topic: str) -> list[bytes]:
        """Read all bodies of a topic by the client, queue by queue."""
        found = []
        for queue, bounds in sorted(self.consumer.bounds(topic).offsets.items()):
            position = bounds.min_offset
            while position < bounds.max_offset:
                result = self.consumer.pull(queue, position)
                found += [message.body for message in result.messages]
                position = int(result.next_begin_offset)
        return found


def make_topic(admin: Admin, name: str, queues: int) -> None:
    """Make a topic, or give it another number of queues."""
    if name in admin.topics():
        admin.update_topic(name, TopicSettings(read_queues=queues, write_queues=queues), force=True)
    else:
        admin.create_topic(name, queues)


def stop_session() -> None:
    """Stop the session of this process, if there is one; who wants one then starts a new one."""
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


def numbered(count: int, begin: int = 0) -> list[bytes]:
    """Bodies that differ."""
    return [b"%08d" % number for number in range(begin, begin + count)]


def read(spark: SparkSession, topics: Topics, **options: object) -> DataFrame:
    """Read a batch."""
    frame: DataFrame = _with(spark.read, topics, options).load()
    return frame


def read_stream(spark: SparkSession, topics: Topics, **options: object) -> DataFrame:
    """Read a stream."""
    frame: DataFrame = _with(spark.readStream, topics, options).load()
    return frame


def _with(reader: Any, topics: Topics, options: dict[str, object]) -> Any:
    reader = reader.format("rocketmq").option("nameServer", topics.namesrv)
    schema = options.pop("schema", None)
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option({"group_id": "group.id"}.get(name, name), str(value))
    return reader


def start(frame: DataFrame, checkpoint: str, sink: str, **trigger: bool) -> StreamingQuery:
    """Start a query into Parquet files."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", sink)
    return (writer.trigger(**trigger) if trigger else writer).start()


def drain(frame: DataFrame, checkpoint: str, sink: str) -> StreamingQuery:
    """Run a query over what there is now, into Parquet files; raises its error."""
    query = start(frame, checkpoint, sink, availableNow=True)
    assert query.awaitTermination(240), "the query did not end"
    return query


def bodies(spark: SparkSession, sink: str) -> list[bytes]:
    """Bodies that a query wrote into Parquet files, sorted."""
    return sorted(bytes(row.body) for row in spark.read.parquet(sink).select("body").collect())


def wait_until(condition: Callable[[], bool], timeout_s: float = 180) -> None:
    """Wait for a condition; fail if it does not become true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def batches(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had any."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def bounded(action: Callable[[], object]) -> None:
    """Run something that must fail, and fail within 30 s."""
    began = time.monotonic()
    try:
        action()
    finally:
        assert time.monotonic() - began < 30


def run_program(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a module of the tests as a separate program."""
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", *words], env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


@contextmanager
def tapped_broker(folder: Path, *options: str) -> Iterator[tuple[Topics, Tap]]:
    """Start a broker behind a relay."""
    with Tap() as tap, start_triomq(folder, *options, "--advertise", tap.address) as broker:
        tap.target = broker.broker
        with Topics(broker.namesrv) as topics:
            yield topics, tap
