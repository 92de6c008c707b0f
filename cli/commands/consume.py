"""``triomq consume``: write messages as they arrive.

With a group it is a regular member; a message counts as consumed once it is written.  Without a group it pulls all
queues and stores nothing on the broker.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import trio

from triomq.cli.arguments.options import ConsumeOptions
from triomq.cli.errors import IncompleteError, UsageError
from triomq.cli.output import Formatter, choose_formatter
from triomq.cli.session import Interrupt, client_config, interruptible_command
from triomq.client import MessageExt, MessageModel, MessageQueue, PullConsumer, PushConsumer
from triomq.client.consumer.config import ConsumerConfig
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.nursery import in_parallel, open_service_nursery
from triomq.protocol.errors import BrokerResponseError, ClientError, TriomqError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.cli.commands.consume")

_HOLD_S: Final = 15.0
_RETRY_S: Final = 1.0
_BATCH: Final = 1_024
_PULL_BYTES: Final = 1024**2
_SETTINGS: Final = ConsumerConfig(pull_batch_size=_BATCH)
_GRACE_S: Final = 0.2
"""How long a running write may take at the end; the group keeps what is not written by then."""


class Output:
    """Writes messages to stdout, in a worker thread: a slow reader must not stop the heartbeats.

    Attributes:
        written: messages written so far.
        error: why writing failed, such as a closed pipe or a full disk.
        done: set when nothing more is to be written.
        last_at: when the last message arrived or was written.
    """

    def __init__(self, formatter: Formatter, count: int | None) -> None:
        self.written = 0
        self.error: Exception | None = None
        self.done: Final = trio.Event()
        self.last_at = trio.current_time()
        self._formatter = formatter
        self._count = count
        self._lock = trio.Lock()

    async def write(self, messages: Sequence[MessageExt]) -> bool:
        """Write and flush messages, up to the count, with one call; return whether all were written."""
        async with self._lock:
            if self.done.is_set():
                return False
            wanted = messages if self._count is None else messages[: self._count - self.written]
            self.last_at = trio.current_time()
            try:
                data = b"".join(map(self._formatter, wanted))
                await trio.to_thread.run_sync(_write, data, abandon_on_cancel=True)
            except (OSError, TriomqError) as exc:  # raising it would send the message to the dead letters
                self.error = exc
                self.done.set()
                return False
            self.written += len(wanted)
            self.last_at = trio.current_time()
            if self.written == self._count:
                self.done.set()
            return len(wanted) == len(messages)

    async def end_at(self, event: trio.Event) -> None:
        """Set :attr:`done` with an event."""
        await event.wait()
        self.done.set()

    async def end_when_idle(self, timeout_s: float) -> None:
        """Set :attr:`done` when no message has arrived for this long; messages that wait for a slow reader count."""
        while trio.current_time() < self.last_at + timeout_s:
            await trio.sleep_until(self.last_at + timeout_s)
            async with self._lock:  # messages that wait for the reader are written first
                pass
        self.done.set()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@interruptible_command
async def run(options: ConsumeOptions, interrupt: Interrupt) -> None:
    """Write messages until the count is reached, none arrives within the timeout, or a signal arrives.

    Raises:
        UsageError: an option for members was given without a group.
        IncompleteError: the timeout expired before the count was reached.
    """
    if options.group is None:
        for option, is_given in (
            ("--orderly", options.orderly),
            ("--broadcast", options.broadcast),
            ("--instance-name", options.instance_name is not None),
        ):
            if is_given:
                raise UsageError(f"{option}: it is for members of a group; give --group too")
    is_terminal = sys.stdout.isatty()
    formatter = choose_formatter(as_json=options.json, as_long=options.long, is_terminal=is_terminal)
    output = Output(formatter, options.count)
    async with open_service_nursery() as nursery:
        nursery.start_soon(output.end_at, interrupt.came)
        if options.timeout is not None:
            nursery.start_soon(output.end_when_idle, options.timeout)
        if options.group is None:
            await _read(options, output)
        else:
            await _join(options, options.group, output)
    if output.error is not None:
        raise output.error
    if options.count is not None and output.written < options.count and not interrupt.exit_code:
        raise IncompleteError(
            f"only {output.written} of {options.count} messages arrived, none in the last {options.timeout:g} s"
        )


async def _join(options: ConsumeOptions, group: str, output: Output) -> None:
    """Consume as a member of the group; a written message is consumed."""

    async def handle(messages: list[MessageExt], _context: object) -> None:
        if not await output.write(messages):
            # Neither consumed nor failed: hold it until leaving the group drops it, without a warning.
            logging.getLogger("triomq.client.consumer").setLevel(logging.ERROR)
            await trio.sleep_forever()

    async with PushConsumer(
        group,
        namesrv=options.namesrv,
        config=replace(client_config(options), instance_name=options.instance_name),
        on_messages=handle,
        subscriptions={options.topic: options.sql or options.tag},
        orderly=options.orderly,
        model=MessageModel.BROADCASTING if options.broadcast else MessageModel.CLUSTERING,
        start=options.start,
        trace=options.trace,
        max_concurrency=1,
        batch_max_size=_BATCH if options.count is None else 1,  # a batch is consumed as a whole
        grace_s=_GRACE_S,
        settings=_SETTINGS,
    ):
        await output.done.wait()


async def _read(options: ConsumeOptions, output: Output) -> None:
    """Pull from all queues of the topic."""
    failures = EventLog(
        LOGGER, "pull failed, retrying broker=%s error=%s", logging.WARNING, recovery="pull works again broker=%s"
    )
    pull = PullConsumer(TOOLS_GROUP, namesrv=options.namesrv, config=client_config(options))

    async def start_offset(queue: MessageQueue) -> int:
        if isinstance(options.start, datetime):
            return await pull.offset_for_timestamp(queue, round(options.start.timestamp() * 1000))
        return await (pull.min_offset(queue) if options.start == "earliest" else pull.max_offset(queue))

    async def read_queue(queue: MessageQueue, queue_offset: int) -> None:
        broker = queue.broker_name
        while True:
            try:
                found = await pull.pull(queue, queue_offset, options.sql or options.tag, _BATCH, _HOLD_S, _PULL_BYTES)
            except (ClientError, BrokerResponseError) as exc:
                failures.occurred(broker, exc, key=broker)
                await trio.sleep(_RETRY_S)
                continue
            failures.ended(broker, key=broker)
            if found.messages:
                await output.write(found.messages)
            queue_offset = found.next_begin_offset

    async with pull, open_service_nursery() as nursery:
        queues = await pull.queues(options.topic)
        for queue, queue_offset in zip(queues, await in_parallel(start_offset, queues), strict=True):
            nursery.start_soon(read_queue, queue, queue_offset)
        await output.done.wait()
