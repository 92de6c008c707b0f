"""The counts of a write, without Spark or broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from triomq.client.producer.send_result import SendResult, SendStatus
from triomq.protocol.message_queue import MessageQueue
from triomq.spark.options.options import Use, parse_options
from triomq.spark.writing import writer
from triomq.spark.writing.writer import BatchWriter


class FakeProducer:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send_encoded_batch(self, *_: object) -> SendResult:
        return SendResult(SendStatus.SEND_OK, "", "", MessageQueue("T", "a", 0), 0)


@contextmanager
def borrow(_: object) -> Iterator[Any]:
    yield SimpleNamespace(client_ip="127.0.0.1")


def test_counts_of_tasks_are_logged_as_total(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(writer, "borrow_client", borrow)
    monkeypatch.setattr(writer, "Producer", FakeProducer)
    monkeypatch.setattr(writer, "show_warnings", lambda: None)
    options = parse_options({"nameServer": "h:1", "topic": "T"}, Use.WRITE)
    task = BatchWriter(options, StructType().add("body", BinaryType()))
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"bcd"]})
    done = [task.send(iter([batch]), "w", 0, partition) for partition in range(2)]
    with caplog.at_level("INFO"):
        task.commit([*done, None])
    assert caplog.messages == ["written rows=4"]
