"""``python -m triomq.demo``."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from triomq.cli.arguments.values import parse_positive
from triomq.cli.errors import exit_code_of, is_expected, leaves, one_line
from triomq.cli.exit_codes import ExitCode
from triomq.cli.session import run_until_signal
from triomq.demo.report import print_files, print_report
from triomq.demo.run import remove, run_demo
from triomq.logs import configure

_PLAIN_WIDTH = 110


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if all counts are right, 1 if not, and else as ``triomq`` does."""
    parser = argparse.ArgumentParser(
        prog="python -m triomq.demo",
        description="Start a broker, send the flights of New York City in 2013, consume them with two groups, count.",
    )
    parser.add_argument("--flights", type=parse_positive, metavar="N", help="only the first N flights (336776)")
    parser.add_argument("--remove", action="store_true", help="remove the store at the end")
    options = parser.parse_args(argv)
    configure("warning")
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="triomq-demo-"))

    async def demo() -> int:
        results = await run_demo(folder, options.flights, console)
        print_report(results, console)
        return ExitCode.FAILED if results.problems() else ExitCode.OK

    try:
        return run_until_signal(demo)
    except BaseException as exc:
        expected = [error for error in leaves(exc) if is_expected(error)]
        if not expected:
            raise
        sys.stderr.write(f"triomq demo: {one_line(expected[0])}\n")
        return exit_code_of(expected[0])
    finally:
        if options.remove:
            remove(folder)
        print_files(folder, folder / "store", console, is_removed=options.remove)


if __name__ == "__main__":
    sys.exit(main())
