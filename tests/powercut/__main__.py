"""``python -m tests.powercut``: cut the power of many stores; prints what fails, and how to see it again."""

import argparse
import logging
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.powercut.life import Life
from tests.powercut.pair import PairLife


def main(arguments: list[str]) -> int:
    """Run the seeds that were asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.powercut", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many lives")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, with its traceback")
    parser.add_argument("--every", action="store_true", help="one life for each boundary of each seed")
    parser.add_argument("--boundary", type=int, help="with --seed: cut there first")
    parser.add_argument("--pair", action="store_true", help="a sync-master and its slave")
    options = parser.parse_args(arguments)
    first = options.start if options.seed is None else options.seed
    seeds = range(first, first + (options.seeds if options.seed is None else 1))
    run = _Run()
    logging.getLogger("triomq").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="triomq-powercut-") as base:
        for seed in seeds:
            if options.pair:
                run.live(PairLife(seed, Path(base) / "pair"), f"--pair --seed {seed}")
            elif options.every:
                boundary = 1
                while run.live(Life(seed, Path(base), first_cut=boundary), f"--seed {seed} --boundary {boundary}"):
                    boundary += 1
            else:
                run.live(Life(seed, Path(base), first_cut=options.boundary), f"--seed {seed}")
            if options.seed is not None and run.trace:
                print(run.trace)
    print(f"seeds {seeds.start} to {seeds.stop - 1}: {run}")
    return 1 if run.failed else 0


class _Run:
    """Lives, and their counts."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._lives = self._cuts = self._acknowledged = self._deciding = 0
        self.failed = 0
        self.trace = ""

    def __str__(self) -> str:
        return (
            f"{self._lives} lives, {self._cuts} power cuts, {self._acknowledged} acknowledged records looked for,"
            f" {self._deciding} lives decided transactions, {self.failed} lives failed,"
            f" {time.monotonic() - self._started:.1f} s"
        )

    def live(self, life: Life | PairLife, replay: str) -> bool:
        """Run one life, print its failure, and return whether the first cut came before the natural end."""
        self._lives += 1
        try:
            life.run()
        except Exception as exc:  # noqa: BLE001  # whatever a life raises is a finding
            self.failed += 1
            self.trace = traceback.format_exc()
            life.release()
            what = " ".join(str(exc).split())[:300] or traceback.extract_tb(exc.__traceback__)[-1].line
            print(f"{replay.removeprefix('--')} failed: {what}\n  python -m tests.powercut {replay}")
        self._cuts += life.cuts
        self._acknowledged += life.acknowledged
        self._deciding += bool(life.decided)
        return life.was_cut


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
