"""``python -m triomq.demo.pipeline``: Spark writes the flights to a topic, reads them back, and counts them.

Broker and jobs are processes, started as by a user.  This process reads the source file without Spark and compares its
totals with those of the aggregate job.
"""

import argparse
import csv
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio

from triomq.cli.arguments.values import parse_positive
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import write_text
from triomq.cli.run import report_error
from triomq.cli.session import run_until_signal
from triomq.client import Admin
from triomq.common.logs import configure
from triomq.demo.broker_process import open_broker_process
from triomq.demo.flights import read_lines
from triomq.protocol.errors import TriomqError

TOPIC: Final = "flights"
QUEUES: Final = 8
MASTER: Final = "local[2,4]"
DURATION_TEXT: Final = "This takes about a minute on two cores; Spark prints little while it works.\n"
#: Columns of the file, in order; a missing value is NA.
SCHEMA: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, arr_time int, "
    "sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time double, distance double, hour int, minute int, time_hour timestamp"
)
_NULL: Final = "NA"


class JobFailedError(TriomqError):
    """A job exited with a code other than 0; it has printed the reason."""


@dataclass(slots=True)
class Carrier:
    """Totals of one carrier."""

    flights: int = 0
    departed: int = 0
    delay: float = 0.0


Totals = dict[str, Carrier]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if all totals are right, 1 if not, and otherwise the codes of ``triomq``."""
    parser = argparse.ArgumentParser(
        prog="python -m triomq.demo.pipeline",
        description="Start a broker; use Spark to send the flights of New York City in 2013, read and count them.",
    )
    parser.add_argument("--flights", type=parse_positive, metavar="N", help="only the first N flights (336776)")
    options = parser.parse_args(argv)
    if find_spec("pyspark") is None:
        sys.stderr.write("triomq pipeline: this demo needs PySpark: pip install 'triomq[spark]'\n")
        return ExitCode.FAILED
    write_text(DURATION_TEXT)
    configure("warning")
    folder = Path(tempfile.mkdtemp(prefix="triomq-pipeline-"))
    try:
        return run_until_signal(partial(_run, folder, options.flights))
    except BaseException as exc:  # noqa: BLE001  # boundary: defects are raised again
        return report_error("triomq pipeline", exc)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, limit: int | None) -> int:
    began = time.monotonic()
    heading, lines = await trio.to_thread.run_sync(read_lines, limit)
    source, results = folder / f"{TOPIC}.csv", folder / "results"
    await trio.to_thread.run_sync(source.write_bytes, b"\n".join([heading, *lines, b""]))
    async with open_broker_process(folder) as broker:
        async with Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            common = ("--namesrv", broker.namesrv, "--master", MASTER)
            sending = ("--topic", TOPIC, "--tags", "carrier", "--schema", SCHEMA, "--null", _NULL)
            await _run_job("produce", *common, *sending, str(source))
            stats = await admin.topic_stats(TOPIC)
            stored = sum(queue.max_offset - queue.min_offset for queue in stats.values())
            await _run_job("aggregate", *common, "--subscribe", TOPIC, "--path", str(results))
    expected = await trio.to_thread.run_sync(totals_of_file, source)
    found = await trio.to_thread.run_sync(totals_of_job, results / "totals")
    return _report(expected, compare(expected, found, stored), time.monotonic() - began)


async def _run_job(name: str, *arguments: str) -> None:
    """Run a job; it shares our stdout and stderr.

    Raises:
        JobFailedError: it failed.
    """
    write_text(f"--- {name}\n")
    done = await trio.run_process([sys.executable, "-m", f"triomq.spark.jobs.{name}", *arguments], check=False)
    if done.returncode:
        raise JobFailedError(f"the job {name} ended with code {done.returncode}")


def totals_of_file(path: Path) -> Totals:
    """Return the totals of the source file."""
    totals: Totals = defaultdict(Carrier)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            carrier = totals[row["carrier"]]
            carrier.flights += 1
            if row["dep_delay"] != _NULL:
                carrier.departed += 1
                carrier.delay += float(row["dep_delay"])
    return dict(totals)


def totals_of_job(folder: Path) -> Totals:
    """Return the totals of the windows that the job wrote."""
    import pyarrow.parquet

    totals: Totals = defaultdict(Carrier)
    for window in pyarrow.parquet.read_table(folder).to_pylist():
        carrier = totals[window["group"]]
        carrier.flights += window["rows"]
        carrier.departed += window["values"]
        carrier.delay += window["sum"] or 0.0
    return dict(totals)


def compare(expected: Totals, found: Totals, stored: int) -> list[str]:
    """Return the differences.

    Args:
        expected: totals of the file.
        found: totals of the job.
        stored: number of messages in the topic.
    """
    flights = sum(carrier.flights for carrier in expected.values())
    problems = [
        f"{name}: {found.get(name)}, but the file has {expected.get(name)}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]
    if stored != flights:
        problems.append(f"the broker stored {stored} of {flights} flights")
    return problems


def _report(expected: Totals, problems: Sequence[str], seconds: float) -> int:
    for problem in problems:
        write_text(f"WRONG {problem}\n")
    flights = sum(carrier.flights for carrier in expected.values())
    write_text(
        f"{'WRONG' if problems else 'RIGHT'}: checked {flights} flights of {len(expected)} carriers: "
        "the Parquet files' totals of flights, departures and delay minutes of each carrier "
        f"against those of the source file; {seconds:.0f} s\n"
    )
    return ExitCode.FAILED if problems else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
