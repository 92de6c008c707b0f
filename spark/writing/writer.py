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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from triomq.client import ProducerConfig
from triomq.client.sync import Producer
from triomq.protocol.host import pack_ip
from triomq.protocol.record.message_id import UniqueIdGenerator
from triomq.spark.connections import borrow_client, show_warnings
from triomq.spark.options.options import Options
from triomq.spark.schema import check_write_schema
from triomq.spark.writing.batch_encoding import BatchEncoder, EncodedRows
from triomq.spark.writing.rows import OutgoingRow, RowEncoder, RowSettings, slices
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


class _Writer:
    """What both writers have: settings, which are pickled for the tasks, and the work of a task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the schema and choose the writer's id, which repeated tasks share.

        Raises:
            ConfigError: a column is missing, unknown or of a wrong type.
        """
        self._options = options
        self._columns = check_write_schema(schema, topic=options["topic"])
        self._is_read_back = set(schema.names) >= _READ_BACK
        self._writer_id = secrets.token_hex(_WRITER_ID_LENGTH // 2)

    def send(self, batches: Iterator[Any], writer_id: str, epoch: int, partition: int) -> WriteResult:
        """Send the rows of one partition."""
        show_warnings()
        options = self._options
        encoder = RowEncoder(
            RowSettings(
                self._columns,
                partition,
                f"{writer_id}:{epoch}:{partition}:",
                options["topic"],
                options["compressAbove"],
                self._is_read_back,
            )
        )
        producer_settings = ProducerConfig(
            send_timeout_s=options["sendTimeoutMs"] / 1000,
            retries=options["retries"],
            on_busy="raise",  # the sender waits, and for longer
            compress_over_bytes=options["compressAbove"] or _NEVER,
        )
        with (
            borrow_client(options) as instance,
            Producer(_GROUP, instance=instance, settings=producer_settings) as producer,
        ):
            ids = UniqueIdGenerator(
                pack_ip(instance.client_ip), os.getpid(), secrets.randbits(32), lambda: time.time_ns() // 1_000_000
            )
            sender = Sender(producer, options, encoder)
            sender.send(_rows(batches, BatchEncoder(encoder.settings, ids.next_many), encoder))
        return WriteResult(partition, sender.counts)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of a partition; runs in a worker."""
        return self.send(iterator, self._writer_id, 0, _context().partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of the written rows."""
        _log_totals("written", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of the rows that were sent before a task failed."""
        _log_totals("failed; sent already", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send the rows of a partition of a micro-batch; runs in a worker."""
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId") or self._writer_id
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        return self.send(iterator, query.replace("-", "")[:_WRITER_ID_LENGTH], epoch, context.partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's
        """Log the counts of the written rows."""
        _log_totals(f"batch {batchId} written", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the counts of the rows that were sent before a task failed."""
        _log_totals(f"batch {batchId} failed; sent already", messages)


def _log_totals(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log the total counts of all successful tasks."""
    totals = sum((message.counts for message in messages if isinstance(message, WriteResult)), Counter[str]())
    LOGGER.info("%s %s", what, " ".join(f"{name}={number}" for name, number in totals.items()))


def _rows(batches: Iterator[Any], quick: BatchEncoder, encoder: RowEncoder) -> Iterator[OutgoingRow | EncodedRows]:
    """Yield all rows slice by slice: encoded together, or one by one if a row of the slice needs that."""
    first = 0
    for batch in batches:
        for piece in slices(batch, _PIECE_BYTES):
            encoded = quick.encode(piece, first)
            yield from encoder.encode(piece, first) if encoded is None else (encoded,)
            first += piece.num_rows


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # Spark calls this in a task
    return context
