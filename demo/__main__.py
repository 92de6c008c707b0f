"""``python -m triomq.demo``."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from triomq.cli.arguments.values import parse_positive
from triomq.cli.exit_codes import ExitCode
from triomq.cli.run import report_error
from triomq.cli.session import run_until_signal
from triomq.common.logs import configure
from triomq.demo.report import print_files, print_report
from triomq.demo.run import run_demo


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if all counts are right, 1 if not, otherwise the codes of ``triomq``."""
    parser = argparse.ArgumentParser(
        prog="python -m triomq.demo",
        description="Start a broker, send the flights of New York City in 2013, consume them with two groups, count.",
    )
    parser.add_argument("--flights", type=parse_positive, metavar="N", help="only the first N flights (336776)")
    parser.add_argument("--remove", action="store_true", help="remove the store at the end")
    options = parser.parse_args(argv)
    configure("warning")
    folder = Path(tempfile.mkdtemp(prefix="triomq-demo-"))

    async def demo() -> int:
        results = await run_demo(folder, options.flights)
        print_report(results)
        return ExitCode.FAILED if results.problems() else ExitCode.OK

    try:
        return run_until_signal(demo)
    except BaseException as exc:  # noqa: BLE001  # boundary: defects are raised again
        return report_error("triomq demo", exc)
    finally:
        if options.remove:
            shutil.rmtree(folder, ignore_errors=True)
        print_files(folder, folder / "store", is_removed=options.remove)


if __name__ == "__main__":
    sys.exit(main())
