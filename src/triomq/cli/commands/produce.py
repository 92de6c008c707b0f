"""``triomq produce``: sends the lines of stdin, or generated messages."""

import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

import trio

from triomq.cli.arguments.client_options import ProduceOptions
from triomq.cli.errors import exit_code_of, one_line
from triomq.cli.exit_codes import ExitCode
from triomq.cli.histogram import Histogram
from triomq.cli.output import write_json, write_text
from triomq.cli.session import Interrupt, client_config, run_command
from triomq.cli.sources import GeneratedSource, LineSource, Source, read_stdin
from triomq.cli.stopper import Pacer, Stopper
from triomq.client import Producer
from triomq.client.nursery import open_service_nursery
from triomq.protocol.errors import TriomqError
from triomq.protocol.record.message import Message

GENERATED_CONCURRENCY: Final = 32
_FINISH_S: Final = 1.0
"""How long requests under way may take after an interrupt."""
_REFRESH_S: Final = 0.1


def run(options: ProduceOptions) -> int:
    """Send everything; write what became of it, also after Ctrl-C."""

    async def command(interrupt: Interrupt) -> int:
        return await _produce(options, interrupt)

    return run_command(command)


class Tally:
    """What became of the messages.

    Attributes:
        sent, failed: messages that a broker stored, or that nobody did as far as we know.
        unanswered: messages whose requests were under way when the command had to end.
        sent_bytes: bodies of the sent ones.
        latencies: of the requests.
        first_error: why the first message failed.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.unanswered = 0
        self.sent_bytes = 0
        self.latencies = Histogram()
        self.first_error: TriomqError | None = None
        self.began = trio.current_time()
        self.ended = self.began

    def succeeded(self, messages: list[Message], took_s: float) -> None:
        """Count a request that a broker answered well."""
        self.sent += len(messages)
        self.sent_bytes += sum(len(message.body) for message in messages)
        self.latencies.add(took_s)
        self.ended = trio.current_time()

    def refused(self, messages: int, error: TriomqError) -> None:
        """Count messages that were not sent."""
        self.failed += messages
        if self.first_error is None:
            self.first_error = error

    def summary(self, topic: str, skipped: int) -> dict[str, Any]:
        """Return everything, as ``--json`` writes it."""
        seconds = self.ended - self.began
        return {
            "topic": topic,
            "sent": self.sent,
            "failed": self.failed,
            "unanswered": self.unanswered,
            "skipped_blank_lines": skipped,
            "bytes": self.sent_bytes,
            "seconds": round(seconds, 3),
            "messages_per_s": round(self.sent / seconds) if seconds else None,
            "requests": self.latencies.count,
            "p50_ms": self.latencies.percentile_ms(50),
            "p99_ms": self.latencies.percentile_ms(99),
            "error": None if self.first_error is None else one_line(self.first_error),
        }


def summary_line(summary: dict[str, Any]) -> str:
    """Return the summary as a sentence."""
    text = f"sent {summary['sent']} messages, {summary['bytes']} bytes, in {summary['seconds']:.2f} s"
    if summary["sent"] and summary["messages_per_s"]:
        text += f": {summary['messages_per_s']}/s, p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms"
    for name, words in _REMARKS:
        if summary[name]:
            text += f"; {summary[name]} {words}"
    return text + "\n"


_REMARKS: Final = (
    ("failed", "failed"),
    ("unanswered", "without answer: perhaps stored"),
    ("skipped_blank_lines", "blank lines left out"),
)


async def _produce(options: ProduceOptions, interrupt: Interrupt) -> int:
    stopper, tally = Stopper(), Tally()
    source: Source
    if options.count is not None:
        source = GeneratedSource(options, options.count)
    else:
        source = LineSource(options, stopper, read_stdin)
    concurrency = options.concurrency or (1 if options.count is None else GENERATED_CONCURRENCY)
    producer = Producer(options.group, namesrv=options.namesrv, config=client_config(options))
    async with producer, _progress(tally, source.total), open_service_nursery() as background:
        async with trio.open_nursery() as workers:
            background.start_soon(_stop_at_interrupt, interrupt, stopper, workers.cancel_scope)
            worker = _Worker(options, producer, source, stopper, tally)
            for _ in range(concurrency):
                workers.start_soon(worker.run)
    skipped = source.skipped if isinstance(source, LineSource) else 0
    return _tell(options, tally, skipped)


async def _stop_at_interrupt(interrupt: Interrupt, stopper: Stopper, scope: trio.CancelScope) -> None:
    await interrupt.came.wait()
    stopper.set()
    scope.deadline = trio.current_time() + _FINISH_S


class _Worker:
    """One request after the other; several tasks share one worker's parts."""

    def __init__(
        self, options: ProduceOptions, producer: Producer, source: Source, stopper: Stopper, tally: Tally
    ) -> None:
        self._options = options
        self._producer = producer
        self._source = source
        self._stopper = stopper
        self._tally = tally
        self._pacer = Pacer(options.rate, stopper)

    async def run(self) -> None:
        while not self._stopper.is_set:
            try:
                messages = await self._source.take(self._options.batch)
                if not messages:
                    return
            except TriomqError as exc:
                self._refused(1, exc)
                continue
            await self._pacer.wait(len(messages))
            if not self._stopper.is_set:
                await self._send(messages)

    async def _send(self, messages: list[Message]) -> None:
        began = trio.current_time()
        self._tally.unanswered += len(messages)
        try:
            if self._options.batch == 1:
                await self._producer.send(messages[0])
            else:
                await self._producer.send_batch(messages)
        except TriomqError as exc:
            self._refused(len(messages), exc)
        else:
            self._tally.succeeded(messages, trio.current_time() - began)
        self._tally.unanswered -= len(messages)  # not reached when cancelled

    def _refused(self, messages: int, error: TriomqError) -> None:
        self._tally.refused(messages, error)
        if not self._options.keep_going:
            self._stopper.set()


def _tell(options: ProduceOptions, tally: Tally, skipped: int) -> int:
    summary = tally.summary(options.topic, skipped)
    if options.json:
        write_json(summary)
    elif tally.sent or tally.first_error is None:
        write_text(summary_line(summary))
    if tally.first_error is None:
        return ExitCode.FAILED if tally.unanswered else ExitCode.OK
    prefix = f"{tally.failed} messages were not sent; the first: " if tally.failed > 1 else ""
    sys.stderr.write(f"triomq produce: {prefix}{one_line(tally.first_error)}\n")
    return exit_code_of(tally.first_error)


def _progress(tally: Tally, total: int | None) -> AbstractAsyncContextManager[None]:
    """Show on a terminal how it goes, unless somebody types the messages there."""
    if not sys.stderr.isatty() or (total is None and sys.stdin.isatty()):
        return nullcontext()
    return _show_progress(tally, total)


@asynccontextmanager
async def _show_progress(tally: Tally, total: int | None) -> AsyncGenerator[None]:
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
