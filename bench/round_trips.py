"""Our client and broker over short and long round trips: one table."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import trio

from bench.delay import ServerStart, delayed_servers
from bench.load import consume, end_to_end, produce, with_topic
from bench.processes import work_folder
from bench.report import print_table, text_of, write_json
from triomq.client import Message, MessageExt, Producer, PushConsumer
from triomq.protocol.errors import TriomqError

_ABSENT_S: Final = 1.0
_PROBE_S: Final = 0.005
_LOADS: Final[Mapping[str, Any]] = {
    "produce": (produce, {}),
    "one sender": (produce, {"in_flight": 1}),
    "consume": (consume, {}),
    "end to end": (end_to_end, {}),
}
_ROWS: Final = (
    ("sends", "produce", "msgs_per_s"),
    ("requests in flight", "produce", "in_flight"),
    ("one sender: p50 ms", "one sender", "p50_ms"),
    ("drain of a backlog", "consume", "msgs_per_s"),
    ("start of a push consumer to its first message, ms", "consume", "first_ms"),
    ("end to end at 1000/s: p50 ms", "end to end", "p50_ms"),
    ("end to end at 1000/s: p99 ms", "end to end", "p99_ms"),
    ("the killed broker is back: first send, ms", "recovery", "sent_ms"),
    ("the killed broker is back: first delivery, ms", "recovery", "delivered_ms"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--ms", type=float, nargs="+", default=[0, 10, 50], help="round trips (default 0 10 50)")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of each load that count (default 8)")
    parser.add_argument("--count", type=int, default=300_000, help="messages of the backlog (default 300000)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Run all loads over each round trip and print a table; returns the exit code."""
    figures: dict[float, dict[str, dict[str, Any]]] = {}
    for round_trip_ms in options.ms:
        with work_folder() as folder, delayed_servers(folder, round_trip_ms / 2) as start:
            settings = {**vars(options), "size": 128, "queues": 8, "warmup": 3.0, "connections": 1, "batch": 1}
            settings |= {"rate": 1000.0, "handler": "each", "orderly": False, "in_flight": None}
            found = figures[round_trip_ms] = {}
            with start() as server:
                settings["namesrv"] = server.namesrv
                for name, (load, changed) in _LOADS.items():
                    print(f"{round_trip_ms:g} ms: {name}", file=sys.stderr, flush=True)
                    found[name] = trio.run(partial(with_topic, load, argparse.Namespace(**settings | changed)))
            found["recovery"] = trio.run(_recovery, start)
    head = ["round trip", *(f"{ms:g} ms" for ms in options.ms)]
    rows = [[text, *(text_of(each[load][figure]) for each in figures.values())] for text, load, figure in _ROWS]
    print_table("bench round-trips", head, rows)
    if options.json:
        write_json(options.json, figures)
    return 0


async def _recovery(start: ServerStart) -> dict[str, float]:
    """Kill the broker, start it again, and measure from then until a send and a delivery succeed."""
    times: dict[str, float] = {}
    delivered = trio.Event()

    async def on_message(message: MessageExt) -> None:
        if message.body == b"after":
            times["delivered_ms"] = time.perf_counter()
        delivered.set()

    with ExitStack() as stack:
        server = stack.enter_context(start())
        subscriptions = {"bench-recovery": "*"}
        async with (
            Producer("bench", namesrv=server.namesrv) as producer,
            PushConsumer("bench", namesrv=server.namesrv, subscriptions=subscriptions, on_message=on_message),
        ):
            await producer.send(Message("bench-recovery", b"before"))
            await delivered.wait()
            os.kill(server.pids[0], signal.SIGKILL)
            await trio.sleep(_ABSENT_S)
            await trio.to_thread.run_sync(stack.enter_context, start())
            back, delivered = time.perf_counter(), trio.Event()
            while "sent_ms" not in times:
                with suppress(TriomqError):
                    await producer.send(Message("bench-recovery", b"after"))
                    times["sent_ms"] = time.perf_counter()
                await trio.sleep(_PROBE_S)
            await delivered.wait()
    return {name: (at - back) * 1000 for name, at in times.items()}
