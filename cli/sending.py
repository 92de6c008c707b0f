"""Send messages to brokers in order, with retries; a refused message does not affect the others.

A queue has one request in flight at a time, so a later message never overtakes an earlier one.  :class:`Stopper` ends
waiting without cancelling requests in flight; :class:`InFlight` chooses the number of requests in flight;
:class:`Tally` counts the results, with the latencies in little memory.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from triomq.cli.errors import one_line
from triomq.cli.output import plural
from triomq.client import MessageQueue, Producer
from triomq.client.producer.config import DEFAULT_COMPRESS_OVER_BYTES
from triomq.protocol import errors as e
from triomq.protocol.codes import ResponseCode
from triomq.protocol.record.message import Message


class Stopper:
    """Tells tasks to begin no new work.

    Attributes:
        is_set: whether :meth:`set` was called.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._scopes: set[trio.CancelScope] = set()

    def set(self) -> None:
        """End all waiting, now and later."""
        self.is_set = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Run a block that :meth:`set` ends early; check :attr:`is_set` after it."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.is_set:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)


class Pacer:
    """Limits the messages per second; does not make up for time without messages."""

    def __init__(self, rate: float | None, stopper: Stopper) -> None:
        self._rate = rate
        self._stopper = stopper
        self._due: float | None = None

    async def wait(self, messages: int) -> bool:
        """Wait until so many messages may be sent, or the stopper is set; return whether that took time."""
        if self._rate is None:
            return False
        now = trio.current_time()
        due = now if self._due is None else max(self._due, now - _MAKE_UP_S)
        self._due = due + messages / self._rate
        if due <= now:
            return False
        with self._stopper.waiting():
            await trio.sleep_until(due)
        return True


_MAKE_UP_S = 0.05
"""A delay up to this is made up for: timers are late on a busy machine."""


Answered: TypeAlias = Callable[[float], None]
"""Takes the seconds that a request took."""

_LEAST: Final = 32
_MOST: Final = 2048
_MOST_BYTES: Final = 64 * 1024**2
_QUEUED: Final = 1.5  # times the quickest answer: requests wait for each other


class InFlight:
    """Starts tasks that each send one request after another.

    While the usual answer takes less than 1.5 times as long as the quickest one, requests do not wait for each other,
    and every fourth answer starts another task.  So the number grows by a quarter in each round trip until the broker,
    the network or this process is busy.

    Attributes:
        tasks: the number of tasks so far.
    """

    def __init__(self, start: Callable[[Answered], None], fixed: int | None = None, request_bytes: int = 0) -> None:
        """Start the first tasks.

        Args:
            start: starts another task, which calls its argument with the time that each request took.
            fixed: the number of tasks; ``None``: at least 32, and more if the round trip needs them.
            request_bytes: approximate size of a request; all together may have 64 MiB.
        """
        self.tasks = 0
        self._start = start
        self._most = fixed or max(_LEAST, min(_MOST, _MOST_BYTES // max(request_bytes, 1)))
        self._answers = 0
        self._quickest_s = math.inf
        self._usual_s = 0.0
        for _ in range(fixed or _LEAST):
            self._add()

    def _answered(self, took_s: float) -> None:
        self._answers += 1
        self._quickest_s = min(self._quickest_s, took_s)
        if self._answers <= _LEAST:  # these have waited for the connection, too
            self._usual_s = took_s
            return
        self._usual_s += (took_s - self._usual_s) / self.tasks  # the average of a round trip
        if self._answers % 4 == 0 and self.tasks < self._most and self._usual_s < _QUEUED * self._quickest_s:
            self._add()

    def _add(self) -> None:
        self.tasks += 1
        self._start(self._answered)


_FEW: Final = 10  # messages per second that are given with a decimal place
_REMARKS: Final = (
    ("failed", "failed"),
    ("unsent", "read but not sent"),
    ("unanswered", "without an answer: perhaps stored"),
)
_PER_DOUBLING: Final = 32
"""Buckets per doubling: the error of a percentile is at most 2.2 %."""
_SMALLEST_S: Final = 1e-6


class Histogram:
    """Durations in exponential buckets."""

    __slots__ = ("_buckets", "count", "longest_s")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.longest_s = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count a duration."""
        bucket = math.ceil(math.log2(max(duration_s, _SMALLEST_S)) * _PER_DOUBLING)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.longest_s = max(self.longest_s, duration_s)

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile in milliseconds, with three decimals; ``None`` without durations."""
        wanted = self.count * percent / 100
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= wanted:
                return round(min(math.exp2(bucket / _PER_DOUBLING), self.longest_s) * 1000, 3)
        return None


class Tally:
    """Counts of messages and the latency of requests.

    Attributes:
        sent: messages stored by a broker.
        failed: messages that could not be read or sent.
        unsent: messages read but not sent when the command had to end.
        unanswered: messages in flight when the command had to end: perhaps stored.
        sent_bytes: total length of their bodies.
        began, ended: times of the first request and the last answer.
        latencies: of the requests.
        recall_handle: takes the message back that was sent last, if it is delayed and the broker allows it.
        first_error: the first failure.
        first_place: its input line, as a prefix for its text.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.unsent = 0
        self.unanswered = 0
        self.sent_bytes = 0
        self.recall_handle: str | None = None
        self.latencies: Final = Histogram()
        self.first_error: e.TriomqError | None = None
        self.first_place = ""
        self.began = trio.current_time()
        self.ended = self.began

    def sending(self, messages: int) -> None:
        """Count messages of a request that is about to be sent."""
        if not self.unanswered and not self.latencies.count:
            self.began = trio.current_time()
        self.unanswered += messages

    def succeeded(self, messages: list[Message], took_s: float, recall_handle: str | None = None) -> None:
        """Count a request that a broker accepted."""
        self.sent += len(messages)
        self.recall_handle = recall_handle
        self.sent_bytes += sum([len(message.body) for message in messages])
        self.latencies.add(took_s)
        self.ended = trio.current_time()

    def failed_with(self, error: e.TriomqError, messages: int = 1, place: str = "") -> None:
        """Count messages that were not sent; ``place`` names their input lines."""
        self.failed += messages
        if self.first_error is None:
            self.first_error, self.first_place = error, place

    @property
    def error_text(self) -> str | None:
        """The first error on one line, with the number of its input line."""
        return None if self.first_error is None else self.first_place + one_line(self.first_error)

    def summary(self, topic: str, skipped: int, rate: float | None = None) -> dict[str, Any]:
        """Return the output of ``--json``; ``rate`` is the limit of messages per second."""
        seconds = self.ended - self.began
        per_s = self.sent / seconds if seconds else None
        if per_s and rate:  # n messages have n - 1 pauses between them
            per_s = min(per_s, rate)
        return {
            "topic": topic,
            "sent": self.sent,
            "failed": self.failed,
            "unsent": self.unsent,
            "unanswered": self.unanswered,
            "skipped_blank_lines": skipped,
            "bytes": self.sent_bytes,
            "seconds": round(seconds, 3),
            "messages_per_s": per_s and round(per_s, 1 if per_s < _FEW else None),
            "requests": self.latencies.count,
            "p50_ms": self.latencies.percentile_ms(50),
            "p99_ms": self.latencies.percentile_ms(99),
            "error": self.error_text,
            "recall_handle": self.recall_handle if self.sent == 1 else None,
        }


def summary_line(summary: dict[str, Any]) -> str:
    """Return the summary as a sentence."""
    text = f"sent {plural(summary['sent'], 'message')}, {plural(summary['bytes'], 'byte')}"
    text += f", in {summary['seconds']:.2f} s"
    if summary["sent"] and summary["messages_per_s"]:
        text += f": {summary['messages_per_s']:g}/s, p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms"
    for name, words in _REMARKS:
        if summary[name]:
            text += f"; {summary[name]} {words}"
    if summary["skipped_blank_lines"]:
        text += f"; skipped {plural(summary['skipped_blank_lines'], 'blank line')}"
    if summary["recall_handle"]:
        text += f"\ntake it back with: triomq message recall {summary['recall_handle']}"
    return text + "\n"


_RETRY_FOR_S: Final = 3.0
_FIRST_PAUSE_S: Final = 0.1
_MAX_REQUEST_BYTES: Final = 2 * 1024**2
_MESSAGE_BYTES: Final = 512
"""Estimated size of a message in a request without its body."""
#: Failures that the same queue may not have a moment later.  The producer itself waits for a busy broker.
_RETRIED: Final = (e.ConnectError, e.ConnectionLostError, e.ServiceNotAvailableError, e.BrokerSystemError)


class Batch(NamedTuple):
    """Messages to send in order.

    Attributes:
        messages: the messages.
        lines: their input lines; empty for generated messages.
    """

    messages: list[Message]
    lines: list[int]

    def part(self, start: int, stop: int) -> "Batch":
        """Return some of the messages."""
        return Batch(self.messages[start:stop], self.lines[start:stop])

    @property
    def place(self) -> str:
        """Their input lines, as a prefix for an error text."""
        if not self.lines:
            return ""
        first, last = self.lines[0], self.lines[-1]
        return f"line {first}: " if first == last else f"lines {first} to {last}: "


class OrderedSender:
    """Sends batches and counts the results; an error ends the sending, unless ``keep_going``."""

    def __init__(self, producer: Producer, stopper: Stopper, tally: Tally, *, keep_going: bool) -> None:
        self._producer = producer
        self._stopper = stopper
        self._tally = tally
        self._keep_going = keep_going

    def refuse(self, error: e.TriomqError, messages: int = 1, place: str = "") -> None:
        """Count messages as failed, and stop unless ``keep_going``."""
        self._tally.failed_with(error, messages, place)
        if not self._keep_going:
            self._stopper.set()

    async def send(self, batch: Batch, queue: MessageQueue | None) -> None:
        """Send messages to a queue, in order; without a queue, to any."""
        for part in _requests(batch):
            if self._stopper.is_set:
                self._tally.unsent += len(part.messages)
                continue
            try:
                await self._request(part.messages, queue)
            except e.TriomqError as exc:
                is_refusal = isinstance(exc, e.MessageIllegalError | e.ProtocolError)  # because of its contents
                if isinstance(exc, e.BrokerResponseError):
                    is_refusal = exc.code == ResponseCode.MESSAGE_ILLEGAL
                if len(part.messages) == 1 or not is_refusal:
                    self.refuse(exc, len(part.messages), part.place)
                    continue
                for index in range(len(part.messages)):  # one message caused it: send the others
                    await self.send(part.part(index, index + 1), queue)

    async def _request(self, messages: list[Message], queue: MessageQueue | None) -> None:
        tally, began, pause = self._tally, trio.current_time(), _FIRST_PAUSE_S
        tally.sending(len(messages))
        while True:
            try:
                handle = None
                if len(messages) == 1:
                    handle = (await self._producer.send(messages[0], queue=queue)).recall_handle
                else:
                    await self._producer.send_batch(messages, queue=queue)
            except e.TriomqError as exc:
                late = trio.current_time() + pause > began + _RETRY_FOR_S
                if queue is None or late or self._stopper.is_set or not isinstance(exc, _RETRIED):
                    tally.unanswered -= len(messages)
                    raise
            else:
                tally.unanswered -= len(messages)
                tally.succeeded(messages, trio.current_time() - began, handle)
                return
            with self._stopper.waiting():
                await trio.sleep(pause)
            pause *= 2


def _requests(batch: Batch) -> Iterator[Batch]:
    """Split a batch by size; a body worth compressing is sent alone, because batches are not compressed."""
    start = size = 0
    for index, message in enumerate(batch.messages):
        length = len(message.body)
        if start < index and (length >= DEFAULT_COMPRESS_OVER_BYTES or size + length > _MAX_REQUEST_BYTES):
            yield batch.part(start, index)
            start, size = index, 0
        size += length + _MESSAGE_BYTES
        if length >= DEFAULT_COMPRESS_OVER_BYTES:
            yield batch.part(index, index + 1)
            start, size = index + 1, 0
    if start < len(batch.messages):
        yield batch.part(start, len(batch.messages))
