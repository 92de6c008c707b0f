"""The modes ``spark`` and ``spark-kafka``: their options; the rest is in modules that need pyspark."""

import argparse
from typing import Final

_COUNT: Final = 300_000
_MEMORY_COUNT: Final = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``spark``."""
    parser.add_argument("--count", type=int, help="messages (default 300000; with --memory 10000000)")
    parser.add_argument("--only-stream", action="store_true", help="only micro-batches of one row and the idle stream")
    parser.add_argument("--no-stream", action="store_true", help="skip these")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="only the memory of a worker that reads one long queue of 100-byte messages",
    )
    _add_common(parser)


def add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``spark-kafka``."""
    parser.add_argument("--count", type=int, default=100_000, help="rows of each of the three writes (default 100000)")
    parser.add_argument(
        "--jars", metavar="DIR", help="keeps Kafka's jars, which Maven fetches once (default: a temporary folder)"
    )
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (default 1024)")
    parser.add_argument("--runs", type=int, default=4, help="runs that count, after one that does not (default 4)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from bench import spark_load, spark_memory  # pyspark is optional

    options.count = options.count or (_MEMORY_COUNT if options.memory else _COUNT)
    return spark_memory.run(options) if options.memory else spark_load.run(options)


def run_kafka(options: argparse.Namespace) -> int:
    """Run it beside Spark's Kafka connector; returns the exit code."""
    from bench import spark_kafka

    return spark_kafka.run(options)
