"""``python -m tests.kills``: kill a broker under load many times; prints what was lost, which is nothing."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.kills.killing import SENDERS, kill_often


def main(arguments: list[str]) -> int:
    """Run the kills that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="decides when")
    parser.add_argument("--durability", choices=("async", "sync"), default="async")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="triomq-kills-") as folder:
        outcome = kill_often(Path(folder), options.kills, options.seed, options.durability)
    print(
        f"seed {options.seed}, {options.durability}: {outcome.kills} kills under load from {SENDERS} processes,"
        f" {outcome.acknowledged} messages acknowledged, {outcome.delivered} delivered, {len(outcome.missing)} missing,"
        f" {time.monotonic() - begin:.0f} s"
    )
    return 1 if outcome.missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
