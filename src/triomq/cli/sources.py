"""Where ``triomq produce`` takes its messages from: lines of stdin, or a generator."""

import base64
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import orjson
import trio

from triomq.cli.arguments.client_options import ProduceOptions
from triomq.cli.errors import UsageError
from triomq.cli.ordered_sender import Batch
from triomq.cli.stopper import Stopper
from triomq.protocol.errors import MessageIllegalError, TriomqError
from triomq.protocol.record.message import Message

_READ_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 8 * 1024**2
"""Twice the largest body a broker takes: room for its base64 and its properties."""
_OURS: Final = frozenset(("body", "body_base64", "tags", "keys", "properties"))
_OF_CONSUME: Final = frozenset(
    ("topic", "broker", "queue_id", "queue_offset", "message_id", "offset_message_id", "born_ms", "stored_ms", "tries")
)
"""What ``consume --json`` writes besides: the message gets new values for these."""


class Source(Protocol):
    """Gives messages to several tasks."""

    @property
    def total(self) -> int | None:
        """How many messages there will be, ``None`` if nobody knows."""

    tasks: int
    """How many tasks take messages: what can be read at once is shared out evenly."""

    async def take(self, limit: int) -> Batch:
        """Return the next messages, up to ``limit``, as soon as there is one; none at the end.

        Raises:
            UsageError: a line cannot be read; the next call goes on behind it.
        """


class GeneratedSource:
    """``count`` messages with bodies of ``size`` bytes that say which they are."""

    def __init__(self, options: ProduceOptions, count: int) -> None:
        self.total: int | None = count
        self.tasks = 1
        self._options = options
        self._next = 0
        # Text that zlib shortens about as much as it shortens words, and that is made once.
        self._filler = base64.b64encode(os.urandom(options.size * 3 // 4 + 1))

    async def take(self, limit: int) -> Batch:
        """Make messages."""
        first, self._next = self._next, min(self._next + limit, self.total or 0)
        size, filler = self._options.size, self._filler
        bodies = [(b"%d " % number + filler)[:size] for number in range(first, self._next)]
        return Batch([make_message(self._options, body) for body in bodies], [])


class LineSource:
    """Lines of bytes; blank ones are counted and left out, as no message may be empty.

    Attributes:
        total: always ``None``.
        skipped: blank lines so far.
    """

    total: int | None = None

    def __init__(self, options: ProduceOptions, stopper: Stopper, read: Callable[[], Awaitable[bytes]]) -> None:
        self.skipped = 0
        self.tasks = 1
        self._options = options
        self._stopper = stopper
        self._read = read
        self._lock = trio.Lock()
        self._lines: list[bytes] = []  # whole lines, the next one last
        self._rest = b""
        self._is_end = False
        self._share = 1
        self._line_number = 0
        self._refusal: TriomqError | None = None  # of the line behind the messages that were returned last

    async def take(self, limit: int) -> Batch:
        """Read messages; see :class:`Source`."""
        batch = Batch([], [])
        async with self._lock:
            refusal, self._refusal = self._refusal, None
            if refusal is not None:
                raise refusal
            while not batch.messages and not self._stopper.is_set:
                while not self._lines and not self._is_end:
                    await self._fill()
                if not self._lines:
                    break
                try:
                    self._take_lines(min(limit, self._share), batch)
                except TriomqError as exc:
                    if not batch.messages:
                        raise
                    self._refusal = exc  # those before it are to be sent first
        return batch

    async def _fill(self) -> None:
        data = b""
        with self._stopper.waiting():
            data = await self._read()
        lines = (self._rest + data).split(b"\n") if data else [self._rest, b""]
        self._is_end = not data
        self._rest = lines.pop()
        if len(self._rest) > _MAX_LINE_BYTES:
            self._is_end = True
            raise UsageError(f"line {self._line_number + len(lines) + 1} is longer than {_MAX_LINE_BYTES} bytes")
        lines.reverse()
        self._lines = [line for line in lines if line] if self._is_end else lines
        self._share = -(-len(lines) // self.tasks)

    def _take_lines(self, limit: int, batch: Batch) -> None:
        messages, numbers = batch
        lines, options = self._lines, self._options
        while lines and len(messages) < limit:
            line = lines.pop().removesuffix(b"\r")
            self._line_number += 1
            if not line.strip():
                self.skipped += 1
                continue
            if options.json_lines:
                messages.append(read_json_line(options, line, self._line_number))
            else:
                messages.append(make_message(options, line))
            numbers.append(self._line_number)


async def read_stdin() -> bytes:
    """Return what stdin has next, b"" at its end; may be cancelled, though the reading thread then stays."""
    return await trio.to_thread.run_sync(os.read, 0, _READ_BYTES, abandon_on_cancel=True)


def make_message(options: ProduceOptions, body: bytes) -> Message:
    """Return a message with what the command line says of all messages."""
    return Message(
        options.topic,
        body,
        tags=options.tag,
        keys=options.key,
        properties=dict(options.properties),
        delay_s=options.delay,
        deliver_at=options.deliver_at,
    )


def read_json_line(options: ProduceOptions, line: bytes, line_number: int) -> Message:
    """Return the message of one line; what the line does not say, the command line says.

    Raises:
        UsageError: it is no such object.
    """
    try:
        found = orjson.loads(line.decode())
    except UnicodeDecodeError as exc:
        raise UsageError(f"line {line_number}: not UTF-8: binary bodies go into body_base64") from exc
    except ValueError as exc:
        raise UsageError(f"line {line_number}: not JSON: {exc}") from exc
    try:
        return _message(options, found)
    except (ValueError, TypeError, MessageIllegalError) as exc:
        raise UsageError(f"line {line_number}: {exc}") from exc


def _message(options: ProduceOptions, found: Any) -> Message:
    if not isinstance(found, dict):
        raise TypeError("it is no JSON object")
    if unknown := found.keys() - _OURS - _OF_CONSUME:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(_OURS))}")
    tags, properties, keys = found.get("tags"), found.get("properties") or {}, found.get("keys") or ()
    if not isinstance(tags, str | None):
        raise TypeError("tags must be text")
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise TypeError("properties must be an object of texts")
    if not isinstance(keys, str | list | tuple) or not all(isinstance(key, str) for key in keys):
        raise TypeError("keys must be text or a list of texts")
    return Message(
        options.topic,
        _body(found),
        tags=tags or options.tag,
        keys=keys or options.key,
        properties=dict(options.properties) | properties,
        delay_s=options.delay,
        deliver_at=options.deliver_at,
    )


def _body(found: Mapping[str, Any]) -> bytes:
    text, encoded = found.get("body"), found.get("body_base64")
    if isinstance(text, str) and encoded is None:
        return text.encode()
    if isinstance(encoded, str) and text is None:
        return base64.b64decode(encoded, validate=True)
    raise ValueError("it needs either body or body_base64, as text")
