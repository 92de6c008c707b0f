"""Sends the rows of one task in batches, with several sends in flight, and retries for a limited time.

Rows for the same queue (a sharding key, or the column ``queueId``) stay in order: a queue has at most one send in
flight.  All other rows take the next queue in turn.  Delivery is at least once: a send without an answer is repeated.

Source: spark.md 3.9.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, TypeVar

from triomq.client.producer.producer import select_by_hash
from triomq.client.producer.send_result import SendResult, SendStatus
from triomq.client.sync import Producer
from triomq.protocol.errors import MessageRefusedError, TriomqError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import Message
from triomq.spark.options.options import Options
from triomq.spark.retry import Retry, is_busy
from triomq.spark.writing.batch_encoding import EncodedRows
from triomq.spark.writing.rows import OutgoingRow, RowEncoder

T = TypeVar("T")
#: Limit for all rows that wait for others of their topic or queue; there may be thousands of queues.
_MAX_WAITING_BYTES: Final = 32 * 1024**2
#: Approximate memory of a row besides its body.
_ROW_BYTES: Final = 2048


@dataclass(slots=True)
class _Unit:
    """The rows of one send."""

    topic: str
    queue: MessageQueue | None
    rows: list[OutgoingRow] = field(default_factory=list)
    size: int = 0

    @property
    def where(self) -> str:
        first, last = self.rows[0].number, self.rows[-1].number
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        return f"topic {self.topic}, {rows}"


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
        unit = self._unit_for(row)
        size = len(row.message.body)
        if unit.rows and (row.goes_alone or unit.size + size > most_bytes):
            self._submit(unit)
            unit = self._unit_for(row)
        unit.rows.append(row)
        unit.size += size
        self._waiting_bytes += size + _ROW_BYTES
        if row.goes_alone or len(unit.rows) >= most:
            self._submit(unit)
        elif self._waiting_bytes > _MAX_WAITING_BYTES:
            self._submit_all()

    def _unit_for(self, row: OutgoingRow) -> _Unit:
        queue = self._queue_of(row)
        key = (row.message.topic, queue)
        unit = self._open.get(key)
        if unit is None:
            unit = self._open[key] = _Unit(row.message.topic, queue)
        return unit

    def _queue_of(self, row: OutgoingRow) -> MessageQueue | None:
        """Return the queue that a row must go to; ``None``: any."""
        if row.queue_id is None and not row.is_keyed:
            return None
        topic = row.message.topic
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._retried(lambda: self._producer.publish_queues(topic), topic)
        if row.queue_id is None:
            return select_by_hash(queues, row.message, row.message.sharding_key)
        fitting = [
            queue
            for queue in queues
            if queue.queue_id == row.queue_id and row.broker in (None, queue.broker_name)
        ]  # fmt: skip
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
        future = self._start(len(unit.rows), self._send_unit, unit)
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

    def _send_unit(self, unit: _Unit) -> None:
        """Send a batch; runs in a thread of the pool."""
        messages = [row.message for row in unit.rows]
        try:
            self._retried(lambda: self._send_once(messages, unit.queue), unit.where)
        except MessageRefusedError as exc:
            if len(unit.rows) == 1:
                row = unit.rows[0]
                raise self._encoder.bad(row.number, "body", f"the broker rejects the message: {exc}") from exc
            for row in unit.rows:  # to find the row that the broker rejects
                self._send_unit(_Unit(unit.topic, unit.queue, [row], len(row.message.body)))
            return
        self._count(rows=len(messages))

    def _send_encoded(self, rows: EncodedRows, begin: int, end: int) -> None:
        """Send encoded rows; runs in a thread of the pool."""
        body = rows.body(begin, end)
        where = f"topic {rows.topic}, rows {rows.first + begin} to {rows.first + end - 1}"
        try:
            self._retried(lambda: self._check([self._producer.send_encoded_batch(rows.topic, body)]), where)
        except MessageRefusedError:
            for row in self._encoder.encode(rows.source.slice(begin, end - begin), rows.first + begin):
                self._send_unit(_Unit(rows.topic, None, [row], len(row.message.body)))
            return
        self._count(rows=end - begin)

    def _send_once(self, messages: Sequence[Message], queue: MessageQueue | None) -> None:
        producer = self._producer
        results: list[SendResult]
        if len(messages) == 1:
            results = [producer.send(messages[0], queue=queue)]
        else:
            results = producer.send_batch(messages, queue=queue)
        self._check(results)

    def _check(self, results: Sequence[SendResult]) -> None:
        unsafe = [result.status for result in results if result.status is not SendStatus.SEND_OK]
        if unsafe:
            self._count(not_flushed=len(unsafe))
            if self._options["requireFlush"]:
                raise TriomqError(
                    f"stored, but not as safely as wanted: {unsafe[0].value} at {results[0].queue} "
                    "(option 'requireFlush')"
                )

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
