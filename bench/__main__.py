"""``python -m bench MODE``: load by our client, or our broker beside Apache's."""

import argparse
import sys

from bench import cold, compare, load, waiting


def main(arguments: list[str]) -> int:
    """Run one mode; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    for mode, text in (
        ("produce", "tasks that send and await each answer"),
        ("consume", "store a backlog, then drain it with a push consumer"),
        ("lite-pull", "store a backlog, then poll it dry with a lite pull consumer"),
        ("e2e", "send at a fixed rate, measure until the handler is called"),
        ("delayed", "send messages that wait for a time, measure how late they are"),
    ):
        load.add_arguments(modes.add_parser(mode, help=text), mode)
    compare.add_arguments(
        modes.add_parser(
            "compare", help="our broker and Apache's in turns, by Apache's Java client (needs Java, Maven)"
        )
    )
    cold.add_arguments(modes.add_parser("cold", help="old messages are read from the disk beside the newest ones"))
    waiting.add_arguments(modes.add_parser("waiting", help="what thousands of waiting pulls cost our broker"))
    options = parser.parse_args(arguments)
    runners = {"compare": compare.run, "cold": cold.run, "waiting": waiting.run}
    return runners.get(options.mode, load.run)(options)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
