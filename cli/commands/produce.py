"""``triomq produce``: send the lines of stdin, or generated messages; ``triomq request``: send one, write its reply."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from itertools import cycle
from random import shuffle
from typing import Final

import trio

from triomq.cli.arguments.options import ProduceOptions, RequestOptions
from triomq.cli.errors import ExitCode, exit_code_of
from triomq.cli.output import message_fields, shown_body, write_json, write_text
from triomq.cli.sending import Answered, InFlight, OrderedSender, Pacer, Stopper
from triomq.cli.session import Interrupt, client_command, client_config, run_command
from triomq.cli.sources import GeneratedSource, LineSource, Source, read_stdin
from triomq.cli.tally import Tally, summary_line
from triomq.client import Message, MessageQueue, Producer
from triomq.client.nursery import open_service_nursery
from triomq.protocol.errors import TriomqError

LINES_IN_FLIGHT: Final = 16
_LINES_PER_REQUEST: Final = 1000
_PACE_S: Final = 0.05
"""With ``--rate`` a request holds at most the messages of this time."""
_FINISH_S: Final = 1.0
"""How long requests in flight may take after an interrupt."""
_REFRESH_S: Final = 0.1


def run(options: ProduceOptions) -> int:
    """Send everything and write a summary, also after Ctrl-C."""
    return run_command(partial(_produce, options))


async def _produce(options: ProduceOptions, interrupt: Interrupt) -> int:
    stopper, tally = Stopper(), Tally()
    source: Source
    if options.count is not None:
        source = GeneratedSource(options, options.count)
    else:
        source = LineSource(options, stopper, read_stdin)
        if sys.stdin.isatty():
            sys.stderr.write("reading lines from the terminal; end with Ctrl-D\n")
    producer = Producer(options.group, namesrv=options.namesrv, config=client_config(options), trace=options.trace)
    async with producer, _progress(tally, source.total), open_service_nursery() as background:
        async with trio.open_nursery() as workers:
            background.start_soon(_stop_at_interrupt, interrupt, stopper, workers.cancel_scope)
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


async def _stop_at_interrupt(interrupt: Interrupt, stopper: Stopper, scope: trio.CancelScope) -> None:
    await interrupt.came.wait()
    stopper.set()
    scope.deadline = trio.current_time() + _FINISH_S


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


def _progress(tally: Tally, total: int | None) -> AbstractAsyncContextManager[None]:
    """Show progress on a terminal, unless the messages are typed there."""
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
