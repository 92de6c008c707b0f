"""Reads ranges of queues in a task and yields Arrow batches.

Memory holds at most the pulls in flight, one chunk of raw records and one batch, whatever the size of the range.  When
Spark needs no more rows (a ``limit``), it closes the generator, which cancels the pulls.

Source: spark.md 3.5, 3.6.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.pull import RawPull
from triomq.client.consumer.range_reader import ReadLimits
from triomq.client.sync import PullConsumer, RangeReader
from triomq.protocol.errors import RequestTimeoutError, TopicNotExistError, TriomqError
from triomq.protocol.filters.filter_types import EVERYTHING, FilterExpression, filter_of
from triomq.spark.connections import Retry, borrow_client
from triomq.spark.options.options import Options
from triomq.spark.reading.columns import Decoder
from triomq.spark.reading.loss import available, judge, report_loss
from triomq.spark.reading.planning import QueueRange

#: An answer ends before the message that would exceed its limit, so a chunk counts as full at this share.
_FULL: Final = 7 / 8
#: Size of a range's first chunk; each further one is larger.  A reader of five rows need not wait for thousands.
_FIRST_CHUNK_BYTES: Final = 32 * 1024
_GROWTH: Final = 4


def read_ranges(options: Options, columns: Sequence[str], ranges: Sequence[QueueRange]) -> Iterator[Any]:
    """Yield record batches with the wanted columns of all messages of some ranges.

    Raises:
        DataLossError: messages no longer exist, and ``failOnDataLoss`` is set.
        RequestTimeoutError: a broker did not answer within ``readTimeoutMs``.
        BrokerResponseError: a broker rejected the pull.
        ProtocolError: a record is damaged.
    """
    with borrow_client(options) as instance:
        for one in ranges:
            yield from _RangeTask(options, columns, one, instance).run()


class _RangeTask:
    """Reads one range."""

    def __init__(self, options: Options, columns: Sequence[str], wanted: QueueRange, instance: ClientInstance) -> None:
        self._options = options
        self._queue = wanted.queue
        self._position = wanted.begin
        self._end = wanted.end
        self._chunk_bytes = min(_FIRST_CHUNK_BYTES, options["batchBytes"])
        self._stalled_peer = "the broker"
        self._instance = instance
        self._expression: FilterExpression = options["sql"] or options["tags"]
        self._is_filtered = filter_of(self._expression) != EVERYTHING
        self._decoder = Decoder(wanted.queue, columns, options)
        self._retry = Retry(options["readTimeoutMs"] / 1000, f"reading queue {wanted.queue} (option 'readTimeoutMs')")

    def run(self) -> Iterator[Any]:
        """Yield batches."""
        with RangeReader(
            self._queue,
            self._position,
            self._end,
            group=self._options["readGroup"],
            instance=self._instance,
            expression=self._expression,
            limits=ReadLimits(
                max_messages=self._options["pullBatchSize"],
                max_bytes=min(self._options["batchBytes"], self._options["fetchBytes"] // 2),  # two are in flight
                pulls_in_flight=self._options["pullsInFlight"],
                in_flight_bytes=self._options["fetchBytes"],
            ),
        ) as reader:
            while self._position < self._end:
                begin = self._position
                answers = self._read(reader)
                chunk = b"".join(self._bodies(answers, reader))
                self._chunk_bytes = min(_GROWTH * self._chunk_bytes, self._options["batchBytes"])
                if self._position == begin:  # a broker whose next offset does not advance, or a slave
                    self._retry.failed(RequestTimeoutError(f"{self._stalled_peer} makes no progress at offset {begin}"))
                    self._look_for_broker()
                else:
                    self._retry.success()
                if chunk:
                    yield from self._decoder.decode(chunk, begin, self._end)

    def _read(self, reader: RangeReader) -> list[RawPull]:
        while True:
            began = time.monotonic()
            try:
                return reader.read(int(self._chunk_bytes * _FULL))
            except TopicNotExistError as exc:
                self._lose(self._end, f"the topic was deleted: {exc}")
                return []
            except TriomqError as exc:
                self._retry.failed(exc, time.monotonic() - began)
                self._look_for_broker()

    def _bodies(self, answers: Sequence[RawPull], reader: RangeReader) -> Iterator[bytes | memoryview]:
        """Yield the records of the answers and advance; the last answer may be a correction.

        Messages that a slave does not have are not lost: its master may have them when it is back.
        """
        for answer in answers:
            next_offset, lost = judge(answer, self._position, self._end, is_filtered=self._is_filtered)
            if lost and answer.is_from_slave:
                self._stalled_peer = "a slave, instead of its master,"
                break
            if lost:
                self._lose(next_offset, available(answer.min_offset, answer.max_offset))
            self._position = next_offset
            yield answer.body
        if reader.position != self._position:
            reader.seek(self._position)

    def _lose(self, next_offset: int, reason: str) -> None:
        lost = next_offset - self._position
        report_loss(self._queue, self._position, lost, reason, fail=self._options["failOnDataLoss"])
        self._position = next_offset

    def _look_for_broker(self) -> None:
        """Refresh the topic's route: the broker may be back with another address."""
        with PullConsumer(self._options["readGroup"], instance=self._instance) as consumer, suppress(TriomqError):
            consumer.queues(self._queue.topic, refresh=True)  # if it fails, the next attempt reports it
