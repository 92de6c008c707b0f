"""Scenarios 29, 31, 33 and 34 of spark.md 6, without Spark: batches, their order, retries, counts."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from triomq.client.producer.config import SendResult, SendStatus
from triomq.client.sync import Producer
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    ConnectError,
    MessageIllegalError,
    MessageRefusedError,
    RequestTimeoutError,
    SystemBusyError,
    TriomqError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.batch import decode_batch
from triomq.protocol.record.message import Message
from triomq.spark.options.options import Use, parse_options
from triomq.spark.writing import writer
from triomq.spark.writing.rows import BatchEncoder, EncodedRows, OutgoingRow, RowEncoder, RowSettings
from triomq.spark.writing.writer import BatchWriter, Sender

pytestmark = pytest.mark.usefixtures("pauses")
QUEUES = tuple(MessageQueue("T", broker, number) for broker in "ab" for number in range(2))
SETTINGS = RowSettings(("body",), 5, "w:0:5:", topic="T")
BUSY = SystemBusyError(int(ResponseCode.SYSTEM_BUSY), "flow control", "h:1")


class FakeProducer:
    """Takes messages, or raises the errors that a test sets."""

    def __init__(self) -> None:
        self.sends: list[tuple[MessageQueue | None, list[bytes]]] = []
        self.errors: list[TriomqError] = []
        self.refused = b""
        self.status = SendStatus.SEND_OK
        self.under_way = self.most = 0
        self._lock = threading.Lock()
        self.both_here = threading.Barrier(2, timeout=5)
        self.wait_for_others = False

    def publish_queues(self, _: str) -> tuple[MessageQueue, ...]:
        return QUEUES

    def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        return self.send_batch([message], queue=queue)[0]

    def send_batch(self, messages: list[Message], *, queue: MessageQueue | None = None) -> list[SendResult]:
        return [self._send([message.body for message in messages], queue)]

    def send_encoded_batch(self, topic: str, body: bytes) -> SendResult:
        assert topic == "T"
        return self._send([entry.body for entry in decode_batch(body)], None)

    def _send(self, bodies: list[bytes], queue: MessageQueue | None) -> SendResult:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            error = self.errors.pop(0) if self.errors else None
        if self.wait_for_others:
            self.both_here.wait()
        with self._lock:
            self.under_way -= 1
            if error is not None:
                raise error
            if self.refused in bodies:
                raise MessageRefusedError(int(ResponseCode.MESSAGE_ILLEGAL), "no")
            self.sends.append((queue, bodies))
        return SendResult(self.status, "", "", queue or QUEUES[0], 0)


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer()


def sender(producer: FakeProducer, **options: object) -> Sender:
    given = {"nameServer": "h:1", "sendsInFlight": "1", **{name: str(value) for name, value in options.items()}}
    encoder = RowEncoder(SETTINGS)
    return Sender(cast("Producer", producer), parse_options(given, Use.WRITE), encoder)


def rows(count: int, **fields: Any) -> Iterator[OutgoingRow]:
    for number in range(count):
        values: dict[str, Any] = {
            "queue_id": None, "broker": None, "goes_alone": False, **fields
        }  # fmt: skip
        yield OutgoingRow(number, Message("T", b"%d" % number, sharding_key=values.pop("key", None)), **values)


def sizes(producer: FakeProducer) -> list[int]:
    return [len(bodies) for _, bodies in producer.sends]


def test_batches_are_bounded_in_bytes(producer: FakeProducer) -> None:
    long = [OutgoingRow(n, Message("T", bytes(600)), None, None, False) for n in range(4)]
    sender(producer, batchSendBytes=1500).send(long)
    assert sizes(producer) == [2, 2]


def test_waiting_rows_of_many_topics_are_bounded(producer: FakeProducer) -> None:
    """Each topic has a separate batch: thousands must not fill the memory before one is full."""
    most = 0

    def given() -> Iterator[OutgoingRow]:
        nonlocal most
        for number in range(400):
            yield OutgoingRow(number, Message(f"T{number % 200}", bytes(200_000)), None, None, False)
            most = max(most, number + 1 - sum(sizes(producer)))

    sender(producer).send(given())
    assert sum(sizes(producer)) == 400
    assert 150 < most < 200


def test_rows_that_go_alone_do(producer: FakeProducer) -> None:
    mixed = [*rows(3), *rows(1, goes_alone=True), *rows(2)]
    sender(producer).send(mixed)
    assert sizes(producer) == [3, 1, 2]


def test_rows_of_key_keep_order(producer: FakeProducer) -> None:
    made = sender(producer, batchMessages=3, sendsInFlight=4)
    made.send(rows(20, key="k"))
    assert len({queue for queue, _ in producer.sends}) == 1
    assert [body for _, bodies in producer.sends for body in bodies] == [b"%d" % number for number in range(20)]


def test_queue_id_selects_queue_and_broker(producer: FakeProducer) -> None:
    sender(producer, batchMessages=1).send(rows(4, queue_id=1))
    assert [queue.broker_name for queue, _ in producer.sends if queue] == ["a", "b", "a", "b"]
    producer.sends.clear()
    sender(producer).send(rows(4, queue_id=1, broker="b"))
    assert [queue for queue, _ in producer.sends] == [MessageQueue("T", "b", 1)]


def test_missing_queue_is_bad_row(producer: FakeProducer) -> None:
    with pytest.raises(MessageIllegalError, match=r"partition 5, row 0, column 'queueId'.*T@a:0"):
        sender(producer).send(rows(1, queue_id=7))


def test_sends_run_concurrently_up_to_the_limit(producer: FakeProducer) -> None:
    producer.wait_for_others = True
    sender(producer, batchMessages=1, sendsInFlight=2).send(rows(10))
    assert producer.most == 2
    assert len(producer.sends) == 10


def test_busy_broker_is_retried_until_task_timeout(producer: FakeProducer, pauses: list[float]) -> None:
    """Scenario 33."""
    producer.errors = [BUSY] * 5
    made = sender(producer)
    made.send(rows(3))
    assert (sizes(producer), made.counts) == ([3], {"rows": 3, "SystemBusyError": 5})
    pauses.clear()
    producer.errors = [BUSY] * 100
    with pytest.raises(RequestTimeoutError, match=r"rows 0 to 2 .*taskTimeoutMs.*SYSTEM_BUSY\(2\) from h:1"):
        sender(producer, taskTimeoutMs=60_000).send(rows(3))
    assert 50 < sum(pauses) <= 60


def test_absent_broker_is_retried_until_read_timeout(producer: FakeProducer, pauses: list[float]) -> None:
    producer.errors = [ConnectError("h:1 refused")] * 100
    with pytest.raises(RequestTimeoutError, match=r"readTimeoutMs.*h:1 refused"):
        sender(producer, readTimeoutMs=10_000).send(rows(1))
    assert 7 < sum(pauses) <= 10


def test_unflushed_sends_are_counted_or_rejected(producer: FakeProducer) -> None:
    producer.status = SendStatus.FLUSH_DISK_TIMEOUT
    made = sender(producer, batchMessages=2)
    made.send(rows(4))
    assert made.counts == {"rows": 4, "not_flushed": 2}
    with pytest.raises(TriomqError, match=r"FLUSH_DISK_TIMEOUT.*requireFlush"):
        sender(producer, requireFlush="true").send(rows(1))


def test_a_rate_is_kept(producer: FakeProducer, pauses: list[float]) -> None:
    sender(producer, rateLimit=10, batchMessages=5).send(rows(30))
    assert sum(pauses) == pytest.approx(2.5)


def encoded(count: int) -> EncodedRows:
    batch = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in range(count)]})
    made = BatchEncoder(SETTINGS, lambda count: ["id"] * count).encode(batch, 100)
    assert made is not None
    return made


def test_encoded_rows_go_in_batches_beside_others(producer: FakeProducer) -> None:
    producer.errors = [BUSY]
    made = sender(producer, batchMessages=4)
    made.send([*rows(6), encoded(10)])
    assert sizes(producer) == [4, 4, 4, 2, 2]
    numbers = [0, 1, 2, 3, *range(10), 4, 5]
    assert [body for _, bodies in producer.sends for body in bodies] == [b"%d" % number for number in numbers]
    assert made.counts == {"rows": 16, "SystemBusyError": 1}


def test_refused_row_is_found(producer: FakeProducer) -> None:
    """Scenario 31: also where only the broker knows."""
    producer.refused = b"2"
    for given, row in ((rows(4), 2), ([encoded(4)], 102)):
        with pytest.raises(MessageIllegalError, match=f"partition 5, row {row}, column 'body': the broker rejects"):
            sender(producer).send(given)


def test_counts_of_tasks_are_logged_as_total(
    producer: FakeProducer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def borrow(_: object) -> Iterator[Any]:
        yield SimpleNamespace(client_ip="127.0.0.1")

    monkeypatch.setattr(writer, "borrow_client", borrow)
    monkeypatch.setattr(writer, "Producer", lambda *_, **__: nullcontext(producer))
    monkeypatch.setattr(writer, "show_warnings", lambda: None)
    options = parse_options({"nameServer": "h:1", "topic": "T"}, Use.WRITE)
    task = BatchWriter(options, StructType().add("body", BinaryType()))
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"bcd"]})
    done = [task.send(iter([batch]), "w", 0, partition) for partition in range(2)]
    with caplog.at_level("INFO"):
        task.commit([*done, None])
    assert caplog.messages == ["written rows=4"]
