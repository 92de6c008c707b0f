"""Batch and streaming writers: Arrow batches in, messages out, counts back to the driver.

``abort`` cannot unsend messages.  Spark creates another writer for the ``commit`` of a stream, which therefore knows
nothing but the options.

Source: spark.md 1.5, 1.6, 3.9.
"""

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from triomq.client import ProducerConfig
from triomq.client.sync import Producer
from triomq.protocol.host import pack_ip
from triomq.protocol.record.message_id import UniqueIdGenerator
from triomq.spark.connections import borrow_client
from triomq.spark.logs import show_warnings
from triomq.spark.options.options import Options
from triomq.spark.schema import READ_TYPES, check_write_schema
from triomq.spark.writing.batch_encoding import BatchEncoder, EncodedRows
from triomq.spark.writing.rows import OutgoingRow, RowEncoder, RowIds, RowSettings, slices
from triomq.spark.writing.sending import Sender

LOGGER: Final = logging.getLogger("triomq.spark.writing.writer")

_GROUP: Final = "TRIOMQ_SPARK"
_WRITER_ID_LENGTH: Final = 12
#: Part of an incoming batch, which may have 64 MiB, that is encoded at once.
_PIECE_BYTES: Final = 1024**2
_NEVER: Final = 2**31 - 1
#: A DataFrame with both columns was read from RocketMQ.
_READ_BACK: Final = frozenset(("msgId", "queueOffset"))


@dataclass
class WriteResult(WriterCommitMessage):
    """The counts of one task."""

    partition: int
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The settings of all tasks of a write; pickled with the writer."""

    options: Options
    columns: tuple[str, ...]
    is_read_back: bool
    writer_id: str

    @classmethod
    def prepare(cls, options: Options, schema: StructType) -> "WriteTask":
        """Check the schema and choose the writer's id, which repeated tasks share.

        Raises:
            ConfigError: a column is missing, unknown or of a wrong type.
        """
        columns = check_write_schema(schema, topic=options["topic"])
        is_read_back = {field.name for field in schema.fields} & READ_TYPES.keys() >= _READ_BACK
        return cls(options, columns, is_read_back, secrets.token_hex(_WRITER_ID_LENGTH // 2))

    def run(self, batches: Iterator[Any], writer_id: str, epoch: int, partition: int) -> WriteResult:
        """Send the rows of one partition."""
        show_warnings()
        options = self.options
        ids = RowIds(writer_id, epoch, partition)
        settings = RowSettings(self.columns, ids, options["topic"], options["compressAbove"], self.is_read_back)
        encoder = RowEncoder(settings)
        with (
            borrow_client(options) as instance,
            Producer(
                _GROUP,
                instance=instance,
                settings=ProducerConfig(
                    send_timeout_s=options["sendTimeoutMs"] / 1000,
                    retries=options["retries"],
                    on_busy="raise",  # the sender waits, and for longer
                    compress_over_bytes=options["compressAbove"] or _NEVER,
                ),
            ) as producer,
        ):
            sender = Sender(producer, options, encoder)
            quick = BatchEncoder(settings, _unique_ids(instance.client_ip))
            sender.send(_rows(batches, quick, encoder))
        return WriteResult(partition, sender.counts)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, task: WriteTask) -> None:
        super().__init__()
        self._task = task

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of a partition; runs in a worker."""
        return self._task.run(iterator, self._task.writer_id, 0, _context().partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of the written rows."""
        log_totals("written", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of the rows that were sent before a task failed."""
        log_totals("failed; sent already", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, task: WriteTask) -> None:
        super().__init__()
        self._task = task

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of a partition of a micro-batch; runs in a worker."""
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId") or self._task.writer_id
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        writer_id = query.replace("-", "")[:_WRITER_ID_LENGTH]
        return self._task.run(iterator, writer_id, epoch, context.partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        """Log the counts of the written rows."""
        log_totals(f"batch {batchId} written", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the counts of the rows that were sent before a task failed."""
        log_totals(f"batch {batchId} failed; sent already", messages)


def log_totals(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log the total counts of all successful tasks."""
    totals = sum((message.counts for message in messages if isinstance(message, WriteResult)), Counter[str]())
    LOGGER.info("%s %s", what, " ".join(f"{name}={number}" for name, number in totals.items()))


def _rows(batches: Iterator[Any], quick: BatchEncoder, encoder: RowEncoder) -> Iterator[OutgoingRow | EncodedRows]:
    """Yield all rows slice by slice: encoded together, or one by one if a row of the slice needs that."""
    first = 0
    for batch in batches:
        for piece in slices(batch, _PIECE_BYTES):
            encoded = quick.encode(piece, first)
            if encoded is not None:
                yield encoded
            else:
                yield from encoder.encode(piece, first)
            first += piece.num_rows


def _unique_ids(ip: str) -> Callable[[int], Sequence[str]]:
    make = UniqueIdGenerator(pack_ip(ip), os.getpid(), secrets.randbits(32), lambda: time.time_ns() // 1_000_000)
    return make.next_many


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # Spark calls this in a task
    return context
