"""Our client beside the clients that a Python user would pick instead, each against its own server.

Every server runs alone on a free port of loopback, with its log on disk: ``redis-server`` with its append-only file,
``nats-server`` with JetStream, Kafka from a folder of its jars (``--kafka-jars``), and our broker.  What is not
installed is left out by name.
"""

import argparse
import asyncio
import importlib
import importlib.util
import random
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import trio

from bench import kafka
from bench.processes import free_port, listening_server, triomq_server, work_folder
from bench.report import latencies_ms, print_table, write_json
from triomq.client import Admin, ConsumeContext, Message, MessageExt, Producer, ProducerConfig, PushConsumer

_TOPIC: Final = "bench"
_FETCH: Final = 500  # messages of one read of a peer's consumer
_SEND_IN_FLIGHT: Final = 64  # while the backlog is filled; redis-py allows 100 connections

Send = Callable[[bytes], Awaitable[object]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m bench peers``."""
    parser.add_argument("--only", default="", help="comma-separated: triomq,redis,nats,kafka")
    parser.add_argument("--tasks", type=int, default=64, help="tasks that each await their send (default 64)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a message (default 128)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds that do not count (default 1)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds that count (default 5)")
    parser.add_argument("--count", type=int, default=200_000, help="messages of the backlog (default 200000)")
    parser.add_argument("--kafka-jars", metavar="DIR", help="folder with the jars of Apache Kafka's broker (KRaft)")
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure every installed peer and print a table; returns the exit code."""
    wanted = options.only.split(",") if options.only else list(_PEERS)
    unknown = [name for name in wanted if name not in _PEERS]
    if unknown:
        print(f"bench: unknown peer {', '.join(unknown)}: choose from {', '.join(_PEERS)}", file=sys.stderr)
        return 2
    report: dict[str, dict[str, Any]] = {}
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        missing, measure = _PEERS[name]
        if reason := missing(options):
            print(f"{name}: skipped, {reason}", file=sys.stderr)
            continue
        with work_folder() as folder:
            report[name] = measure(options, folder)
    rows = [
        [
            name,
            *(f"{figures[key]:,.0f}" for key in ("many_per_s", "one_per_s", "consumed_per_s")),
            f"{figures['many_p50_ms']:.2f} / {figures['many_p99_ms']:.2f}",
        ]
        for name, figures in report.items()
    ]
    head = ["client", f"{options.tasks} tasks, sends/s", "one task, sends/s", "consumed/s", "p50 / p99 ms"]
    print_table(f"{options.size} B, each against its own server with its log on disk", head, rows)
    if options.json:
        write_json(options.json, report)
    return 0


def _figures(options: argparse.Namespace, many: list[float], one: list[float], consume_s: float) -> dict[str, Any]:
    return {
        "many_per_s": len(many) / options.seconds,
        **{f"many_{name}": value for name, value in latencies_ms(many).items()},
        "one_per_s": len(one) / options.seconds,
        **{f"one_{name}": value for name, value in latencies_ms(one).items()},
        "consumed_per_s": options.count / consume_s,
    }


async def _send_until(send: Send, body: bytes, counted_from: float, end: float, latencies: list[float]) -> None:
    while (begin := time.perf_counter()) < end:
        await send(body)
        if begin >= counted_from:
            latencies.append(time.perf_counter() - begin)


# --- ours ---------------------------------------------------------------------------------------------------


def _measure_triomq(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with triomq_server(folder) as server:
        return trio.run(_triomq, options, server.namesrv)


async def _triomq(options: argparse.Namespace, namesrv: str) -> dict[str, Any]:
    body = random.Random(1).randbytes(options.size)
    async with Admin(namesrv=namesrv) as admin:
        for topic in (_TOPIC, f"{_TOPIC}-backlog"):
            await admin.create_topic(topic, queues=8)
    async with Producer("bench", namesrv=namesrv, settings=ProducerConfig(auto_batch=True)) as producer:
        message = Message(_TOPIC, body)

        async def send(_body: bytes) -> None:
            await producer.send(message)

        figures = [await _triomq_sends(options, send, body, tasks) for tasks in (options.tasks, 1)]
        backlog = [Message(f"{_TOPIC}-backlog", body)] * 100
        for begin in range(0, options.count, len(backlog)):
            await producer.send_batch(backlog[: options.count - begin])
    return _figures(options, figures[0], figures[1], await _triomq_consume(options, namesrv))


async def _triomq_sends(options: argparse.Namespace, send: Send, body: bytes, tasks: int) -> list[float]:
    latencies: list[float] = []
    counted_from = time.perf_counter() + options.warmup
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(_send_until, send, body, counted_from, counted_from + options.seconds, latencies)
    return latencies


async def _triomq_consume(options: argparse.Namespace, namesrv: str) -> float:
    done = trio.Event()
    seen = 0
    began = 0.0

    async def on_messages(messages: Sequence[MessageExt], _context: ConsumeContext) -> None:
        nonlocal seen, began
        began = began or time.perf_counter()
        seen += len(messages)
        if seen >= options.count:
            done.set()

    async with PushConsumer(
        "bench",
        namesrv=namesrv,
        subscriptions={f"{_TOPIC}-backlog": "*"},
        start="earliest",
        on_messages=on_messages,
        batch_max_size=32,
    ):
        await done.wait()
        return time.perf_counter() - began


# --- the others, all on asyncio -----------------------------------------------------------------------------


def _load(module: str) -> Any:
    """Import an optional client."""
    return importlib.import_module(module)


class _Session(ABC):
    """A connected client of a peer."""

    @abstractmethod
    async def send(self, body: bytes) -> object:
        """Send a message and wait until the server has it."""

    @abstractmethod
    async def consume(self, count: int) -> AsyncGenerator[int, None]:
        """Read and acknowledge ``count`` messages of the backlog that ``send`` filled; yield the size of each read."""
        yield 0


class _Redis(_Session):
    """Streams of redis-py, a consumer group that reads and acknowledges by 500."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def send(self, body: bytes) -> object:
        return await self._client.xadd(_TOPIC, {b"b": body})

    async def consume(self, count: int) -> AsyncGenerator[int, None]:
        await self._client.xgroup_create(_TOPIC, "bench", id="0")
        seen = 0
        while seen < count:
            [(_, entries)] = await self._client.xreadgroup("bench", "one", {_TOPIC: ">"}, count=_FETCH)
            await self._client.xack(_TOPIC, "bench", *[number for number, _ in entries])
            seen += len(entries)
            yield len(entries)


class _Nats(_Session):
    """JetStream of nats-py, a pull consumer that fetches 500 and acknowledges each."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, body: bytes) -> object:
        return await self._stream.publish(_TOPIC, body)

    async def consume(self, count: int) -> AsyncGenerator[int, None]:
        subscription = await self._stream.pull_subscribe(_TOPIC, durable="bench")
        seen = 0
        while seen < count:
            messages = await subscription.fetch(_FETCH, timeout=10)
            for message in messages:
                await message.ack()
            seen += len(messages)
            yield len(messages)


class _Kafka(_Session):
    """aiokafka, acks=1 as the others; the consumer commits after each read."""

    def __init__(self, producer: Any, bootstrap: str) -> None:
        self._producer = producer
        self._bootstrap = bootstrap

    async def send(self, body: bytes) -> object:
        return await self._producer.send_and_wait(_TOPIC, body)

    async def consume(self, count: int) -> AsyncGenerator[int, None]:
        consumer = _load("aiokafka").AIOKafkaConsumer(
            _TOPIC,
            bootstrap_servers=self._bootstrap,
            group_id="bench",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            seen = 0
            while seen < count:
                found = await consumer.getmany(timeout_ms=1000, max_records=_FETCH)
                messages = sum(map(len, found.values()))
                seen += messages
                await consumer.commit()
                yield messages
        finally:
            await consumer.stop()


class _Peer(ABC):
    """A server and its client."""

    package: ClassVar[str]
    program: ClassVar[str]

    @classmethod
    def missing(cls, _options: argparse.Namespace) -> str:
        """Return the missing dependency, or ""."""
        if shutil.which(cls.program) is None:
            return f"{cls.program} is not on the path"
        module, _, project = cls.package.partition(" ")
        return "" if importlib.util.find_spec(module) else f"pip install {project or module}"

    @classmethod
    @abstractmethod
    def command(cls, options: argparse.Namespace, folder: Path, port: int) -> list[str]:
        """Prepare ``folder`` and return the command that runs the server."""

    @classmethod
    @abstractmethod
    def connect(cls, port: int) -> Any:
        """Return an asynchronous context manager that gives a session."""

    @classmethod
    def measure(cls, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
        """Run the server and measure its client."""
        port = free_port()
        with listening_server(cls.command(options, folder, port), folder / "log", port):
            return asyncio.run(_measure_sessions(options, partial(cls.connect, port)))


async def _measure_sessions(options: argparse.Namespace, connect: Callable[[], Any]) -> dict[str, Any]:
    body = random.Random(1).randbytes(options.size)
    sends = []
    async with connect() as session:
        for tasks in (options.tasks, 1):
            latencies: list[float] = []
            counted_from = time.perf_counter() + options.warmup
            until = counted_from + options.seconds
            await asyncio.gather(
                *(_send_until(session.send, body, counted_from, until, latencies) for _ in range(tasks))
            )
            sends.append(latencies)
        for begin in range(0, max(options.count - sum(map(len, sends)), 0), _SEND_IN_FLIGHT):
            await asyncio.gather(*(session.send(body) for _ in range(min(_SEND_IN_FLIGHT, options.count - begin))))
        began = 0.0
        async for messages in session.consume(options.count):
            if messages and not began:  # joining a group does not count
                began = time.perf_counter()
        return _figures(options, sends[0], sends[1], time.perf_counter() - began)


class _RedisPeer(_Peer):
    package = "redis"
    program = "redis-server"

    @classmethod
    def command(cls, options: argparse.Namespace, folder: Path, port: int) -> list[str]:
        return [cls.program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes",
                "--appendfsync", "everysec", "--save", ""]  # fmt: skip

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int) -> AsyncGenerator[_Session, None]:
        async with _load("redis.asyncio").Redis(port=port) as client:
            yield _Redis(client)


class _NatsPeer(_Peer):
    package = "nats nats-py"
    program = "nats-server"

    @classmethod
    def command(cls, options: argparse.Namespace, folder: Path, port: int) -> list[str]:
        return [cls.program, "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int) -> AsyncGenerator[_Session, None]:
        client = await _load("nats").connect(f"nats://127.0.0.1:{port}")
        try:
            stream = client.jetstream()
            await stream.add_stream(name=_TOPIC, subjects=[_TOPIC])
            yield _Nats(stream)
        finally:
            await client.close()


class _KafkaPeer(_Peer):
    package = "aiokafka"
    program = "java"

    @classmethod
    def missing(cls, options: argparse.Namespace) -> str:
        return (
            super().missing(options) if options.kafka_jars else "--kafka-jars does not say where the server's jars are"
        )

    @classmethod
    def command(cls, options: argparse.Namespace, folder: Path, port: int) -> list[str]:
        return kafka.prepare(Path(options.kafka_jars), folder, port)

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int) -> AsyncGenerator[_Session, None]:
        bootstrap = f"127.0.0.1:{port}"
        async with _load("aiokafka").AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1) as producer:
            yield _Kafka(producer, bootstrap)


_PEERS: Final[dict[str, tuple[Callable[[argparse.Namespace], str], Callable[[argparse.Namespace, Path], Any]]]] = {
    "triomq": (lambda _options: "", _measure_triomq),
    "redis": (_RedisPeer.missing, _RedisPeer.measure),
    "nats": (_NatsPeer.missing, _NatsPeer.measure),
    "kafka": (_KafkaPeer.missing, _KafkaPeer.measure),
}
