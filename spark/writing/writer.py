"""Batch and streaming writers: Arrow batches in, messages out, counts back to the driver.

A task sends its rows in batches, with several sends in flight, and retries for a limited time.  Rows for the same queue
(a sharding key, or the column ``queueId``) stay in order: a queue has at most one send in flight.  All other rows take
the next queue in turn.  Delivery is at least once: a send without an answer is repeated.

``abort`` cannot unsend messages.  Spark creates another writer for the ``commit`` of a stream, which therefore knows
nothing but the options.

Source: spark.md 1.5, 1.6, 3.9.
"""

import logging
import os
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from triomq.client import ProducerConfig
from triomq.client.producer.config import SendResult, SendStatus
from triomq.client.producer.producer import select_by_hash
from triomq.client.sync import Producer
from triomq.protocol.errors import MessageRefusedError, TriomqError
from triomq.protocol.host import pack_ip
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message_id import UniqueIdGenerator
from triomq.spark.connections import Retry, borrow_client, is_busy, show_warnings
from triomq.spark.options.options import Options
from triomq.spark.schema import check_write_schema
from triomq.spark.writing.rows import BatchEncoder, EncodedRows, OutgoingRow, RowEncoder, RowSettings, slices

LOGGER: Final = logging.getLogger("triomq.spark.writing.writer")

_GROUP: Final = "TRIOMQ_SPARK"
_WRITER_ID_LENGTH: Final = 12
#: Part of an incoming batch, which may have 64 MiB, that is encoded at once.
_PIECE_BYTES: Final = 1024**2
_NEVER: Final = 2**31 - 1
#: A DataFrame with both columns was read from RocketMQ.
_READ_BACK: Final = frozenset(("msgId", "queueOffset"))
#: Limit for all rows that wait for others of their topic or queue; there may be thousands of queues.
_MAX_WAITING_BYTES: Final = 32 * 1024**2
#: Approximate memory of a row besides its body.
_ROW_BYTES: Final = 2048

T = TypeVar("T")


@dataclass
class WriteResult(WriterCommitMessage):
    """The counts of one task."""

    counts: Counter[str]


class _Writer:
    """The base of both writers: settings, which are pickled for the tasks, and the work of a task."""

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
        ids = f"{writer_id}:{epoch}:{partition}:"
        topic, compress_above = options["topic"], options["compressAbove"]
        rows = RowSettings(self._columns, partition, ids, topic, compress_above, self._is_read_back)
        encoder = RowEncoder(rows)
        producer_settings = ProducerConfig(
            send_timeout_s=options["sendTimeoutMs"] / 1000,
            retries=options["retries"],
            on_busy="raise",  # the sender waits, and for longer
            compress_over_bytes=compress_above or _NEVER,
        )
        with (
            borrow_client(options) as instance,
            Producer(_GROUP, instance=instance, settings=producer_settings) as producer,
        ):
            address, start = pack_ip(instance.client_ip), secrets.randbits(32)
            unique_ids = UniqueIdGenerator(address, os.getpid(), start, lambda: time.time_ns() // 1_000_000)
            sender = Sender(producer, options, encoder)
            sender.send(_rows(batches, BatchEncoder(rows, unique_ids.next_many), encoder))
        return WriteResult(sender.counts)


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


@dataclass(slots=True)
class _Unit:
    """The rows of one send."""

    topic: str
    queue: MessageQueue | None
    rows: list[OutgoingRow] = field(default_factory=list)
    size: int = 0


class Sender:
    """Sends rows through one producer.

    Attributes:
        counts: ``rows`` sent, messages ``not_flushed`` or copied in time, and retries by the name of their error.
    """

    def __init__(self, producer: Producer, options: Options, encoder: RowEncoder) -> None:
        """Take an open producer, and the encoder of the rows, which also creates the errors for rows."""
        self._producer = producer
        self._options = options
        self._encoder = encoder
        self._open: dict[tuple[str, MessageQueue | None], _Unit] = {}
        self._waiting_bytes = 0
        self._in_flight: set[Future[None]] = set()
        self._lanes: dict[MessageQueue, Future[None]] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._turns: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._pool = ThreadPoolExecutor(options["sendsInFlight"], "triomq-send")
        self._free_at = 0.0  # when ``rateLimit`` allows the next send
        self._counting = threading.Lock()
        self.counts: Counter[str] = Counter()

    def send(self, rows: Iterable[OutgoingRow | EncodedRows]) -> None:
        """Send all rows, encoded or one by one; return when brokers have stored all of them.

        Raises:
            MessageIllegalError: a row cannot be a message.
            RequestTimeoutError: a broker did not answer, or was busy, for too long.
            BrokerResponseError: a broker rejected the rows.
        """
        most = self._options["batchMessages"]
        most_bytes = self._options["batchSendBytes"]
        with self._pool:
            try:
                for row in rows:
                    if isinstance(row, EncodedRows):
                        for begin, end in row.cut(most, most_bytes):
                            self._start(end - begin, self._send_encoded, row, begin, end)
                    else:
                        self._add(row, most, most_bytes)
                self._submit_all()
                self._finish(self._in_flight)
            except BaseException:
                self._pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _add(self, row: OutgoingRow, most: int, most_bytes: int) -> None:
        """Add a row to its batch, and send the batch when it is full."""
        topic, queue, size = row.message.topic, self._queue_of(row), len(row.message.body)
        unit = self._open.get((topic, queue))
        if unit is not None and (row.goes_alone or unit.size + size > most_bytes):
            self._submit(unit)
            unit = None
        if unit is None:
            unit = self._open[topic, queue] = _Unit(topic, queue)
        unit.rows.append(row)
        unit.size += size
        self._waiting_bytes += size + _ROW_BYTES
        if row.goes_alone or len(unit.rows) >= most:
            self._submit(unit)
        elif self._waiting_bytes > _MAX_WAITING_BYTES:
            self._submit_all()

    def _queue_of(self, row: OutgoingRow) -> MessageQueue | None:
        """Return the queue that a row must go to; ``None``: any."""
        if row.queue_id is None and not row.message.sharding_key:
            return None
        topic = row.message.topic
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._retried(lambda: self._producer.publish_queues(topic), topic)
        if row.queue_id is None:
            return select_by_hash(queues, row.message, row.message.sharding_key)
        fitting = [one for one in queues if one.queue_id == row.queue_id and row.broker in (None, one.broker_name)]
        if not fitting:
            listed = ", ".join(map(str, queues[:16]))
            raise self._encoder.bad(row.number, "queueId", f"the topic has no such queue; it has: {listed}")
        turn = self._turns[topic, row.queue_id]
        self._turns[topic, row.queue_id] = turn + (row.broker is None)
        return fitting[turn % len(fitting)]

    def _submit_all(self) -> None:
        """Send all batches that wait."""
        for unit in list(self._open.values()):
            self._submit(unit)

    def _submit(self, unit: _Unit) -> None:
        """Start the send of a batch, after the previous one of the same queue has finished."""
        del self._open[unit.topic, unit.queue]
        self._waiting_bytes -= unit.size + _ROW_BYTES * len(unit.rows)
        if unit.queue is not None and (before := self._lanes.get(unit.queue)) is not None:
            self._finish({before})
        future = self._start(len(unit.rows), self._send_rows, unit.rows, unit.queue)
        if unit.queue is not None:
            self._lanes[unit.queue] = future

    def _start(self, rows: int, action: Callable[..., None], *arguments: object) -> "Future[None]":
        """Start a send, after waiting for a free place."""
        if rate := self._options["rateLimit"]:
            now = time.monotonic()
            if self._free_at > now:
                time.sleep(self._free_at - now)
            self._free_at = max(self._free_at, now) + rows / rate
        while len(self._in_flight) >= self._options["sendsInFlight"]:
            done, _ = wait(self._in_flight, return_when=FIRST_COMPLETED)
            self._finish(done)
        future = self._pool.submit(action, *arguments)
        self._in_flight.add(future)
        return future

    def _finish(self, futures: set[Future[None]]) -> None:
        for future in tuple(futures):
            future.result()
            self._in_flight.discard(future)

    def _send_rows(self, rows: Sequence[OutgoingRow], queue: MessageQueue | None) -> None:
        """Send rows of one topic; runs in a thread of the pool."""
        first, last = rows[0].number, rows[-1].number
        where = f"topic {rows[0].message.topic}, " + (f"row {first}" if first == last else f"rows {first} to {last}")
        messages = [row.message for row in rows]

        def send() -> list[SendResult]:
            if len(messages) == 1:
                return [self._producer.send(messages[0], queue=queue)]
            return self._producer.send_batch(messages, queue=queue)

        try:
            self._stored(self._retried(send, where), len(rows))
        except MessageRefusedError as exc:
            if len(rows) == 1:
                raise self._encoder.bad(first, "body", f"the broker rejects the message: {exc}") from exc
            for row in rows:  # to find the row that the broker rejects
                self._send_rows([row], queue)

    def _send_encoded(self, rows: EncodedRows, begin: int, end: int) -> None:
        """Send encoded rows; runs in a thread of the pool."""
        body, first = rows.body(begin, end), rows.first + begin
        where = f"topic {rows.topic}, rows {first} to {rows.first + end - 1}"
        try:
            result = self._retried(lambda: self._producer.send_encoded_batch(rows.topic, body), where)
            self._stored([result], end - begin)
        except MessageRefusedError:
            for row in self._encoder.encode(rows.source.slice(begin, end - begin), first):
                self._send_rows([row], None)

    def _stored(self, results: Sequence[SendResult], rows: int) -> None:
        """Count rows that brokers have stored, and those that are not as safe as wanted."""
        self._count(rows=rows)
        if unsafe := [result.status for result in results if result.status is not SendStatus.SEND_OK]:
            self._count(not_flushed=len(unsafe))
            if self._options["requireFlush"]:
                safety = f"{unsafe[0].value} at {results[0].queue}"
                raise TriomqError(f"stored, but not as safely as wanted: {safety} (option 'requireFlush')")

    def _count(self, **more: int) -> None:
        with self._counting:  # threads of the pool count, too
            self.counts.update(more)

    def _retried(self, action: Callable[[], T], what: str) -> T:
        """Retry until success, or until a broker was away for ``readTimeoutMs`` or busy for ``taskTimeoutMs``."""
        busy = Retry(self._options["taskTimeoutMs"] / 1000, f"sending to {what} (option 'taskTimeoutMs')")
        away = Retry(self._options["readTimeoutMs"] / 1000, f"sending to {what} (option 'readTimeoutMs')")
        while True:
            began = time.monotonic()
            try:
                return action()
            except TriomqError as exc:
                self._count(**{type(exc).__name__: 1})
                (busy if is_busy(exc) else away).failed(exc, time.monotonic() - began)
