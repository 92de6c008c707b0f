"""A topic that is deleted, or deleted and made again, under a stream: at a real broker, without Spark."""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from triomq.client.sync import Admin, ClientInstance, Producer
from triomq.protocol.errors import DataLossError, NoRouteError
from triomq.protocol.record.message import Message
from triomq.spark.connections import close_clients
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading.driver import MicroBatchReader
from triomq.spark.reading.partition_reader import read_ranges
from triomq.spark.reading.planning import Partition
from triomq.testing import RunningBroker

READ, UNREAD = 6, 4
_numbers = itertools.count()


class Stream:
    """Calls the reader of a stream as Spark does, and keeps the offset of its checkpoint; it has read a topic."""

    def __init__(self, stack: ExitStack, namesrv: str) -> None:
        stack.callback(close_clients)
        instance = stack.enter_context(ClientInstance(namesrv))
        self.admin = stack.enter_context(Admin(instance=instance))
        self.producer = stack.enter_context(Producer("TEST", instance=instance))
        self.topic = f"deleted-{next(_numbers)}"
        self.admin.create_topic(self.topic, 1)
        (self.queue,) = self.admin.topic_stats(self.topic)
        self.texts = {"nameServer": namesrv, "startingOffsets": "earliest", "subscribe": self.topic}
        self.checkpoint: dict[str, Any] | None = None
        self.now = 1000.0
        self.start()
        stack.callback(lambda: self.driver.stop())
        self.send(READ)
        assert len(self.read()) == READ

    def start(self, *, available_now: bool = False, **more: str) -> None:
        self.texts |= more
        self.options = parse_options(self.texts, Use.STREAM_READ)
        self.driver = MicroBatchReader(self.options, ())
        self.driver._clock = lambda: self.now
        if available_now:
            self.driver.prepareForTriggerAvailableNow()

    def plan(self) -> tuple[dict[str, Any], list[Partition]]:
        """Return the end and the partitions of the next micro-batch."""
        self.now += 1
        start = self.checkpoint or self.driver.initialOffset()
        end = self.driver.latestOffset(start, ReadAllAvailable())
        return end, [one.value for one in self.driver.partitions(start, end)] if end != start else []

    def task(self, ranges: Partition) -> list[bytes]:
        return [body for batch in read_ranges(self.options, ("body",), ranges) for body in batch["body"].to_pylist()]

    def read(self) -> list[bytes]:
        """Run the next micro-batch; return its bodies."""
        end, partitions = self.plan()
        found = [body for ranges in partitions for body in self.task(ranges)]
        self.checkpoint = end
        return found

    def send(self, count: int, body: bytes = b"old") -> None:
        end = 0
        for _ in range(count):
            end = self.producer.send(Message(self.topic, body)).queue_offset + 1
        while self.admin.topic_stats(self.topic)[self.queue].max_offset < end:
            time.sleep(0.01)  # Apache's brokers show messages a little later

    def delete(self) -> None:
        self.admin.delete_topic(self.topic)

    def make_again(self, count: int) -> None:
        self.admin.create_topic(self.topic, 1)
        self.send(count, b"new")


@pytest.fixture(params=[True, False], ids=["auto create", "no auto create"])
def stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    with ExitStack() as stack:
        yield Stream(stack, stack.enter_context(RunningBroker(auto_create_topic=request.param)).namesrv)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("run", ["continues", "restarts", "restarts for available messages"])
def test_deleted_topic_is_loss_or_logged(stream: Stream, run: str, fail: str, caplog: pytest.LogCaptureFixture) -> None:
    """The number of lost messages is known only to a run that saw them."""
    stream.send(UNREAD)
    if run == "continues":
        stream.start(failOnDataLoss=fail)
        stream.plan()
        stream.delete()
    else:
        stream.delete()
        stream.start(available_now=run != "restarts", failOnDataLoss=fail)
    if fail == "true":
        number = str(UNREAD) if run == "continues" else "an unknown number of"
        with pytest.raises(
            DataLossError, match=rf"{number} messages of {stream.queue} are lost: offset {READ} was wanted"
        ):
            stream.read()
    else:
        assert stream.read() == stream.read() == []
        lost = str(UNREAD) if run == "continues" else "unknown"
        assert (
            caplog.text.count(f"messages lost queue={stream.queue} wanted={READ} lost={lost} the topic was deleted")
            == 1
        )


@pytest.mark.parametrize("count", [READ - 1, READ, READ + 1])
def test_topic_made_again_is_read_from_its_start(stream: Stream, count: int) -> None:
    """The run saw that nothing unread was lost."""
    stream.start()
    assert stream.read() == []
    stream.delete()
    assert stream.read() == []
    stream.make_again(count)
    assert stream.read() == [b"new"] * count
    assert stream.read() == []
    stream.send(1)
    assert stream.read() == [b"old"]
    stream.start()
    assert stream.read() == []


@pytest.mark.parametrize("count", [READ - 1, READ, READ + 1])
def test_topic_made_again_between_runs_is_recognised(stream: Stream, count: int) -> None:
    """No run saw the deletion.  Messages of the old topic may have been lost."""
    stream.delete()
    stream.make_again(count)
    stream.start()
    with pytest.raises(DataLossError, match=f"unknown number of messages of {stream.queue} are lost: .* was recreated"):
        stream.read()
    stream.start(failOnDataLoss="false")
    assert stream.read() == [b"new"] * count
    assert stream.read() == []
    stream.start(failOnDataLoss="true")
    stream.send(1)
    assert stream.read() == [b"old"]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_task_of_a_deleted_topic_ends_at_once(stream: Stream, fail: str) -> None:
    """The broker itself says so, also if its client knows no route."""
    stream.send(UNREAD)
    stream.start(failOnDataLoss=fail)
    _, (ranges,) = stream.plan()
    stream.delete()
    close_clients()
    if fail == "true":
        with pytest.raises(
            DataLossError, match=f"{UNREAD} messages of {stream.queue} are lost: offset {READ} was wanted"
        ):
            stream.task(ranges)
    else:
        assert stream.task(ranges) == []


def test_topic_that_never_existed_is_an_error(stream: Stream) -> None:
    stream.start(subscribe=f"{stream.topic},Typo")
    with pytest.raises(NoRouteError, match="'Typo' does not exist"):
        stream.read()
    stream.checkpoint = None
    with pytest.raises(NoRouteError, match="'Typo' does not exist"):
        stream.read()
