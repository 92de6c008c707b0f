"""Brokers of tests: how long one takes to start and to stop, alone and beside others that run."""

import argparse
import time
from contextlib import ExitStack

from bench.report import latencies_ms, print_table, text_of
from triomq.testing import open_broker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--starts", type=int, default=200, help="brokers (default 200)")


def run(options: argparse.Namespace) -> int:
    """Start and stop one broker after another, then start all before the first stops."""
    alone, starts = [], []
    for _ in range(options.starts):
        began = time.perf_counter()
        with open_broker():
            pass
        alone.append(time.perf_counter() - began)
    with ExitStack() as running:
        for _ in range(options.starts):
            began = time.perf_counter()
            running.enter_context(open_broker())
            starts.append(time.perf_counter() - began)
    rows = {"start and stop": latencies_ms(alone), "start beside all others": latencies_ms(starts)}
    names = list(rows["start and stop"])
    print_table(
        "bench fixtures, ms", ["what", *names], [[what, *map(text_of, found.values())] for what, found in rows.items()]
    )
    return 0
