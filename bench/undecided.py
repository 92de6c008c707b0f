"""Undecided transactions: their cost to the broker while they wait, while some are due, and at the start."""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from bench.processes import Server, triomq_server
from bench.report import print_table, text_of, write_json
from triomq.client import Admin, Message, TransactionProducer, TransactionState
from triomq.protocol.errors import TriomqError

_TOPIC: Final = "undecided"
_SENDERS: Final = 64
_LONG_S: Final = "3600"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--count", type=int, default=100_000, help="undecided transactions (default 100000)")
    parser.add_argument("--due", type=int, default=1000, help="of them that are asked about each second (default 1000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each measurement (default 10)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Start our broker and measure; returns the exit code."""
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="triomq-bench-") as folder:
        patience = ("--transaction-timeout", _LONG_S, "--transaction-check-interval", _LONG_S)
        try:
            with triomq_server(Path(folder), *patience) as server:
                trio.run(_measure, options, server, figures)
            with triomq_server(Path(folder), *patience) as server:
                figures["start with them, s"] = server.ready_s
        except TriomqError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 3
    print_table("bench undecided", ["figure", "value"], [[name, text_of(value)] for name, value in figures.items()])
    if options.json:
        write_json(options.json, figures)
    return 0


async def _measure(options: argparse.Namespace, server: Server, figures: dict[str, object]) -> None:
    figures["start, s"] = server.ready_s
    checked = [0]

    def check(_message: object) -> TransactionState:
        checked[0] += 1
        return TransactionState.UNKNOWN

    async with Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic(_TOPIC, queues=4)
    async with TransactionProducer("bench-undecided", namesrv=server.namesrv, check=check) as producer:
        figures["idle, ms of CPU per s"] = await _cpu_ms(server, options.seconds)
        before_mib, began = server.anonymous_mib(), time.perf_counter()
        await _send(producer, options.count)
        figures["stored per s"] = options.count / (time.perf_counter() - began)
        await trio.sleep(2)  # the key index catches up
        figures["bytes of memory each"] = (server.anonymous_mib() - before_mib) * 2**20 / options.count
        figures["waiting, ms of CPU per s"] = await _cpu_ms(server, options.seconds)
        immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_each_second, producer, options.due, immune)
            await trio.sleep(3)
            checked[0] = 0
            figures[f"{options.due} stored and asked about per s, ms of CPU per s"] = await _cpu_ms(
                server, options.seconds
            )
            figures["asked about per s"] = checked[0] / options.seconds
            nursery.cancel_scope.cancel()


async def _send(producer: TransactionProducer, count: int, properties: dict[str, str] | None = None) -> None:
    async def send_some(number: int) -> None:
        for _ in range(number):
            await producer.send(Message(_TOPIC, bytes(100), properties=properties or {}), _undecided)

    async with trio.open_nursery() as nursery:
        for sender in range(_SENDERS):
            nursery.start_soon(send_some, count // _SENDERS + (sender < count % _SENDERS))


async def _send_each_second(producer: TransactionProducer, count: int, properties: dict[str, str]) -> None:
    while True:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            await _send(producer, count, properties)


async def _undecided(_transaction: object) -> TransactionState:
    return TransactionState.UNKNOWN


async def _cpu_ms(server: Server, seconds: float) -> float:
    before_s = server.cpu_s()
    await trio.sleep(seconds)
    return (server.cpu_s() - before_s) * 1000 / seconds
