"""Scenarios 40 to 43 of spark.md 6, one task without Spark: reading, loss and retries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.spark.reading.test_columns import record
from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ConnectError, DataLossError, RequestTimeoutError, TopicNotExistError, TriomqError
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.spark import connections
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading import partition_reader as reading
from triomq.spark.reading.partition_reader import read_ranges
from triomq.spark.reading.planning import QueueRange

QUEUE = MessageQueue("T", "broker-a", 2)


class FakeQueue:
    """A queue that gives 10 records for a pull, and errors first."""

    def __init__(self, low: int = 0, high: int = 100) -> None:
        self.low, self.high = low, high
        self.errors: list[TriomqError] = []
        self.before_answer: Callable[[int], None] = lambda _: None
        self.still = False
        self.is_slave = False
        self.lookups = 0
        self.open_readers = 0

    def answer(self, position: int) -> RawPull:
        if self.errors:
            raise self.errors.pop(0)
        self.before_answer(position)
        low, high = self.low, self.high

        def made(status: PullStatus, following: int, body: bytes = b"") -> RawPull:
            return RawPull(
                QueueOffset(position), status, body, QueueOffset(following), QueueOffset(low), QueueOffset(high), 0,
                self.is_slave and status is not PullStatus.FOUND,
            )  # fmt: skip

        if self.still:
            return made(PullStatus.NO_MATCHED_MESSAGE, position)
        if position < low:
            return made(PullStatus.OFFSET_ILLEGAL, low)
        if position >= high:
            return made(PullStatus.OFFSET_ILLEGAL, high)
        following = min(position + 10, high)
        return made(PullStatus.FOUND, following, b"".join(map(record, range(position, following))))


class FakeReader:
    def __init__(self, queue: FakeQueue, begin: int) -> None:
        self.queue = queue
        self.position = begin

    def __enter__(self) -> "FakeReader":
        self.queue.open_readers += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.open_readers -= 1

    def seek(self, position: int) -> None:
        self.position = position

    def read(self, _: int) -> list[RawPull]:
        answer = self.queue.answer(self.position)
        if answer.status is PullStatus.FOUND:
            self.position = int(answer.next_begin_offset)
        return [answer]


class FakeConsumer:
    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue

    def __enter__(self) -> "FakeConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(self, _: str, *, refresh: bool) -> None:
        self.queue.lookups += refresh


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    made = FakeQueue()
    slept: list[float] = []

    @contextmanager
    def borrow(_: object) -> Iterator[ClientInstance]:
        yield cast("ClientInstance", None)

    monkeypatch.setattr(reading, "borrow_client", borrow)
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    monkeypatch.setattr(reading, "PullConsumer", lambda *_, **__: FakeConsumer(made))
    monkeypatch.setattr(reading, "RangeReader", lambda _, begin, *__, **___: FakeReader(made, begin))
    return made


def batches(begin: int = 0, end: int = 100, **options: str) -> Iterator[Any]:
    given = parse_options({"nameServer": "h:1", "subscribe": "T", **options}, Use.BATCH_READ)
    return read_ranges(given, ("queueOffset",), [QueueRange(QUEUE, begin, end)])


def offsets(begin: int = 0, end: int = 100, **options: str) -> list[int]:
    return [row["queueOffset"] for batch in batches(begin, end, **options) for row in batch.to_pylist()]


def test_a_range_is_read_exactly(queue: FakeQueue) -> None:
    assert offsets(5, 47) == list(range(5, 47))
    assert queue.open_readers == 0


def test_reader_closed_early_is_closed(queue: FakeQueue) -> None:
    """Scenario 12."""
    found = cast("Any", batches())
    next(found)
    assert queue.open_readers == 1
    found.close()
    assert queue.open_readers == 0


@pytest.mark.parametrize("read", [0, 20])
def test_retention_before_or_during_task_is_loss(queue: FakeQueue, caplog: pytest.LogCaptureFixture, read: int) -> None:
    """Scenarios 41 and 42."""

    def expire(position: int) -> None:
        queue.low = 55 if position >= read else 0

    queue.before_answer = expire
    with pytest.raises(DataLossError, match=rf"{55 - read} messages of T@broker-a:2 .*offset {read} .*55 to 100"):
        offsets()
    assert offsets(failOnDataLoss="false") == [*range(read), *range(55, 100)]
    assert [f"lost={55 - read}" in record.getMessage() for record in caplog.records] == [True]


def test_a_queue_that_got_shorter_is_loss(queue: FakeQueue) -> None:
    """Scenario 43."""
    queue.high = 25
    with pytest.raises(DataLossError, match="75 messages"):
        offsets()
    assert offsets(failOnDataLoss="false") == list(range(25))


def test_deleted_topic_loses_the_rest(queue: FakeQueue) -> None:
    queue.errors = [TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), "no such topic", "h:2")]
    with pytest.raises(DataLossError, match=r"100 messages.*no such topic"):
        offsets()
    queue.errors = [TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), "no such topic", "h:2")]
    assert offsets(failOnDataLoss="false") == []


def test_returning_broker_is_read_at_its_new_address(queue: FakeQueue) -> None:
    """Scenario 40."""
    queue.errors = [ConnectError("refused")] * 4
    assert offsets() == list(range(100))
    assert queue.lookups == 4


def test_error_names_address_of_absent_broker(queue: FakeQueue) -> None:
    """Scenario 40."""
    queue.errors = [ConnectError("cannot connect to h:2")] * 1000
    with pytest.raises(RequestTimeoutError, match=r"T@broker-a:2 \(option 'readTimeoutMs'\).*h:2"):
        offsets()


def test_broker_without_progress_becomes_error(queue: FakeQueue) -> None:
    queue.still = True
    with pytest.raises(RequestTimeoutError, match="makes no progress at offset 0"):
        offsets()


@pytest.mark.parametrize("has", [(0, 95), (20, 100)], ids=["behind its master", "begins later"])
def test_messages_missing_on_slave_are_not_lost(queue: FakeQueue, has: tuple[int, int]) -> None:
    queue.is_slave = True
    queue.low, queue.high = has
    with pytest.raises(RequestTimeoutError, match=r"readTimeoutMs.*a slave, instead of .* at offset (95|0)$"):
        offsets(failOnDataLoss="false")


def test_returning_master_completes_slave(queue: FakeQueue) -> None:
    queue.is_slave = True
    queue.high = 95
    batch = batches()
    found = [row["queueOffset"] for _ in range(10) for row in next(batch).to_pylist()]
    queue.is_slave = False
    queue.high = 100
    found += [row["queueOffset"] for one in batch for row in one.to_pylist()]
    assert found == list(range(100))
