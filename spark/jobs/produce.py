"""Write files, or rows that Spark generates, to a topic.

The body of a message is the JSON of the row, unless ``--body`` names a column.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import col, struct, to_json

from triomq.cli.arguments.parser import add_option
from triomq.protocol.errors import ConfigError
from triomq.spark.jobs.shared.arguments import JobParser
from triomq.spark.jobs.shared.program import Job, Run
from triomq.spark.jobs.shared.running import observed, run_stream, write_topic
from triomq.spark.options.options import Use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORMATS: Final = ("csv", "json", "parquet")
_ID: Final = "id"


def _add_arguments(parser: JobParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="*", help="files or folders, as Spark reads them")
    add = partial(add_option, parser)
    add("--topic TOPIC", "topic to write", required=True)
    add(f"--format {'|'.join(_FORMATS)}", "format of the files (by the name of the first one)")
    add("--schema DDL", "columns of the files, such as 'carrier string, delay double' (inferred)")
    add("--null TEXT", "text that means null in CSV files, such as NA (empty)")
    add("--body COLUMN", "column with the body (JSON of all columns)")
    add("--keys COLUMN", "column with the message's key")
    add("--tags COLUMN", "column with the message's tag")
    add("--sharding-key COLUMN", "rows with equal values go to one queue, in order")
    add("--id COLUMN", "column with a unique id for deduplication, see docs/spark.md (derived from the row)")
    add("--rate-source", "instead of files: generated rows with a timestamp and a number")
    add("--rows N", "with --rate-source: end after N rows (at a signal)")
    add("--rate N", "approximate rows per second (no limit; --rate-source: 1000)")


def _prepare(arguments: argparse.Namespace) -> Mapping[Use, Mapping[str, str]]:
    if bool(arguments.files) == arguments.rate_source:
        raise ConfigError("give files, or --rate-source")
    if arguments.rows is not None and not arguments.rate_source:
        raise ConfigError("--rows needs --rate-source")
    if arguments.files and arguments.format is None:
        suffix = PurePath(arguments.files[0]).suffix.removeprefix(".")
        if suffix not in _FORMATS:
            raise ConfigError(f"--format is needed: the name of the first file does not end in {', '.join(_FORMATS)}")
        arguments.format = suffix
    options = {"topic": arguments.topic}
    if arguments.id is not None:
        options["idColumn"] = _ID
    return {Use.WRITE: options}


def _run(run: Run) -> None:
    if run.arguments.rate_source:
        _run_rate_source(run)
        return
    arguments = run.arguments
    reader = run.spark.read.format(arguments.format)
    if arguments.format == "csv":
        reader = reader.options(header="true", nullValue=arguments.null or "")
    if arguments.schema is not None:
        reader = reader.schema(arguments.schema)
    elif arguments.format == "csv":
        reader = reader.option("inferSchema", "true")
    write_topic(run, messages(reader.load(arguments.files), arguments), arguments.rate)


def _run_rate_source(run: Run) -> None:
    arguments = run.arguments
    frame = run.spark.readStream.format("rate").option("rowsPerSecond", arguments.rate or 1000).load()
    if arguments.rows is not None:
        frame = frame.where(col("value") < arguments.rows)
    writer = observed(messages(frame, arguments)).writeStream.format("rocketmq").options(**run.write_options)
    run_stream(run, writer, None, enough_rows=arguments.rows)


def messages(frame: "DataFrame", arguments: argparse.Namespace) -> "DataFrame":
    """Return a frame with the columns for the data source."""
    body = to_json(struct("*")) if arguments.body is None else col(arguments.body)
    columns = [body.alias("body")]
    for name, source in (("keys", arguments.keys), ("tags", arguments.tags), ("shardingKey", arguments.sharding_key)):
        if source is not None:
            columns.append(col(source).cast("string").alias(name))
    if arguments.id is not None:
        columns.append(col(arguments.id).alias(_ID))
    return frame.select(*columns)


main: Final = Job(
    name="produce",
    description="Write CSV, JSON or Parquet files, or rows that Spark generates, to a topic.",
    add_arguments=_add_arguments,
    prepare=_prepare,
    run=_run,
)

if __name__ == "__main__":
    sys.exit(main())
