"""The ``triomq`` command."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the command line without the program's name; ``None``: this process's.
    """
    try:
        from triomq.cli.run import run  # after the handler for Ctrl-C is in place

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 130  # ExitCode.INTERRUPTED, which is perhaps not imported yet
