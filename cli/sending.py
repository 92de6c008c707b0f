"""Send messages to brokers in order, with retries; a refused message does not affect the others.

A queue has one request in flight at a time, so a later message never overtakes an earlier one.  :class:`Stopper` ends
waiting without cancelling requests in flight; :class:`InFlight` chooses the number of requests in flight.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

import trio

from triomq.cli.tally import Tally
from triomq.client import MessageQueue, Producer
from triomq.client.producer.config import DEFAULT_COMPRESS_OVER_BYTES
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    BrokerSystemError,
    ConnectError,
    ConnectionLostError,
    MessageIllegalError,
    ProtocolError,
    ServiceNotAvailableError,
    TriomqError,
)
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


_RETRY_FOR_S: Final = 3.0
_FIRST_PAUSE_S: Final = 0.1
_MAX_REQUEST_BYTES: Final = 2 * 1024**2
_MESSAGE_BYTES: Final = 512
"""Estimated size of a message in a request without its body."""
#: Failures that the same queue may not have a moment later.  The producer itself waits for a busy broker.
_RETRIED: Final = (ConnectError, ConnectionLostError, ServiceNotAvailableError, BrokerSystemError)


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

    def refuse(self, error: TriomqError, messages: int = 1, place: str = "") -> None:
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
            except TriomqError as exc:
                if len(part.messages) == 1 or not _is_refusal(exc):
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
            except TriomqError as exc:
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


def _is_refusal(error: TriomqError) -> bool:
    """Whether the request was rejected as a whole because of its contents."""
    if isinstance(error, BrokerResponseError):
        return error.code == ResponseCode.MESSAGE_ILLEGAL
    return isinstance(error, MessageIllegalError | ProtocolError)
