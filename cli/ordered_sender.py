"""Send messages to brokers in order, with retries; a refused message does not affect the others.

A queue has one request in flight at a time, so a later message never overtakes an earlier one.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import trio

from triomq.cli.stopper import Stopper
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
