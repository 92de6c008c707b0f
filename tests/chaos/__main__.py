"""``python -m tests.chaos``: groups consume while members and the broker start, stop and are killed; prints each event.

The same seed gives the same plan.  Exit code 1: something was lost, out of order, or handled again without a cause.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.chaos import Chaos, Outcome, Settings, sigterm_as_exit
from tests.chaos.judge import table
from tests.chaos.plan import Mode


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long things happen; then it ends in peace")
    parser.add_argument("--messages", type=int, default=200_000, help="spread over that time")
    parser.add_argument("--transactions", type=int, default=10_000, help="spread likewise; 0: none")
    parser.add_argument("--brokers", type=int, default=1, help="several register with a name server of their own")
    parser.add_argument("--seed", type=int, default=0, help="decides what happens when")
    parser.add_argument("--mode", choices=(*Mode, "both"), default="both")
    parser.add_argument("--keep", type=Path, help="folder for store and logs, which stays")
    options = parser.parse_args(arguments)
    settings = Settings(
        options.seed,
        options.seconds,
        options.messages,
        options.transactions,
        options.brokers,
        [*Mode] if options.mode == "both" else [Mode(options.mode)],
    )
    command = f"python -m tests.chaos --seed {options.seed} --seconds {options.seconds:g} --messages {options.messages}"
    command += f" --transactions {options.transactions} --brokers {options.brokers} --mode {options.mode}"
    print(command, flush=True)
    begun = time.monotonic()
    with sigterm_as_exit(), tempfile.TemporaryDirectory(prefix="triomq-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with Chaos(folder, settings) as chaos:
            outcome = chaos.run()
    print(describe(outcome))
    print(f"{'good' if outcome.is_good else 'BAD'} after {time.monotonic() - begun:.0f} s: {command}")
    return 0 if outcome.is_good else 1


def describe(outcome: Outcome) -> str:
    """Return the table of a run, and the faults found."""
    lines = [f"\n{outcome.acknowledged} messages acknowledged, {outcome.resent} of them sent more than once"]
    lines.append(", ".join(f"{action}: {count}" for action, count in sorted(outcome.happenings.items())))
    lines += [table(outcome.verdicts), *outcome.complaints]
    lines.append(f"transactions: {outcome.transactions}")
    for mode, found in outcome.transaction_verdicts.items():
        shown = {name: len(own) if isinstance(own, list) else own for name, own in found._asdict().items()}
        lines.append(f"{mode}: " + ", ".join(f"{name} {count}" for name, count in shown.items()))
        lines += [
            f"{mode}: {name} {own[:20]}" for name, own in found._asdict().items() if isinstance(own, list) and own
        ]
    for mode, verdict in outcome.verdicts.items():
        lines += [f"{mode}: lost {identity}" for identity in verdict.lost[:20]]
        lines += [f"{mode}: out of order {one}\n  before {other}" for one, other in verdict.out_of_order[:5]]
        lines += [f"{mode}: unexplained {one}\n  again {other}" for one, other in verdict.examples[:5]]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
