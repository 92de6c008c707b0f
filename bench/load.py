"""Load by our own client: produce, consume, end to end and delayed, against any RocketMQ broker."""

import argparse
import itertools
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from bench.delay import delayed_servers
from bench.processes import work_folder
from bench.report import latencies_ms, print_table, text_of, write_json
from triomq.cli.sending import Answered, InFlight
from triomq.client import (
    Admin,
    ConsumeContext,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from triomq.protocol.errors import TriomqError

OnMessage: TypeAlias = Callable[[MessageExt], Awaitable[None]]
TIMESTAMP_BYTES: Final = 8
_FILL_BATCH: Final = 64
_PROBE_INTERVAL_S: Final = 0.005


def add_arguments(parser: argparse.ArgumentParser, mode: str) -> None:
    """Declare the options of one mode."""
    parser.add_argument("--namesrv", default="127.0.0.1:9876", help="name server (default 127.0.0.1:9876)")
    parser.add_argument(
        "--delay", type=float, metavar="MS", help="instead start our broker behind a proxy that delays each direction"
    )
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (default 128)")
    parser.add_argument("--queues", type=int, default=8, help="queues of the topic (default 8)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    if mode == "produce":
        parser.add_argument(
            "--in-flight", type=int, help="tasks that each await their sends (default: as many as the round trip needs)"
        )
        parser.add_argument(
            "--connections", type=int, default=1, help="producers, each with its connection (default 1)"
        )
        parser.add_argument("--batch", type=int, default=1, help="messages per send (default 1)")
    if mode in ("produce", "e2e"):
        parser.add_argument("--warmup", type=float, default=2.0, help="seconds that do not count (default 2)")
        parser.add_argument("--seconds", type=float, default=8.0, help="seconds that count (default 8)")
    if mode in ("consume", "lite-pull"):
        parser.add_argument("--count", type=int, default=300_000, help="messages of the backlog (default 300000)")
    if mode == "lite-pull":
        parser.add_argument("--batch", type=int, help="maximum messages per pull (default: the client's)")
    if mode == "consume":
        parser.add_argument("--handler", choices=("each", "batch"), default="each", help="what the handler gets")
        parser.add_argument("--orderly", action="store_true", help="consume each queue in order")
    if mode == "delayed":
        parser.add_argument("--count", type=int, default=100_000, help="messages (default 100000)")
        parser.add_argument("--spread", type=float, default=0.0, help="seconds over which they are due (default 0)")
        parser.add_argument("--lead", type=float, default=20.0, help="seconds to send them in (default 20)")
    if mode == "e2e":
        parser.add_argument("--rate", type=float, default=1000.0, help="messages per second (default 1000)")


def run(options: argparse.Namespace) -> int:
    """Run one mode; returns the exit code."""
    modes = {
        "produce": produce,
        "consume": consume,
        "lite-pull": _lite_pull,
        "e2e": end_to_end,
        "delayed": _delayed,
    }
    with ExitStack() as stack:
        if options.delay is not None:
            folder = stack.enter_context(work_folder())
            start = stack.enter_context(delayed_servers(folder, options.delay))
            options.namesrv = stack.enter_context(start()).namesrv
        try:
            figures = trio.run(partial(with_topic, modes[options.mode], options))
        except TriomqError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 3
    figures = {"bench": options.mode, "size": options.size, "queues": options.queues, **figures}
    print_table(
        f"bench {options.mode}", ["figure", "value"], [[name, text_of(value)] for name, value in figures.items()]
    )
    if options.json:
        write_json(options.json, figures)
    return 0


async def with_topic(mode: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Run ``mode`` with a new topic."""
    topic = f"bench-{time.time_ns():x}"
    async with Admin(namesrv=options.namesrv) as admin:
        await admin.create_topic(topic, queues=options.queues)
        try:
            figures: dict[str, Any] = await mode(options, topic)
        finally:
            with trio.move_on_after(5, shield=True):
                await admin.delete_topic(topic)
        return figures


# --- produce ------------------------------------------------------------------------------------------------


async def produce(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    """Send for some time with many requests in flight."""
    latencies: list[float] = []
    counted_from = time.perf_counter() + options.warmup
    end = counted_from + options.seconds
    body = random.Random(1).randbytes(options.size)

    async def work(producer: Producer, answered: Answered) -> None:
        message = Message(topic, body)
        batch = [message] * options.batch
        while (begin := time.perf_counter()) < end:
            if options.batch == 1:
                await producer.send(message)
            else:
                await producer.send_batch(batch)
            took_s = time.perf_counter() - begin
            answered(took_s)
            if begin >= counted_from:
                latencies.append(took_s)

    async with AsyncExitStack() as stack:
        producers = itertools.cycle(
            [
                await stack.enter_async_context(Producer(f"bench-{number}", namesrv=options.namesrv))
                for number in range(options.connections)
            ]
        )
        async with trio.open_nursery() as nursery:
            in_flight = InFlight(
                lambda answered: nursery.start_soon(work, next(producers), answered),
                options.in_flight,
                options.size * options.batch,
            )
    cpu = time.process_time()
    messages = len(latencies) * options.batch
    return {
        "in_flight": in_flight.tasks,
        "connections": options.connections,
        "batch": options.batch,
        "messages": messages,
        "msgs_per_s": messages / options.seconds,
        "client_cpu_s": cpu,
        **latencies_ms(latencies),
    }


# --- consume ------------------------------------------------------------------------------------------------


async def consume(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    """Store a backlog and drain it with a push consumer."""
    await fill(options, topic)
    done = trio.Event()
    seen = 0
    first = 0.0
    began = time.perf_counter()

    def count(messages: int) -> None:
        nonlocal seen, first
        if not seen:
            first = time.perf_counter()
        seen += messages
        if seen >= options.count:
            done.set()

    async def on_message(_message: MessageExt) -> None:
        count(1)

    async def on_messages(messages: Sequence[MessageExt], _context: ConsumeContext) -> None:
        count(len(messages))

    handler: dict[str, Any] = {"on_message": on_message}
    if options.handler == "batch":
        handler = {"on_messages": on_messages, "batch_max_size": 32}
    cpu = time.process_time()
    async with PushConsumer(
        f"group-{topic}",
        namesrv=options.namesrv,
        subscriptions={topic: "*"},
        start="earliest",
        orderly=options.orderly,
        **handler,
    ):
        await done.wait()
        drained_s = time.perf_counter() - first
    return {
        "handler": options.handler,
        "orderly": options.orderly,
        "messages": seen,
        "msgs_per_s": seen / drained_s,
        "first_ms": (first - began) * 1000,
        "drain_s": drained_s,
        "client_cpu_s": time.process_time() - cpu,
    }


async def _lite_pull(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    await fill(options, topic)
    seen = polls = 0
    cpu = time.process_time()
    began = time.perf_counter()
    settings = LitePullConfig(pull_batch_size=options.batch)
    async with LitePullConsumer(
        f"group-{topic}", namesrv=options.namesrv, start="earliest", settings=settings
    ) as consumer:
        await consumer.subscribe(topic)
        seen = len(await consumer.poll(60))
        first = time.perf_counter()
        while seen < options.count:
            seen += len(await consumer.poll())
            polls += 1
        drained_s = time.perf_counter() - first
    return {
        "messages": seen,
        "msgs_per_s": seen / drained_s,
        "first_ms": (first - began) * 1000,
        "drain_s": drained_s,
        "polls": polls,
        "client_cpu_s": time.process_time() - cpu,
    }


async def fill(options: argparse.Namespace, topic: str) -> None:
    """Send ``options.count`` messages as fast as possible."""
    body = random.Random(1).randbytes(options.size)
    async with Producer("bench-fill", namesrv=options.namesrv) as producer:
        starts = iter(range(0, options.count, _FILL_BATCH))

        async def work(answered: Answered) -> None:
            for start in starts:
                began = time.perf_counter()
                await producer.send_batch([Message(topic, body)] * min(_FILL_BATCH, options.count - start))
                answered(time.perf_counter() - began)

        async with trio.open_nursery() as nursery:
            InFlight(lambda answered: nursery.start_soon(work, answered), request_bytes=options.size * _FILL_BATCH)


# --- end to end ---------------------------------------------------------------------------------------------


async def end_to_end(options: argparse.Namespace, topic: str, by: str = "push") -> dict[str, Any]:
    """Send at a fixed rate and measure until the handler is called; ``by`` pull by a loop of plain pulls."""
    latencies: list[float] = []
    padding = bytes(max(options.size - TIMESTAMP_BYTES, 0))
    counted_from = time.perf_counter_ns() + int(options.warmup * 1e9)

    async def on_message(message: MessageExt) -> None:
        due = int.from_bytes(message.body[:TIMESTAMP_BYTES])
        if due >= counted_from:
            latencies.append((time.perf_counter_ns() - due) / 1e9)

    consume = _push_to if by == "push" else _pull_for
    async with consume(options, topic, on_message), Producer("bench-e2e", namesrv=options.namesrv) as producer:
        count = int((options.warmup + options.seconds) * options.rate)
        start = time.perf_counter_ns() + 100_000_000
        async with trio.open_nursery() as nursery:
            for number in range(count):
                due = start + int(number * 1e9 / options.rate)
                await trio.sleep(max(0.0, (due - time.perf_counter_ns()) / 1e9))
                nursery.start_soon(producer.send, Message(topic, due.to_bytes(TIMESTAMP_BYTES) + padding))
        await trio.sleep(1)
    return {"rate": options.rate, "messages": len(latencies), **latencies_ms(latencies)}


@asynccontextmanager
async def _push_to(options: argparse.Namespace, topic: str, on_message: OnMessage) -> AsyncGenerator[None]:
    async with PushConsumer(
        f"group-{topic}", namesrv=options.namesrv, subscriptions={topic: "*"}, on_message=on_message
    ) as consumer:
        await consumer.wait_assigned()
        yield


@asynccontextmanager
async def _pull_for(options: argparse.Namespace, topic: str, on_message: OnMessage) -> AsyncGenerator[None]:
    async with PullConsumer(f"group-{topic}", namesrv=options.namesrv) as consumer:

        async def follow(queue: MessageQueue) -> None:
            queue_offset = await consumer.max_offset(queue)
            while True:
                result = await consumer.pull(queue, queue_offset, wait_s=15)
                queue_offset = result.next_begin_offset
                for message in result.messages:
                    await on_message(message)

        async with trio.open_nursery() as nursery:
            for queue in await consumer.queues(topic):
                nursery.start_soon(follow, queue)
            yield
            nursery.cancel_scope.cancel()


# --- delayed ------------------------------------------------------------------------------------------------


async def _delayed(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    """Measure how late delayed messages arrive, and how their delivery affects other sends."""
    first_due = time.time() + options.lead
    inbox = DelayedInbox(options.count)
    async with Producer("bench-delayed", namesrv=options.namesrv) as producer:
        await _send_delayed(options, topic, producer, first_due)
        sent_early_s = first_due - time.time()
        async with (
            PushConsumer(
                f"group-{topic}",
                namesrv=options.namesrv,
                subscriptions={topic: "due"},
                start="earliest",
                on_messages=inbox.take,
                batch_max_size=32,
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            await consumer.wait_assigned()
            await trio.sleep(max(first_due - time.time() - 0.5, 0))
            probes: list[float] = []
            nursery.start_soon(probe_sends, producer, topic, probes)
            with trio.move_on_after(options.spread + 60):
                await inbox.done.wait()
            nursery.cancel_scope.cancel()
    return {"sent_early_s": sent_early_s, "spread_s": options.spread, **inbox.figures(probes)}


class DelayedInbox:
    """How late each message was: in its queue, and at the handler."""

    def __init__(self, count: int) -> None:
        self.stored_late_s: list[float] = []
        self.arrived_late_s: list[float] = []
        self.done = trio.Event()
        self._count = count

    async def take(self, messages: Sequence[MessageExt], _context: ConsumeContext) -> None:
        """Take messages whose bodies begin with the time, ms, at which they were due."""
        now = time.time()
        for message in messages:
            due_ms = int.from_bytes(message.body[:TIMESTAMP_BYTES])
            self.stored_late_s.append((message.store_timestamp - due_ms) / 1000)
            self.arrived_late_s.append(now - due_ms / 1000)
        if len(self.stored_late_s) >= self._count:
            self.done.set()

    def figures(self, probes_s: list[float]) -> dict[str, Any]:
        """Return the figures, with the latency of other sends meanwhile."""
        return {
            "messages": len(self.stored_late_s),
            "missing": self._count - len(self.stored_late_s),
            **{f"late_{name}": value for name, value in latencies_ms(self.stored_late_s).items()},
            **{f"arrived_late_{name}": value for name, value in latencies_ms(self.arrived_late_s).items()},
            **{f"other_sends_{name}": value for name, value in latencies_ms(probes_s).items()},
        }


async def _send_delayed(options: argparse.Namespace, topic: str, producer: Producer, first_due: float) -> None:
    numbers = iter(range(options.count))
    padding = bytes(max(options.size - TIMESTAMP_BYTES, 0))

    async def work(answered: Answered) -> None:
        for number in numbers:
            began = time.perf_counter()
            due = first_due + options.spread * number / options.count
            body = round(due * 1000).to_bytes(TIMESTAMP_BYTES) + padding
            await producer.send(Message(topic, body, tags="due", deliver_at=datetime.fromtimestamp(due, UTC)))
            answered(time.perf_counter() - began)

    async with trio.open_nursery() as nursery:
        InFlight(lambda answered: nursery.start_soon(work, answered), request_bytes=options.size)


async def probe_sends(producer: Producer, topic: str, latencies_s: list[float]) -> None:
    """Send at intervals until cancelled and record the latency."""
    while True:
        began = time.perf_counter()
        await producer.send(Message(topic, b"probe", tags="other"))
        latencies_s.append(time.perf_counter() - began)
        await trio.sleep(_PROBE_INTERVAL_S)
