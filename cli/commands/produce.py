"""``triomq produce``: send the lines of stdin, or generated messages; ``triomq request``: send one, write its reply."""

import base64
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle
from random import shuffle
from typing import Any, Final, TypeAlias

import orjson
import trio

from triomq.cli.arguments.options import ProduceOptions, RequestOptions
from triomq.cli.errors import ExitCode, UsageError, exit_code_of
from triomq.cli.output import message_fields, shown_body, write_json, write_text
from triomq.cli.sending import Answered, Batch, InFlight, OrderedSender, Pacer, Stopper, Tally, summary_line
from triomq.cli.session import Interrupt, client_command, client_config, interruptible_command
from triomq.client import Message, MessageQueue, Producer
from triomq.client.nursery import open_service_nursery
from triomq.protocol.errors import MessageIllegalError, TriomqError

LINES_IN_FLIGHT: Final = 16
_LINES_PER_REQUEST: Final = 1000
_PACE_S: Final = 0.05
"""With ``--rate`` a request holds at most the messages of this time."""
_FINISH_S: Final = 1.0
"""How long requests in flight may take after an interrupt."""
_REFRESH_S: Final = 0.1
_READ_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 8 * 1024**2
"""Twice the largest body that a broker accepts: room for base64 and properties."""
_OURS: Final = frozenset(("body", "body_base64", "tags", "keys", "properties"))
_OF_CONSUME: Final = frozenset(
    ("topic", "broker", "queue_id", "queue_offset", "message_id", "offset_message_id", "born_ms", "stored_ms", "tries")
)
"""Other fields of ``consume --json``: the new message gets its own values."""


# --- messages to send: lines of stdin, or generated ----------------------------------------------------------


class GeneratedSource:
    """``count`` messages with numbered bodies of ``size`` bytes; has the attributes of :class:`LineSource`."""

    def __init__(self, options: ProduceOptions, count: int) -> None:
        self.total: int | None = count
        self.tasks = 1
        self.skipped = 0
        self._options = options
        self._next = 0
        # Made once; zlib compresses it about as well as plain text.
        self._filler = base64.b64encode(os.urandom(options.size * 3 // 4 + 1))

    async def take(self, limit: int) -> Batch:
        """Return the next messages, up to ``limit``; none at the end."""
        first, self._next = self._next, min(self._next + limit, self.total or 0)
        size, filler = self._options.size, self._filler
        bodies = [(b"%d " % number + filler)[:size] for number in range(first, self._next)]
        return Batch([make_message(self._options, body) for body in bodies], [])


class LineSource:
    """Lines of bytes; blank ones are skipped, because a message must not be empty.

    Attributes:
        total: the number of messages, unknown here.
        tasks: the number of tasks that take messages; input that is available at once is divided among them.
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
        self._refusal: TriomqError | None = None  # of the line after the messages returned last

    async def take(self, limit: int) -> Batch:
        """Wait for messages and return up to ``limit``; none at the end.

        Raises:
            UsageError: a line cannot be read; the next call continues after it.
        """
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
                    self._refusal = exc  # send the messages before it first
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


Source: TypeAlias = GeneratedSource | LineSource


async def read_stdin() -> bytes:
    """Return the next bytes of stdin, b"" at its end; a cancelled call leaves its thread reading."""
    return await trio.to_thread.run_sync(os.read, 0, _READ_BYTES, abandon_on_cancel=True)


def make_message(
    options: ProduceOptions,
    body: bytes,
    tags: str | None = None,
    keys: Sequence[str] | str = (),
    properties: Mapping[str, str] | None = None,
) -> Message:
    """Return a message with the given fields, and with those of the command line where they are missing."""
    return Message(
        options.topic,
        body,
        tags=tags or options.tag,
        keys=keys or options.key,
        properties={**dict(options.properties), **(properties or {})},
        delay_s=options.delay,
        deliver_at=options.deliver_at,
    )


def read_json_line(options: ProduceOptions, line: bytes, line_number: int) -> Message:
    """Return the message of one line; the command line supplies fields that the line does not have.

    Raises:
        UsageError: it is not such an object.
    """
    try:
        found = orjson.loads(line.decode())
    except UnicodeDecodeError as exc:
        raise UsageError(f"line {line_number}: not UTF-8: write binary bodies as body_base64") from exc
    except ValueError as exc:
        raise UsageError(f"line {line_number}: not JSON: {exc}") from exc
    try:
        return _message(options, found)
    except (ValueError, TypeError, MessageIllegalError) as exc:
        raise UsageError(f"line {line_number}: {exc}") from exc


def _message(options: ProduceOptions, found: Any) -> Message:
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    if unknown := found.keys() - _OURS - _OF_CONSUME:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(_OURS))}")
    tags, properties, keys = found.get("tags"), found.get("properties") or {}, found.get("keys") or ()
    if not isinstance(tags, str | None):
        raise TypeError("tags must be text")
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise TypeError("properties must be an object with text values")
    if not isinstance(keys, str | list | tuple) or not all(isinstance(key, str) for key in keys):
        raise TypeError("keys must be text or a list of texts")
    text, encoded = found.get("body"), found.get("body_base64")
    if isinstance(text, str) and encoded is None:
        body = text.encode()
    elif isinstance(encoded, str) and text is None:
        body = base64.b64decode(encoded, validate=True)
    else:
        raise ValueError("either body or body_base64 is required, as text")
    return make_message(options, body, tags, keys, properties)


# --- sending them ------------------------------------------------------------------------------------------


@interruptible_command
async def run(options: ProduceOptions, interrupt: Interrupt) -> int:
    """Send everything and write a summary, also after Ctrl-C."""
    stopper, tally = Stopper(), Tally()
    source: Source
    if options.count is not None:
        source = GeneratedSource(options, options.count)
    else:
        source = LineSource(options, stopper, read_stdin)
        if sys.stdin.isatty():
            sys.stderr.write("reading lines from the terminal; end with Ctrl-D\n")
    producer = Producer(options.group, namesrv=options.namesrv, config=client_config(options), trace=options.trace)

    async def stop() -> None:
        await interrupt.came.wait()
        stopper.set()
        workers.cancel_scope.deadline = trio.current_time() + _FINISH_S

    async with producer, _progress(tally, source.total), open_service_nursery() as background:
        async with trio.open_nursery() as workers:
            background.start_soon(stop)
            sender = OrderedSender(producer, stopper, tally, keep_going=options.keep_going)
            pacer, limit = Pacer(options.rate, stopper), _batch_limit(options)

            def start(queues: Sequence[MessageQueue | None], answered: Answered = lambda _: None) -> None:
                workers.start_soon(_work, source, sender, pacer, limit, queues, answered)

            if isinstance(source, GeneratedSource):
                InFlight(partial(start, (None,)), options.in_flight, options.size * limit)
            else:
                queues: list[MessageQueue | None] = [*await producer.publish_queues(options.topic)]
                shuffle(queues)  # otherwise many short runs would fill the first queue only
                source.tasks = tasks = min(options.in_flight or LINES_IN_FLIGHT, len(queues))
                for task in range(tasks):  # no queue belongs to two tasks, which keeps the order of lines
                    start(queues[task::tasks])
    return _write_summary(options, tally, source.skipped)


def _batch_limit(options: ProduceOptions) -> int:
    if options.delay or options.deliver_at is not None:
        return 1  # RocketMQ has no batches of delayed messages
    limit = options.batch or (1 if options.count is not None else _LINES_PER_REQUEST)
    return limit if options.rate is None else min(limit, max(1, int(options.rate * _PACE_S)))


async def _work(
    source: Source,
    sender: OrderedSender,
    pacer: Pacer,
    limit: int,
    queues: Sequence[MessageQueue | None],
    answered: Answered,
) -> None:
    """Send the messages of the source, one request at a time; ``answered`` gets the time that it took."""
    for queue in cycle(queues):
        try:
            batch = await source.take(limit)
        except TriomqError as exc:
            sender.refuse(exc)
            continue
        if not batch.messages:
            return
        has_waited = await pacer.wait(len(batch.messages))
        began = trio.current_time()
        await sender.send(batch, queue)
        if not has_waited:
            answered(trio.current_time() - began)


def _write_summary(options: ProduceOptions, tally: Tally, skipped: int) -> int:
    summary = tally.summary(options.topic, skipped, options.rate)
    if options.json:
        write_json(summary)
    elif tally.sent or tally.first_error is None:
        write_text(summary_line(summary))
    if tally.first_error is None:
        return ExitCode.FAILED if tally.unanswered or tally.unsent else ExitCode.OK
    prefix = f"{tally.failed} messages failed; the first: " if tally.failed > 1 else ""
    sys.stderr.write(f"triomq produce: {prefix}{tally.error_text}\n")
    return exit_code_of(tally.first_error)


@asynccontextmanager
async def _progress(tally: Tally, total: int | None) -> AsyncGenerator[None]:
    """Show progress on a terminal, unless the messages are typed there."""
    if not sys.stderr.isatty() or (total is None and sys.stdin.isatty()):
        yield
        return
    from rich.console import Console  # 50 ms, only where it is shown
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.completed} sent, {task.fields[rate]}/s"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total, rate=0)

        async def refresh() -> None:
            while True:
                await trio.sleep(_REFRESH_S)
                elapsed = trio.current_time() - tally.began
                progress.update(task, completed=tally.sent, rate=round(tally.sent / elapsed) if elapsed else 0)

        async with open_service_nursery() as nursery:
            nursery.start_soon(refresh)
            yield


@client_command
async def request(options: RequestOptions) -> None:
    """Send a request and write its reply."""
    message = Message(options.topic, options.body.encode(), tags=options.tag, keys=options.key)
    async with Producer(options.group, namesrv=options.namesrv, config=client_config(options)) as producer:
        reply = await producer.request(message, timeout_s=options.timeout)
    if options.json:
        write_json(message_fields(reply))
    else:
        write_text(shown_body(reply).decode("utf-8", "replace") + "\n")
