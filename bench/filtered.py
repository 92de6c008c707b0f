"""SQL filters: how many messages a second of the broker's CPU filters, and whether other clients notice.

All messages but one in a thousand are rejected by the last of three terms, so that each term is evaluated.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from bench.processes import Server, triomq_server
from bench.report import latencies_ms, print_table, text_of, write_json
from triomq.client import Admin, Message, MessageQueue, Producer, PullConsumer, Sql
from triomq.protocol.errors import TriomqError

_TOPIC: Final = "filtered"
_FILTER: Final = Sql("amount > 100 AND region IN ('eu', 'us') AND priority = 9")
_BATCH: Final = 500
_RARE: Final = 1000
_PING_INTERVAL_S: Final = 0.005
_IDLE_CPU_S: Final = 0.05  # of a second
_IDLE_LIMIT_S: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--messages", type=int, default=200_000, help="messages (default 200000)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (default 1024)")
    parser.add_argument("--rounds", type=int, default=5, help="how often they are filtered (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Start our broker and measure; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="triomq-bench-") as folder, triomq_server(Path(folder)) as server:
        try:
            figures = trio.run(_measure, options, server)
        except TriomqError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 3
    print_table("bench filter", ["figure", "value"], [[name, text_of(value)] for name, value in figures.items()])
    if options.json:
        write_json(options.json, figures)
    return 0


async def _fill(options: argparse.Namespace, server: Server, queue: MessageQueue) -> None:
    body = bytes(options.size)
    async with Producer("bench-filter", namesrv=server.namesrv) as producer:
        for begin in range(0, options.messages, _BATCH):
            await producer.send_batch(
                [
                    Message(
                        _TOPIC,
                        body,
                        tags="order",
                        keys=[str(number)],
                        properties={
                            "amount": str(101 + number % 900),
                            "region": "eu" if number % 2 else "us",
                            "priority": "1" if number % _RARE else "9",
                        },
                    )
                    for number in range(begin, min(begin + _BATCH, options.messages))
                ],
                queue=queue,
            )


async def _wait_idle(server: Server) -> None:
    """Wait until the broker has indexed all messages."""
    with trio.fail_after(_IDLE_LIMIT_S):
        while True:
            cpu_s = server.cpu_s()
            await trio.sleep(1)
            if server.cpu_s() - cpu_s < _IDLE_CPU_S:
                return


async def _filter(consumer: PullConsumer, queue: MessageQueue, end: int) -> int:
    """Read the queue once; return how many messages matched."""
    found = queue_offset = 0
    while queue_offset < end:
        result = await consumer.pull(queue, queue_offset, _FILTER)
        found += len(result.messages)
        queue_offset = int(result.next_begin_offset)
    return found


async def _ping(admin: Admin, took_s: list[float]) -> None:
    """Be the other client: ask for something small, again and again."""
    while True:
        began = time.perf_counter()
        await admin.topic_stats(_TOPIC)
        took_s.append(time.perf_counter() - began)
        await trio.sleep(_PING_INTERVAL_S)


async def _measure(options: argparse.Namespace, server: Server) -> dict[str, object]:
    took_s: list[float] = []
    queue = MessageQueue(_TOPIC, "broker-a", 0)
    async with (
        Admin(namesrv=server.namesrv) as admin,
        PullConsumer("bench-filter", namesrv=server.namesrv) as consumer,
        trio.open_nursery() as nursery,
    ):
        await admin.create_topic(_TOPIC, queues=1)
        await consumer.queues(_TOPIC)
        await _fill(options, server, queue)
        await _wait_idle(server)
        await _filter(consumer, queue, options.messages)
        cpu_s, began = server.cpu_s(), time.perf_counter()
        matched = sum([await _filter(consumer, queue, options.messages) for _ in range(options.rounds)])
        cpu_s, wall_s = server.cpu_s() - cpu_s, time.perf_counter() - began
        nursery.start_soon(_ping, admin, took_s)
        await _filter(consumer, queue, options.messages)
        nursery.cancel_scope.cancel()
    filtered = options.messages * options.rounds
    return {
        "messages": options.messages,
        "matched_of_a_round": matched / options.rounds,
        "filtered_per_s": filtered / wall_s,
        "filtered_per_s_of_broker_cpu": filtered / cpu_s,
        **{f"ping_{name}": value for name, value in latencies_ms(took_s).items()},
    }
