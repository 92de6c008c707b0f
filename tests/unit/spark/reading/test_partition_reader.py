"""Scenarios 40 to 43 of spark.md 6, one task without Spark: reading, loss and retries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import pytest

from tests.unit.spark.reading.test_columns import record
from triomq.client.consumer.pull import PullStatus, RawPull
from triomq.protocol.errors import ConnectError, DataLossError, RequestTimeoutError, TriomqError
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading import partition_reader as reading
from triomq.spark.reading.partition_reader import read_ranges
from triomq.spark.reading.planning import QueueRange

QUEUE = MessageQueue("T", "broker-a", 2)


class FakeQueue:
    """A queue that gives 10 records for a pull, and errors first; also its reader, and a consumer."""

    def __init__(self) -> None:
        self.low, self.high = 0, 100
        self.position = 0
        self.errors: list[TriomqError] = []
        self.before_answer: Callable[[int], None] = lambda _: None
        self.still = False
        self.is_slave = False
        self.lookups = 0
        self.seek: Callable[[int], None] = lambda position: setattr(self, "position", position)

    def read(self, _: int) -> list[RawPull]:
        if self.errors:
            raise self.errors.pop(0)
        at = self.position
        self.before_answer(at)
        body = b""
        if self.still:
            status, following = PullStatus.NO_MATCHED_MESSAGE, at
        elif not self.low <= at < self.high:
            status, following = PullStatus.OFFSET_ILLEGAL, self.low if at < self.low else self.high
        else:
            status, following = PullStatus.FOUND, min(at + 10, self.high)
            body, self.position = b"".join(map(record, range(at, following))), following
        begin, following, low, high = map(QueueOffset, (at, following, self.low, self.high))
        return [RawPull(begin, status, body, following, low, high, 0, self.is_slave and not body)]

    def queues(self, _: str, *, refresh: bool) -> None:
        self.lookups += refresh


@pytest.fixture
def open_readers() -> list[FakeQueue]:
    return []


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, pauses: list[float], open_readers: list[FakeQueue]) -> FakeQueue:
    made = FakeQueue()

    @contextmanager
    def open_reader(_: MessageQueue, begin: int, *__: object, **___: object) -> Iterator[FakeQueue]:
        made.position = begin
        open_readers.append(made)
        try:
            yield made
        finally:
            open_readers.remove(made)

    monkeypatch.setattr(reading, "borrow_client", lambda _: nullcontext())
    monkeypatch.setattr(reading, "PullConsumer", lambda *_, **__: nullcontext(made))
    monkeypatch.setattr(reading, "RangeReader", open_reader)
    return made


def batches(begin: int = 0, end: int = 100, **options: str) -> Iterator[Any]:
    given = parse_options({"nameServer": "h:1", "subscribe": "T", **options}, Use.BATCH_READ)
    return read_ranges(given, ("queueOffset",), [QueueRange(QUEUE, begin, end)])


def offsets(begin: int = 0, end: int = 100, **options: str) -> list[int]:
    return [row["queueOffset"] for batch in batches(begin, end, **options) for row in batch.to_pylist()]


@pytest.mark.usefixtures("queue")
def test_reader_closed_early_is_closed(open_readers: list[FakeQueue]) -> None:
    """Scenario 12."""
    found = cast("Any", batches())
    next(found)
    assert open_readers
    found.close()
    assert not open_readers


@pytest.mark.parametrize("read", [0, 20])
def test_retention_before_or_during_task_is_loss(queue: FakeQueue, caplog: pytest.LogCaptureFixture, read: int) -> None:
    """Scenarios 41 and 42."""

    def expire(position: int) -> None:
        queue.low = 55 if position >= read else 0

    queue.before_answer = expire
    with pytest.raises(DataLossError, match=rf"{55 - read} messages of T@broker-a:2 .*offset {read} .*55 to 100"):
        offsets()
    assert offsets(failOnDataLoss="FALSE") == [*range(read), *range(55, 100)]
    assert [f"lost={55 - read}" in record.getMessage() for record in caplog.records] == [True]


def test_returning_broker_is_read_at_its_new_address(queue: FakeQueue) -> None:
    """Scenario 40."""
    queue.errors = [ConnectError("refused")] * 4
    assert offsets() == list(range(100))
    assert queue.lookups == 4


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
