"""What the jobs share: the command line, the session, streams that end at a signal, and errors on one line.

The handler of a stream only records the signal: the query stops between two calls to the JVM, and its counts are known.
In a batch Spark's own handler cancels the tasks at Ctrl-C and raises ``KeyboardInterrupt``.
"""

import argparse
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.readwriter import DataStreamWriter

from triomq.protocol.errors import ConfigError, TriomqError
from triomq.spark import jobs, register
from triomq.spark.options.options import NAMESRV_VARIABLE, OPTIONS, Use, parse_options
from triomq.spark.progress import progress_line
from triomq.spark.reading.discovery import find_topics

#: Options of the data source for each use of it.
SourceOptions = dict[Use, dict[str, str]]

TIME_TEXT: Final = "milliseconds since 1970 or ISO 8601"
_POLL_S: Final = 1.0
#: These loggers write an error with the JVM's whole stack as JSON before it is raised.
_QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
#: A failed task is retried, as on a cluster; with ``local[*]`` it would end the job.
_DEFAULT_MASTER: Final = "local[*,4]"
_JAVA_HINT: Final = (
    "Spark needs Java 17 or newer and could not start it: install it (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to its folder"
)
_OUR_ERROR: Final = re.compile(r"triomq\.protocol\.errors\.\w+: (.+)")
#: A line of the JVM's causes or of a Python traceback.
_ANY_ERROR: Final = re.compile(r"^(?:: |Caused by: )?(?:[\w$]+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_MAX_ERROR_LENGTH: Final = 2000


@dataclass
class Counts:
    """What a job did: number of messages, further counts, the signal that ended it, a result to show."""

    rows: int = 0
    more: Counter[str] = field(default_factory=Counter)
    signal: int = 0
    table: DataFrame | None = None


class JobParser(argparse.ArgumentParser):
    """The options of all jobs; an error takes one line."""

    def __init__(self, job: str, description: str | None) -> None:
        """Take the name of the job's module and the text for ``--help``."""
        super().__init__(
            prog=f"python -m triomq.spark.jobs.{job}",
            description=description,
            epilog="exit codes: 0 done; 1 failed; 2 wrong option or setting; 130 Ctrl-C; 143 SIGTERM",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add, path = self.add_argument, Path(jobs.__file__).with_name(f"{job}.py")
        add("--print-path", action="version", version=str(path), help="print the path of this program and exit")
        add("--namesrv", metavar="HOST:PORT", help=f"name servers (${NAMESRV_VARIABLE})")
        add("--option", action="append", default=[], metavar="NAME=VALUE", help="of the data source; repeatable")
        add("--json", action="store_true", help="print one line of JSON at the end and no progress")
        add("--master", help=f"Spark master (that of spark-submit, else {_DEFAULT_MASTER})")

    def error(self, message: str) -> NoReturn:
        """End with code 2."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")

    def add_stream_arguments(self, checkpoint: str) -> None:
        """Add the options of a job that reads a stream; ``checkpoint`` describes the default checkpoint."""
        add = self.add_argument
        add("--subscribe", required=True, metavar="TOPIC[,TOPIC]", help="topics to read")
        text = f"where the first run starts: earliest, latest, or {TIME_TEXT} (earliest)"
        add("--from", dest="start", default="earliest", metavar="START", help=text)
        add("--tags", metavar="A||B", help="only messages with these tags")
        add("--checkpoint", metavar="DIR", help=f"folder for progress, so that the next run continues ({checkpoint})")
        add("--follow", action="store_true", help="run until a signal (end with the messages that exist at the start)")
        add("--trigger", metavar="INTERVAL", help="with --follow: time between micro-batches, such as '10 seconds'")
        add("--max-per-trigger", dest="maxOffsetsPerTrigger", metavar="N", help="limit of offsets in a micro-batch")


def read_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the data source's options for ``--subscribe``, ``--from``, ``--tags`` and ``--max-per-trigger``."""
    given = vars(arguments)
    if given.get("trigger") and not given["follow"]:
        raise ConfigError("--trigger needs --follow")
    start = "startingOffsets" if given["start"] in ("earliest", "latest") else "startingTimestamp"
    found = {start: given["start"]}
    found |= {name: given.get(name) for name in ("subscribe", "tags", "endingTimestamp", "maxOffsetsPerTrigger")}
    return {name: value for name, value in found.items() if value is not None}


Check = Callable[[argparse.Namespace], SourceOptions]
Run = Callable[[SparkSession, argparse.Namespace, SourceOptions], Counts]


def run_job(parser: JobParser, argv: Sequence[str] | None, check: Check, run: Run) -> int:
    """Run a job and return its exit code.

    Args:
        parser: of the job.
        argv: arguments; ``None``: those of the process.
        check: returns the options of the data source, by use; raises ``ConfigError``.
        run: does the work.
    """
    arguments = parser.parse_args(argv)
    try:
        options = check(arguments)
        _complete(options, arguments)
    except ConfigError as exc:
        parser.error(str(exc))
    checkpoint = getattr(arguments, "checkpoint", None)
    try:
        find_topics(options, may_be_gone=checkpoint is not None and Path(checkpoint).exists())
        spark = open_session(parser.prog, arguments.master)
        try:
            began = time.monotonic()
            counts = run(spark, arguments, options)
            _print(counts, time.monotonic() - began, as_json=arguments.json)
        finally:
            spark.stop()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (TriomqError, PySparkException, Py4JError, OSError) as exc:
        sys.stderr.write(f"{parser.prog}: {one_line(exc)}\n")
        return 1
    return 128 + counts.signal if counts.signal else 0


def _complete(options: SourceOptions, arguments: argparse.Namespace) -> None:
    """Add ``--namesrv`` and ``--option``, and check all options before Spark starts, which takes seconds.

    Of a job that reads and writes, each side gets the options that it knows.
    """
    for use, found in options.items():
        if arguments.namesrv:
            found["nameServer"] = arguments.namesrv
        others = {option.name.lower() for option in OPTIONS if use not in option.uses} if len(options) > 1 else ()
        for text in arguments.option:
            name, separator, value = text.partition("=")
            if not separator:
                raise ConfigError(f"--option takes NAME=VALUE, not {name!r}")
            if name.strip().lower() not in others:
                found[name.strip()] = value
        parse_options(found, use)


def open_session(name: str, master: str | None) -> SparkSession:
    """Start a session, or use that of ``spark-submit``, and register the data source.

    Args:
        name: of the application.
        master: Spark master; ``None``: that of ``spark-submit``, else the cores of this machine.

    Raises:
        ConfigError: Java is missing or too old.
    """
    logging.root.addFilter(lambda _: False)  # py4j itself logs a traceback there at Ctrl-C
    for logger in _QUERY_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not started by spark-submit
        master = master or _DEFAULT_MASTER
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {"log.level": "FATAL", "ui.enabled": False, "ui.showConsoleProgress": sys.stderr.isatty()}
        settings |= {"sql.session.timeZone": "UTC", "sql.shuffle.partitions": 2 * (os.cpu_count() or 1)}
        builder = builder.config(map={f"spark.{name}": value for name, value in settings.items()})
    if master is not None:
        builder = builder.master(master)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as exc:
        if exc.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(_JAVA_HINT) from exc
    register(spark)
    return spark


def write_topic(frame: DataFrame, options: Mapping[str, str], rate: int | None) -> Counts:
    """Write a frame to a topic.

    Args:
        frame: with the columns of a write.
        options: of the data source.
        rate: approximate rows per second of all tasks together; ``None``: no limit.
    """
    if rate is not None:
        tasks = min(frame.rdd.getNumPartitions(), frame.sparkSession.sparkContext.defaultParallelism)
        options = {**options, "rateLimit": str(max(1, rate // max(1, tasks)))}
    observation = Observation()
    counted = frame.observe(observation, count(lit(1)).alias("rows"))
    counted.write.format("rocketmq").options(**options).mode("append").save()
    return Counts(rows=observation.get["rows"])


def with_trigger(writer: DataStreamWriter, arguments: argparse.Namespace) -> DataStreamWriter:
    """Return the writer with the checkpoint and the trigger that the arguments select."""
    if arguments.checkpoint:
        writer = writer.option("checkpointLocation", arguments.checkpoint)
    if not arguments.follow:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=arguments.trigger) if arguments.trigger else writer


def run_stream(writer: DataStreamWriter, arguments: argparse.Namespace, enough_rows: int | None = None) -> Counts:
    """Run a query until it ends, a signal arrives, or it has written enough rows.

    Raises:
        StreamingQueryException: the query failed.
    """
    counts, stopped = Counts(), threading.Event()

    def stop(number: int, _frame: object) -> None:
        counts.signal = number
        stopped.set()
        for one in before:  # a second signal ends the program at once
            signal.signal(one, signal.SIG_DFL)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    query = writer.start()
    last = -1
    try:
        while query.isActive and not stopped.wait(_POLL_S) and (enough_rows is None or counts.rows < enough_rows):
            last = _add(counts, query.recentProgress, last, is_silent=arguments.json)
        query.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _add(counts, query.recentProgress, last, is_silent=arguments.json)
    if (error := query.exception()) is not None:
        raise error
    return counts


def _add(counts: Counts, recent: Sequence[StreamingQueryProgress], last: int, *, is_silent: bool) -> int:
    """Count the micro-batches after number ``last``, and print a line about the newest; return its number."""
    new = [progress for progress in recent if progress.numInputRows and progress.batchId > last]
    for progress in new:
        counts.rows += progress.numInputRows
        counts.more["batches"] += 1
        for metrics in progress.observedMetrics.values():
            counts.more.update(metrics.asDict())
    if new and not is_silent:
        sys.stdout.write(progress_line(new[-1]))
    return new[-1].batchId if new else last


def one_line(error: BaseException) -> str:
    """Return the essence of an error: our error inside Spark's, or the last cause that the text has."""
    text = str(error)
    found = _OUR_ERROR.search(text) or next(reversed(list(_ANY_ERROR.finditer(text))), None)
    line = found[1] if found else next(iter(text.strip().splitlines()), type(error).__name__)
    return " ".join(line.split())[:_MAX_ERROR_LENGTH]


def _print(counts: Counts, seconds: float, *, as_json: bool) -> None:
    """Print the table, and the counts as the last line."""
    found = {"rows": counts.rows, **counts.more, "seconds": round(seconds, 1), "rows/s": round(counts.rows / seconds)}
    if not as_json:
        if counts.table is not None:
            counts.table.show(1000, truncate=False)
        sys.stdout.write(", ".join(f"{value} {name}" for name, value in found.items()) + "\n")
        return
    table = {} if counts.table is None else {"table": [row.asDict() for row in counts.table.collect()]}
    sys.stdout.write(json.dumps(found | table) + "\n")
