"""What all jobs have in common on the command line."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from triomq.cli.arguments.parser import usage_line
from triomq.cli.arguments.values import parse_positive
from triomq.cli.exit_codes import ExitCode
from triomq.protocol.errors import ConfigError
from triomq.spark import jobs
from triomq.spark.jobs.shared.session import DEFAULT_MASTER, submit_settings
from triomq.spark.options.options import NAMESRV_VARIABLE
from triomq.spark.options.values import time_ms

EXIT_CODES_TEXT: Final = "exit codes: 0 done; 1 failed; 2 wrong option or setting; 130 Ctrl-C; 143 SIGTERM"
_INTERVAL: Final = re.compile(
    r"(?:interval\s+)?(?:\d+\s*(?:(?:milli|micro)?second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
START_TEXT: Final = "earliest, latest, or a time: milliseconds since 1970 or ISO 8601"


class JobParser(argparse.ArgumentParser):
    """Parser of a job: errors on one line, options are never guessed from a beginning."""

    def __init__(self, job: str, description: str) -> None:
        """Take the module's name and what it does."""
        super().__init__(
            prog=f"python -m triomq.spark.jobs.{job}",
            description=description,
            epilog=EXIT_CODES_TEXT,
            allow_abbrev=False,
        )
        path = Path(jobs.__file__).with_name(f"{job}.py")
        add = self.add_argument
        add("--print-path", action=_Print, text=str(path), help="print the path of this job's file, and end")
        add(
            "--print-submit",
            action=_Print,
            text=" ".join([*(f"--conf {name}={value}" for name, value in submit_settings().items()), str(path)]),
            help="print the words for spark-submit that run this job quietly, and end",
        )
        add(
            "--namesrv",
            metavar="HOST:PORT",
            default=os.environ.get(NAMESRV_VARIABLE),
            help=f"name server, several with ; between (${NAMESRV_VARIABLE})",
        )
        add(
            "--option",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="an option of the data source, see docs/spark.md; may be repeated",
        )
        add("--json", action="store_true", help="write one line of JSON at the end, and no progress")
        add("--master", help=f"Spark's master (that of spark-submit, else {DEFAULT_MASTER})")

    def error(self, message: str) -> NoReturn:
        """End with code 2 and one line."""
        self.exit(ExitCode.USAGE, usage_line(self.prog, message, "--help"))


class _Print(argparse.Action):
    """Writes a text and ends, as ``--version`` does."""

    def __init__(self, option_strings: Sequence[str], dest: str, text: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(self._text + "\n")
        parser.exit()


def parse_interval(text: str) -> str:
    """Return ``10 seconds``, ``1 hour 30 minutes``, as Spark reads it; it would complain only when all has started.

    Raises:
        ArgumentTypeError: it is no such interval.
    """
    if _INTERVAL.fullmatch(text.strip()) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no interval: write a number and a unit, such as '10 seconds'")
    return text


def add_stream_arguments(parser: JobParser, *, own_checkpoint: str) -> None:
    """Add what jobs that read a topic as a stream have in common; ``own_checkpoint`` is where it is if not given."""
    add = parser.add_argument
    add("--subscribe", metavar="TOPIC[,TOPIC]", required=True, help="topics to read")
    add("--from", dest="start", metavar="START", default="earliest", help=f"where a first run begins: {START_TEXT}")
    add("--tags", metavar="A||B", help="only messages with these tags")
    add("--checkpoint", metavar="DIR", help=f"where the next run finds how far this one came ({own_checkpoint})")
    add("--follow", action="store_true", help="go on until a signal; else end with what there is at the start")
    add(
        "--trigger",
        metavar="INTERVAL",
        type=parse_interval,
        help="with --follow: time between micro-batches, such as '10 seconds'",
    )
    add("--max-per-trigger", metavar="N", type=parse_positive, help="offsets in a micro-batch, at most")


def stream_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the data source's options for these arguments.

    Raises:
        ConfigError: they do not fit together, or ``--from`` is invalid.
    """
    if arguments.trigger is not None and not arguments.follow:
        raise ConfigError("--trigger is for --follow")
    options = {"subscribe": arguments.subscribe, **start_options("starting", arguments.start)}
    if arguments.tags is not None:
        options["tags"] = arguments.tags
    if arguments.max_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(arguments.max_per_trigger)
    return options


def start_options(edge: str, start: str | None) -> dict[str, str]:
    """Return the options for one end of a range: ``starting`` or ``ending``, a word, a time or nothing.

    Raises:
        ConfigError: it is neither a word nor a time.
    """
    if start is None:
        return {}
    if start in ("earliest", "latest"):
        return {f"{edge}Offsets": start}
    try:
        time_ms(start)
    except ValueError as exc:
        flag = "--from" if edge == "starting" else "--to"
        raise ConfigError(f"{flag} {start} {exc}; possible: {START_TEXT}") from None
    strategy = {"startingOffsetsByTimestampStrategy": "latest"} if edge == "starting" else {}
    return {f"{edge}Timestamp": start, **strategy}
