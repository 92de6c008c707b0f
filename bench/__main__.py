"""``python -m bench MODE``: load by our client, our broker beside Apache's, or the store alone."""

import argparse
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from bench import (
    burst,
    cold,
    compare,
    consumers,
    dashboard,
    failover,
    filtered,
    fixtures,
    load,
    overload,
    peers,
    queues,
    replica,
    round_trips,
    spark,
    store,
    sync,
    telemetry,
    topics,
    undecided,
    waiting,
)


class Mode(NamedTuple):
    """One kind of load."""

    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _client(mode: str, text: str) -> Mode:
    return Mode(text, partial(load.add_arguments, mode=mode), load.run)


MODES: Final = {
    "produce": _client("produce", "tasks that send and await each answer"),
    "consume": _client("consume", "store a backlog, then drain it with a push consumer"),
    "lite-pull": _client("lite-pull", "store a backlog, then poll it dry with a lite pull consumer"),
    "e2e": _client("e2e", "send at a fixed rate, measure until the handler is called"),
    "delayed": _client("delayed", "send messages that wait for a time, measure how late they are"),
    "cached": Mode("memory of what a push consumer caches", consumers.add_cached_arguments, consumers.run),
    "added-latency": Mode(
        "latency of a push consumer beside that of plain pulls", consumers.add_added_latency_arguments, consumers.run
    ),
    "burst": Mode("delayed messages that are all due at one moment", burst.add_arguments, burst.run),
    "waiting": Mode("what thousands of waiting pulls cost our broker", waiting.add_arguments, waiting.run),
    "undecided": Mode("what transactions without a decision cost our broker", undecided.add_arguments, undecided.run),
    "cold": Mode("old messages are read from the disk beside the newest ones", cold.add_arguments, cold.run),
    "failover": Mode(
        "one of two brokers is killed and comes back while our producer and Java's send (needs Java, Maven)",
        failover.add_arguments,
        failover.run,
    ),
    "filter": Mode("what SQL filters cost our broker and its other clients", filtered.add_arguments, filtered.run),
    "fixtures": Mode(
        "start and stop of a test's broker, one by one and together", fixtures.add_arguments, fixtures.run
    ),
    "store": Mode("the store alone: append, read, flush, start, rebuild", store.add_arguments, store.run),
    "round-trips": Mode(
        "our client and broker over 0, 10 and 50 ms: sends, drain, end to end, recovery",
        round_trips.add_arguments,
        round_trips.run,
    ),
    "queues": Mode("ten thousand queues and 10 GiB of log together", queues.add_arguments, queues.run),
    "topics": Mode("many topics: their disk space, and the start after a kill", topics.add_arguments, topics.run),
    "sync": Mode(
        "durability sync through sockets: one sender and many, beside fdatasync", sync.add_arguments, sync.run
    ),
    "replica": Mode(
        "a pair of master and slave: sends, lag, catching up; with --apache beside Apache's (needs Java, Maven)",
        replica.add_arguments,
        replica.run,
    ),
    "overload": Mode(
        "several times what our broker can do, for minutes: refusals, latencies, memory",
        overload.add_arguments,
        overload.run,
    ),
    "spark": Mode(
        "the PySpark data source beside a bare one (needs Java, triomq[spark])", spark.add_arguments, spark.run
    ),
    "spark-kafka": Mode(
        "the PySpark data source beside Spark's Kafka connector and a Kafka broker (needs Java, Maven, triomq[spark])",
        spark.add_kafka_arguments,
        spark.run_kafka,
    ),
    "telemetry": Mode("what OpenTelemetry costs our client", telemetry.add_arguments, telemetry.run),
    "dashboard": Mode("pages and memory of a dashboard, and its requests", dashboard.add_arguments, dashboard.run),
    "peers": Mode("our client beside redis-py, nats-py and aiokafka", peers.add_arguments, peers.run),
    "compare": Mode(
        "our broker and Apache's in turns, by Apache's Java client (needs Java, Maven)",
        compare.add_arguments,
        compare.run,
    ),
}


def main(arguments: list[str]) -> int:
    """Run one mode; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    for name, mode in MODES.items():
        mode.add_arguments(modes.add_parser(name, help=mode.text))
    options = parser.parse_args(arguments)
    if not _is_optimized():
        print(
            f"warning: {sys.executable} was built without --enable-optimizations, as pyenv does by default: pure "
            "Python code runs two to three times slower than with Debian's Python or that of the official images",
            file=sys.stderr,
        )
    return MODES[options.mode].run(options)


def _is_optimized() -> bool:
    """Return whether this Python was built with optimization; distributions do so by other means than the option."""
    built_with = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "--enable-optimizations" in built_with or "'--prefix=/usr'" in built_with


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
