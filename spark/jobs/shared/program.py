"""Runs a job: command line, session, signals, counts and exit code."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from triomq.cli.exit_codes import SIGNAL_BASE, ExitCode
from triomq.cli.output import write_text
from triomq.client.sync import Producer, PullConsumer
from triomq.protocol.errors import ConfigError, TriomqError
from triomq.spark.connections import borrow_client, close_clients
from triomq.spark.jobs.shared.arguments import JobParser
from triomq.spark.jobs.shared.outcome import Outcome, as_pairs, one_line
from triomq.spark.jobs.shared.session import open_session
from triomq.spark.jobs.shared.stopping import Stopper, told_by_jvm
from triomq.spark.options.options import OPTIONS, Use, parse_options
from triomq.spark.reading.discovery import Discovery
from triomq.spark.retry import is_missing_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Expected failures: source or sink, the JVM or the connection to it, the file system.
EXPECTED_ERRORS: Final = (TriomqError, PySparkException, Py4JError, OSError)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a running job needs.

    Attributes:
        spark: the session.
        arguments: parsed arguments.
        read_options, write_options: checked options of the data source.
        stopper: knows whether a signal arrived.
        outcome: takes the job's counts.
        say: prints a line of progress.
    """

    spark: "SparkSession"
    arguments: argparse.Namespace
    read_options: Mapping[str, str]
    write_options: Mapping[str, str]
    stopper: Stopper
    outcome: Outcome
    say: Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job: the function ``main`` of its module.

    Attributes:
        name: of its module.
        description: for ``--help``.
        add_arguments: adds its own arguments.
        prepare: checks what argparse cannot, and returns the options for each use of the data source; raises
            ``ConfigError``.
        run: does the work until it is finished or a signal arrives.
    """

    name: str
    description: str
    add_arguments: Callable[[JobParser], None]
    prepare: Callable[[argparse.Namespace], Mapping[Use, Mapping[str, str]]]
    run: Callable[[Run], None]

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the job and return its exit code; with code 2 nothing was started."""
        parser = JobParser(self.name, self.description)
        self.add_arguments(parser)
        try:
            arguments = parser.parse_args(argv)
            try:
                options = _checked_options(arguments, self.prepare(arguments))
            except (ConfigError, ValueError) as exc:
                parser.error(str(exc))
        except SystemExit as exc:  # argparse exits; callers want a number
            return int(exc.code or 0)
        outcome = Outcome(job=self.name)
        with Stopper() as stopper:
            try:
                code = _run(self, arguments, options, stopper, outcome)
            except EXPECTED_ERRORS as exc:
                code = ExitCode.FAILED
                if stopper.signal is None:
                    sys.stderr.write(f"{parser.prog}: {one_line(exc)}\n")
                    sys.stderr.flush()
            if stopper.signal is not None:
                code = SIGNAL_BASE + stopper.signal
            outcome.write(as_json=arguments.json)
        return code


def _run(
    job: Job,
    arguments: argparse.Namespace,
    options: Mapping[Use, Mapping[str, str]],
    stopper: Stopper,
    outcome: Outcome,
) -> int:
    say = _say_nothing if arguments.json else write_text
    checkpoint: str | None = getattr(arguments, "checkpoint", None)
    find_topics(options, stopper, has_checkpoint=checkpoint is not None and Path(checkpoint).exists())
    if stopper.signal is not None:
        return ExitCode.OK
    spark = open_session(job.name, arguments.master)
    stopper.rearm()
    reading = next((found for use, found in options.items() if use is not Use.WRITE), {})
    run = Run(
        spark=spark,
        arguments=arguments,
        read_options=reading,
        write_options=options.get(Use.WRITE, {}),
        stopper=stopper,
        outcome=outcome,
        say=say,
    )
    began = time.monotonic()
    try:
        with told_by_jvm(spark, stopper):
            if stopper.signal is None:
                job.run(run)
    finally:
        outcome.seconds = time.monotonic() - began
        _stop(spark)
    return ExitCode.OK


def _stop(spark: "SparkSession") -> None:
    try:
        spark.stop()
    except (Py4JError, OSError):
        return  # the JVM has ended, for example by a SIGTERM to spark-submit


def _checked_options(
    arguments: argparse.Namespace, by_use: Mapping[Use, Mapping[str, str]]
) -> dict[Use, dict[str, str]]:
    """Add the common options and check all of them before Spark starts, which takes seconds."""
    given = as_pairs(arguments.option)
    found = {}
    for use, options in by_use.items():
        mine = {**options, **_for_use(given, use, alone=len(by_use) == 1)}
        if arguments.namesrv is not None:
            mine.setdefault("nameServer", arguments.namesrv)
        parse_options(mine, use)
        found[use] = mine
    return found


def _for_use(given: Mapping[str, str], use: Use, *, alone: bool) -> dict[str, str]:
    """Return the user's options: of a job that reads and writes, each side gets those that it knows."""
    if alone:
        return dict(given)
    only_others = {option.name.lower() for option in OPTIONS if use not in option.uses}
    return {name: value for name, value in given.items() if name.lower() not in only_others}


def _say_nothing(_text: str) -> None:
    """Take the lines of progress where the output is JSON."""


class _SignalledError(Exception):
    """A signal arrived during a pause."""


def find_topics(options: Mapping[Use, Mapping[str, str]], stopper: Stopper, *, has_checkpoint: bool = False) -> None:
    """Return once all topics are found, or at a signal; a task would report a wrong address or name much later.

    Args:
        options: of the data source, by use.
        stopper: knows whether a signal arrived.
        has_checkpoint: a stream continues, and reports topics that were deleted itself.

    Raises:
        NoRouteError: a topic does not exist; for a write, no broker creates it either.
        RequestTimeoutError: no name server answered within 5 s, or none knew a broker within ``planTimeoutMs``.
    """

    def pause(pause_s: float) -> None:
        if stopper.wait(pause_s):
            raise _SignalledError

    try:
        for use, texts in options.items():
            given = parse_options(texts, use)
            with borrow_client(given) as instance, PullConsumer(given["readGroup"], instance=instance) as consumer:
                discovery = Discovery(given, instance, consumer, sleep=pause)
                if use is not Use.WRITE:
                    discovery.queues(discovery.retry(), may_be_gone=has_checkpoint)
                    continue
                discovery.reach_name_server()
                with Producer(given["readGroup"], instance=instance) as producer:
                    find = partial(producer.publish_queues, given["topic"])
                    discovery.retry().call(find, is_final=is_missing_topic)
    except _SignalledError:
        return
    finally:
        close_clients()
