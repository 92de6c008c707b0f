"""``python -m tests.attack``: attack a broker, one attack after the other, with an honest client beside each.

Prints, for each attack: 99th percentile and maximum of the honest client's answers, the broker's memory above that
before the attack, growth of its log and tables, connections left after it, and messages lost.  The exit code is 1 if a
row is outside its bar.
"""

import argparse
import sys

import trio

from tests.attack import clients, frames, loop, memory, tables, topics
from tests.attack.measure import MAX_GROWN_MIB, MAX_MEMORY_MIB, MAX_PING_MS, P99_PING_MS, Attack, measure, table

ATTACKS: tuple[Attack, ...] = (
    *frames.ATTACKS,
    *loop.ATTACKS,
    *memory.ATTACKS,
    *tables.ATTACKS,
    *topics.ATTACKS,
    *clients.ATTACKS,
)


def main(arguments: list[str]) -> int:
    """Run the attacks that were asked for; returns the exit code."""
    names = [attack.name for attack in ATTACKS]
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of an attack that has no end of its own")
    options = parser.parse_args(arguments)
    rows = []
    for attack in ATTACKS:
        if attack.name in (options.only or names):
            print(attack.name, "...", file=sys.stderr, flush=True)
            rows.append(trio.run(measure, attack, options.seconds))
    print(table(rows))
    print(
        f"bars: p99 {P99_PING_MS} ms, maximum {MAX_PING_MS} ms, {MAX_MEMORY_MIB} MiB, "
        f"{MAX_GROWN_MIB} MiB of log and tables, no connection, no message"
    )
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
