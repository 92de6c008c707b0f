"""What one task of a write tells, without Spark or broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from triomq.client.producer.send_result import SendResult, SendStatus
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message
from triomq.spark.options.options import Use, parse_options
from triomq.spark.writing import writer
from triomq.spark.writing.writer import WriteTask


class FakeProducer:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send_batch(self, _: list[Message], *, queue: object) -> list[SendResult]:
        return [SendResult(SendStatus.SEND_OK, "", "", MessageQueue("T", "a", 0), 0)]


@contextmanager
def borrow(_: object) -> Iterator[Any]:
    yield SimpleNamespace(client_ip="127.0.0.1")


def test_rows_that_are_skipped_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The counts of a task reach nobody who does not set up logging in Spark's processes."""
    monkeypatch.setattr(writer, "borrow_client", borrow)
    monkeypatch.setattr(writer, "Producer", FakeProducer)
    monkeypatch.setattr(writer, "show_warnings", lambda: None)
    options = parse_options({"nameServer": "h:1", "topic": "T", "badRows": "skip"}, Use.WRITE)
    task = WriteTask.prepare(options, StructType().add("body", BinaryType()))
    bad = pa.RecordBatch.from_pydict({"body": [b"a", None, b"b", b""]})
    done = task.run(iter([bad]), "w", 0, 3)
    assert (done.counts.rows, done.counts.skipped) == (2, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "skipped rows that cannot be messages partition=3 rows=2"
    ]
