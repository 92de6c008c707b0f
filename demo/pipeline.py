"""``python -m triomq.demo.pipeline``: Spark writes the flights to a topic, reads them back, and counts them.

Broker and jobs are processes, started as by a user.  This process reads the source file without Spark and compares its
totals with those of the aggregate job.
"""

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio

from triomq.cli.errors import ExitCode
from triomq.cli.output import write_text
from triomq.client import Admin
from triomq.demo.program import QUEUES, TOPIC, DemoError, report, run_program

#: Columns of the file, in order; a missing value is NA.
SCHEMA: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, arr_time int, "
    "sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time double, distance double, hour int, minute int, time_hour timestamp"
)
_NULL: Final = "NA"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    if find_spec("pyspark") is None:
        sys.stderr.write("triomq pipeline: this demo needs PySpark: pip install 'triomq[spark]'\n")
        return ExitCode.FAILED
    description = "Start a broker; use Spark to send the flights of New York City in 2013, read and count them."
    return run_program(argv, "demo.pipeline", description, _run)


async def _run(lines: list[bytes], namesrv: str, folder: Path) -> int:
    write_text("This takes about a minute on two cores; Spark prints little while it works.\n")
    count, source, results = len(lines) - 1, folder / "flights.csv", folder / "results"
    source.write_bytes(b"\n".join([*lines, b""]))
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
        common = ("--namesrv", namesrv, "--master", "local[2,4]")
        reading = ("--schema", SCHEMA, "--null", _NULL)
        await _run_job("produce", *common, "--topic", TOPIC, "--tags", "carrier", *reading, str(source))
        await _run_job("aggregate", *common, "--subscribe", TOPIC, "--path", str(results))
        stored = sum(queue.max_offset - queue.min_offset for queue in (await admin.topic_stats(TOPIC)).values())
    import pyarrow.parquet

    windows = pyarrow.parquet.read_table(results / "totals").to_pylist()
    found = totals((one["group"], one["rows"], one["values"], one["sum"] or 0.0) for one in windows)
    expected = totals_of_file(source)
    problems = [] if stored == count else [f"the broker stored {stored} of {count} flights"]
    problems += [
        f"{kind} of {carrier}: {found[carrier, kind]}, but the file has {expected[carrier, kind]}"
        for carrier, kind in sorted(expected.keys() | found.keys())
        if expected[carrier, kind] != found[carrier, kind]
    ]
    carriers = len({carrier for carrier, _ in expected})
    return report(problems, f"checked {count} flights of {carriers} carriers: totals of the Parquet files and the file")


async def _run_job(name: str, *arguments: str) -> None:
    """Run a job; it shares our stdout and stderr.

    Raises:
        DemoError: it failed.
    """
    write_text(f"--- {name}\n")
    done = await trio.run_process([sys.executable, "-m", f"triomq.spark.jobs.{name}", *arguments], check=False)
    if done.returncode:
        raise DemoError(f"the job {name} ended with code {done.returncode}")


def totals_of_file(path: Path) -> Counter[tuple[str, str]]:
    """Return the totals of the source file."""
    with path.open(newline="", encoding="utf-8") as file:
        delays = ((row["carrier"], row["dep_delay"]) for row in csv.DictReader(file))
        return totals((name, 1, text != _NULL, 0 if text == _NULL else float(text)) for name, text in delays)


def totals(parts: Iterable[tuple[str, int, int, float]]) -> Counter[tuple[str, str]]:
    """Return the sums of flights, of those with a departure delay, and of these delays, by carrier and kind."""
    found: Counter[tuple[str, str]] = Counter()
    for carrier, *numbers in parts:
        for kind, number in zip(("flights", "departures", "delays"), numbers, strict=True):
            found[carrier, kind] += number  # type: ignore[assignment]  # a delay may be a fraction
    return found


if __name__ == "__main__":
    sys.exit(main())
