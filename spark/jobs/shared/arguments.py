"""Arguments that the jobs share."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from triomq.cli.arguments.parser import add_option, usage_line
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
    """Parser of a job: errors take one line, options must be written in full."""

    def __init__(self, job: str, description: str) -> None:
        """Take the name of the job's module and the description for ``--help``."""
        super().__init__(
            prog=f"python -m triomq.spark.jobs.{job}",
            description=description,
            epilog=EXIT_CODES_TEXT,
            allow_abbrev=False,
        )
        path = Path(jobs.__file__).with_name(f"{job}.py")
        add = self.add_argument
        add("--print-path", action=_Print, text=str(path), help="print the path of this job's file and exit")
        add(
            "--print-submit",
            action=_Print,
            text=" ".join([*(f"--conf {name}={value}" for name, value in submit_settings().items()), str(path)]),
            help="print the spark-submit arguments that run this job quietly and exit",
        )
        namesrv = os.environ.get(NAMESRV_VARIABLE)
        add_option(self, "--namesrv HOST:PORT", f"name servers, separated by ; (${NAMESRV_VARIABLE})", namesrv)
        text = "option of the data source, see docs/spark.md; repeatable"
        add_option(self, "--option NAME=VALUE...", text, read=str)
        add_option(self, "--json", "print one line of JSON at the end and no progress")
        add_option(self, "--master MASTER", f"Spark master (that of spark-submit, else {DEFAULT_MASTER})")

    def error(self, message: str) -> NoReturn:
        """End with code 2 and one line."""
        self.exit(ExitCode.USAGE, usage_line(self.prog, message, "--help"))


class _Print(argparse.Action):
    """Prints a text and exits, like ``--version``."""

    def __init__(self, option_strings: Sequence[str], dest: str, text: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(self._text + "\n")
        parser.exit()


def parse_interval(text: str) -> str:
    """Check an interval such as ``10 seconds`` or ``1 hour 30 minutes``; Spark itself checks it only after its start.

    Raises:
        ArgumentTypeError: the text is not an interval.
    """
    if _INTERVAL.fullmatch(text.strip()) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an interval: write a number and a unit, such as '10 seconds'"
        )
    return text


def add_stream_arguments(parser: JobParser, *, own_checkpoint: str) -> None:
    """Add the arguments of jobs that read a topic as a stream; ``own_checkpoint`` describes the default checkpoint."""
    add = partial(add_option, parser)
    add("--subscribe TOPIC[,TOPIC]", "topics to read", required=True)
    add("--from START", f"where the first run starts: {START_TEXT}", "earliest", dest="start")
    parser.add_argument("--tags", metavar="A||B", help="only messages with these tags")
    add("--checkpoint DIR", f"folder for progress, so that the next run continues ({own_checkpoint})")
    add("--follow", "run until a signal (default: end with the messages that exist at the start)")
    text = "with --follow: time between micro-batches, such as '10 seconds'"
    add("--trigger INTERVAL", text, read=parse_interval)
    add("--max-per-trigger N", "maximum number of offsets in a micro-batch")


def stream_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the data source's options for these arguments.

    Raises:
        ConfigError: they do not fit together, or ``--from`` is invalid.
    """
    if arguments.trigger is not None and not arguments.follow:
        raise ConfigError("--trigger needs --follow")
    options = {"subscribe": arguments.subscribe, **start_options("starting", arguments.start)}
    if arguments.tags is not None:
        options["tags"] = arguments.tags
    if arguments.max_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(arguments.max_per_trigger)
    return options


def start_options(edge: str, start: str | None) -> dict[str, str]:
    """Return the options for one edge of a range, ``starting`` or ``ending``: a word, a time, or ``None``.

    Raises:
        ConfigError: the text is neither a known word nor a time.
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
