"""The mode ``spark``: its options; the rest is in ``spark_load.py``, which needs pyspark."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--count", type=int, default=300_000, help="messages (default 300000; 0: only streams)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (default 1024)")
    parser.add_argument("--runs", type=int, default=4, help="runs that count, after one that does not (default 4)")
    parser.add_argument(
        "--no-stream", action="store_true", help="leave out micro-batches of one row and the idle stream"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from bench import spark_load  # pyspark is there only where it is wanted

    return spark_load.run(options)
