"""Delayed messages that are all due at one moment: lateness, broker CPU, effect on other clients.

The store is filled by the broker's own code, with a fixed clock, before our broker is started on it.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import trio

from bench.load import TIMESTAMP_BYTES, DelayedInbox, probe_sends
from bench.processes import Server, triomq_server
from bench.report import print_table, text_of, write_json
from triomq.broker.config import BrokerConfig
from triomq.broker.server import Broker
from triomq.client import Producer, PushConsumer
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.errors import TriomqError
from triomq.protocol.host import encode_host
from triomq.storage.append import entry
from triomq.storage.config import StoreConfig
from triomq.storage.message_store import MessageStore

_TOPIC: Final = "burst"
_LEVEL: Final = 2  # 5 s
_HOST: Final = encode_host("127.0.0.1", 10911)
_LEAD_S: Final = 4.0  # after the broker started
_LONGEST_S: Final = 60.0
_SETTLE_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--kind", choices=("level", "time"), default="level", help="kind of delay (default level)")
    parser.add_argument("--count", type=int, default=100_000, help="messages (default 100000)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body, half to one and a half (default 128)")
    parser.add_argument("--queues", type=int, default=8, help="queues of the topic (default 8)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Fill a store, start our broker on it and measure; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="triomq-bench-") as folder:
        filled_s = -time.time()
        due_ms = _fill(options, Path(folder))
        filled_s += time.time()
        with triomq_server(Path(folder)) as server:
            try:
                figures = trio.run(_measure, options, server, due_ms)
            except TriomqError as exc:
                print(f"bench: {exc}", file=sys.stderr)
                return 3
    figures = {"bench": "burst", "kind": options.kind, "size": options.size, "filled_s": filled_s, **figures}
    print_table("bench burst", ["figure", "value"], [[name, text_of(value)] for name, value in figures.items()])
    if options.json:
        write_json(options.json, figures)
    return 0


def _fill(options: argparse.Namespace, folder: Path) -> int:
    """Store the messages; return when they are due, ms."""
    count: int = options.count
    due_ms = round((time.time() + _LEAD_S + count * 20e-6) * 1000)
    randomness = random.Random(1)
    with MessageStore(StoreConfig(root=folder), clock_ms=lambda: stored_ms) as store:
        stored_ms = due_ms - store.config.delay_levels.delays_ms[_LEVEL - 1]
        broker = Broker(BrokerConfig(store=store.config), store, clock_ms=lambda: stored_ms)
        broker.load()
        broker.topics.put(
            TopicConfig(topic_name=_TOPIC, read_queue_nums=options.queues, write_queue_nums=options.queues)
        )
        asked = b"DELAY\x01%d" % _LEVEL if options.kind == "level" else b"TIMER_DELIVER_MS\x01%d" % due_ms
        for number in range(count):
            padding = randomness.randrange(options.size // 2, options.size + options.size // 2)
            body = due_ms.to_bytes(TIMESTAMP_BYTES) + bytes(max(padding - TIMESTAMP_BYTES, 0))
            properties = b"TAGS\x01due\x02UNIQ_KEY\x01%032X\x02WAIT\x01true\x02%b" % (number, asked)
            queue = store.queue(_TOPIC, number % options.queues)
            message = entry(queue, body, properties, born_timestamp=stored_ms, born_host=_HOST, store_host=_HOST)
            if options.kind == "level":
                broker.delayed.schedule.put(_LEVEL, message)
            else:
                broker.delayed.timer.put(due_ms, message)
        broker.save_tables()
    return due_ms


async def _measure(options: argparse.Namespace, server: Server, due_ms: int) -> dict[str, Any]:
    inbox = DelayedInbox(options.count)
    probes: list[float] = []
    async with (
        Producer("bench-burst", namesrv=server.namesrv) as producer,
        PushConsumer(
            "bench-burst-group",
            namesrv=server.namesrv,
            subscriptions={_TOPIC: "due"},
            start="earliest",
            on_messages=inbox.take,
            batch_max_size=32,
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.wait_assigned()
        await trio.sleep(max(due_ms / 1000 - _SETTLE_S - time.time(), 0))
        ready_early_s, cpu_s = due_ms / 1000 - time.time(), server.cpu_s()
        nursery.start_soon(probe_sends, producer, _TOPIC, probes)
        with trio.move_on_after(_LONGEST_S):
            await inbox.done.wait()
        cpu_s = server.cpu_s() - cpu_s
        nursery.cancel_scope.cancel()
    return {
        "ready_early_s": ready_early_s,
        "broker_cpu_us_per_message": cpu_s / options.count * 1e6,
        **inbox.figures(probes),
    }
