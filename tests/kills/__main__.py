"""``python -m tests.kills``: kill a broker many times, under load or with half messages; prints the losses.

With ``--half-messages`` it prints how many checks each transaction took, with ``--pair`` also each difference of the
master and its slave.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from queue import Empty

from tests.kills.killing import kill_often, kill_with_half_message
from tests.kills.load import SENDERS
from tests.kills.pair import kill_pair_often
from tests.processes import SLOW_DISK


def main(arguments: list[str]) -> int:
    """Run the kills that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--half-messages", type=int, metavar="KILLS", help="each with a half message, without load")
    parser.add_argument("--pair", action="store_true", help="a sync-master and its slave, either or both")
    parser.add_argument("--seed", type=int, default=0, help="decides when")
    parser.add_argument("--durability", choices=("async", "sync"), default="async")
    parser.add_argument("--disk-delay", type=float, default=0, metavar="MS", help="each sync takes longer")
    options = parser.parse_args(arguments)
    os.environ[SLOW_DISK] = f"{options.disk_delay / 1000}"
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="triomq-kills-") as folder:
        run = _half_messages if options.half_messages else _under_load
        text, failed = run(Path(folder), options)
    print(f"{options.durability}, syncs + {options.disk_delay:g} ms: {text}, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


def _under_load(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    run, what = (kill_pair_often, "kills of a pair") if options.pair else (kill_often, "kills")
    outcome = run(folder, options.kills, options.seed, options.durability)
    print(*outcome.faults, sep="\n", end="\n" if outcome.faults else "")
    text = (
        f"seed {options.seed}, {outcome.kills} {what} under load from {SENDERS} processes,"
        f" {outcome.acknowledged} messages acknowledged, {outcome.delivered} delivered, {len(outcome.faults)} faults"
    )
    return text, bool(outcome.faults)


def _half_messages(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    checks: list[int] = []
    for number in range(options.half_messages):
        try:
            checks.append(len(kill_with_half_message(folder / f"{number}", options.durability)))
        except Empty:
            print(f"transaction {number} is not delivered")
    text = f"{options.half_messages} kills with a half message, {len(checks)} delivered, checks {sorted(checks)}"
    return text, len(checks) < options.half_messages


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
