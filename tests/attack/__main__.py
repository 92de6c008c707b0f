"""``python -m tests.attack``: attack a broker, one attack after the other, with an honest client beside each.

Prints, for each attack: 99th percentile and maximum of the honest client's answers, the broker's memory above that
before the attack, growth of its log and tables, connections left after it, and messages lost.  The exit code is 1 if a
row is outside its bar.  The first row is without an attack: what the machine itself costs.
"""

import argparse
import sys

import trio

from tests.attack import clients, loop, memory, tables
from tests.attack.measure import HEAD, MAX_GROWN_MIB, MAX_MEMORY_MIB, MAX_PING_MS, P99_PING_MS, Attack, Target, measure


async def _no_attack(target: Target) -> None:
    await trio.sleep(target.seconds)


ATTACKS: tuple[Attack, ...] = (
    Attack(name="none", run=_no_attack),
    *loop.ATTACKS,
    *memory.ATTACKS,
    *tables.ATTACKS,
    *clients.ATTACKS,
)


def main(arguments: list[str]) -> int:
    """Run the attacks that were asked for; returns the exit code."""
    names = [attack.name for attack in ATTACKS]
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of an attack that has no end of its own")
    options = parser.parse_args(arguments)
    print(HEAD, flush=True)
    all_held = True
    for attack in ATTACKS:
        if attack.name in (options.only or names):
            try:
                row = trio.run(measure, attack, options.seconds)
            except Exception as exc:  # noqa: BLE001  # the other attacks are worth running
                print(f"{attack.name:28} failed: {exc!r}", flush=True)
                all_held = False
                continue
            print(row, flush=True)
            all_held = all_held and row.held
    print(
        f"bars: p99 {P99_PING_MS} ms and maximum {MAX_PING_MS} ms unless there are many connections, "
        f"{MAX_MEMORY_MIB} MiB, {MAX_GROWN_MIB} MiB of log and tables, no connection, no message"
    )
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
