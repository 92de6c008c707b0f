"""The cost of a consumer beside its speed: memory of its cache, and latency added to plain pulls."""

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import trio

from bench.load import end_to_end, fill, with_topic
from bench.processes import anonymous_mib
from bench.report import print_table, text_of, write_json
from triomq.client import ConsumerConfig, MessageExt, PushConsumer
from triomq.protocol.errors import TriomqError

_CACHE_LIMIT_S = 60


def add_cached_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``cached``."""
    _add_arguments(parser)
    parser.add_argument("--count", type=int, default=100_000, help="messages to cache (default 100000)")


def add_added_latency_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``added-latency``."""
    _add_arguments(parser)
    parser.add_argument("--rate", type=float, default=200.0, help="messages per second (default 200)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds that do not count, each time (default 1)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds that count, each time (default 4)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of pull and push in turns (default 2)")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--namesrv", default="127.0.0.1:9876", help="name server (default 127.0.0.1:9876)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (default 128)")
    parser.add_argument("--queues", type=int, default=8, help="queues of the topic (default 8)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Run one mode; returns the exit code."""
    mode = _cached if options.mode == "cached" else _added_latency
    try:
        figures = trio.run(partial(with_topic, mode, options))
    except TriomqError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 3
    rows = [[name, text_of(value)] for name, value in figures.items()]
    print_table(f"bench {options.mode}", ["figure", "value"], rows)
    if options.json:
        write_json(options.json, figures)
    return 0


async def _cached(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    """Measure the memory of a push consumer whose handlers never return."""
    with ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as other:  # memory left over from sending must not count
        await trio.to_thread.run_sync(other.submit(_fill, options, topic).result)

    async def on_message(_message: MessageExt) -> None:
        await trio.sleep_forever()

    settings = ConsumerConfig(
        max_cached_messages=65_535, max_span=65_535, max_cached_bytes=1024**3, max_concurrency=1, grace_s=0
    )
    before_mib = anonymous_mib(os.getpid())
    async with PushConsumer(
        f"group-{topic}",
        namesrv=options.namesrv,
        subscriptions={topic: "*"},
        start="earliest",
        on_message=on_message,
        settings=settings,
    ) as consumer:
        with trio.fail_after(_CACHE_LIMIT_S):
            while (cached := consumer.statistics().cached_messages) < options.count:  # noqa: ASYNC110  # no event for it
                await trio.sleep(0.1)
        mib = anonymous_mib(os.getpid()) - before_mib
    return {"size": options.size, "cached": cached, "mib": mib, "bytes_each": mib * 1024**2 / cached}


def _fill(options: argparse.Namespace, topic: str) -> None:
    trio.run(fill, options, topic)


async def _added_latency(options: argparse.Namespace, topic: str) -> dict[str, Any]:
    """Measure from sending to the handler, by plain pulls and by a push consumer, in turns."""
    figures: dict[str, Any] = {"rate": options.rate}
    medians: dict[str, list[float]] = {"pull": [], "push": []}
    for _ in range(options.rounds):
        for by, found in medians.items():
            measured = await end_to_end(options, topic, by=by)
            found.append(measured["p50_ms"])
            await trio.sleep(0.1)
    for by, found in medians.items():
        figures[f"{by}_p50_ms"] = min(found)
    figures["added_p50_ms"] = figures["push_p50_ms"] - figures["pull_p50_ms"]
    return figures
