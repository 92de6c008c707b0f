"""Write CSV, JSON or Parquet files, or rows that Spark generates, to a topic.

The body of a message is the JSON of the row, unless --body names a column.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, to_json

from triomq.protocol.errors import ConfigError
from triomq.spark.jobs.common import Counts, JobParser, SourceOptions, run_job, run_stream, write_topic
from triomq.spark.options.options import Use

_FORMATS: Final = ("csv", "json", "parquet")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = JobParser("produce", __doc__)
    add = parser.add_argument
    add("files", metavar="FILE", nargs="*", help="files or folders, as Spark reads them")
    add("--topic", required=True, help="topic to write")
    add("--format", choices=_FORMATS, help="format of the files (by the name of the first one)")
    add("--schema", metavar="DDL", help="columns of the files, such as 'carrier string, delay double' (inferred)")
    add("--null", default="", metavar="TEXT", help="text that means null in CSV files, such as NA (empty)")
    add("--body", metavar="COLUMN", help="column with the body (JSON of all columns)")
    add("--keys", metavar="COLUMN", help="column with the message's key")
    add("--tags", metavar="COLUMN", help="column with the message's tag")
    add("--sharding-key", metavar="COLUMN", help="rows with equal values go to one queue, in order")
    add("--rate-source", action="store_true", help="instead of files: generated rows with a timestamp and a number")
    add("--rows", type=int, metavar="N", help="with --rate-source: end after N rows (at a signal)")
    add("--rate", type=int, metavar="N", help="approximate rows per second (no limit; --rate-source: 1000)")
    return run_job(parser, argv, check, run)


def check(arguments: argparse.Namespace) -> SourceOptions:
    """Check the combination of arguments; return the options of the data source."""
    if bool(arguments.files) == arguments.rate_source:
        raise ConfigError("give files, or --rate-source")
    if arguments.rows is not None and not arguments.rate_source:
        raise ConfigError("--rows needs --rate-source")
    if arguments.files and arguments.format is None:
        arguments.format = PurePath(arguments.files[0]).suffix.removeprefix(".")
        if arguments.format not in _FORMATS:
            raise ConfigError(f"--format is needed: the name of the first file does not end in {', '.join(_FORMATS)}")
    return {Use.WRITE: {"topic": arguments.topic}}


def run(spark: SparkSession, arguments: argparse.Namespace, options: SourceOptions) -> Counts:
    """Write the files, or generated rows until there are enough or a signal arrives."""
    if not arguments.rate_source:
        reader = spark.read.format(arguments.format)
        if arguments.format == "csv":
            reader = reader.options(header="true", nullValue=arguments.null, inferSchema=str(not arguments.schema))
        if arguments.schema:
            reader = reader.schema(arguments.schema)
        return write_topic(messages(reader.load(arguments.files), arguments), options[Use.WRITE], arguments.rate)
    frame = spark.readStream.format("rate").option("rowsPerSecond", arguments.rate or 1000).load()
    if arguments.rows is not None:
        frame = frame.where(col("value") < arguments.rows)
    writer = messages(frame, arguments).writeStream.format("rocketmq").options(**options[Use.WRITE])
    with tempfile.TemporaryDirectory(prefix="triomq-checkpoint-", ignore_cleanup_errors=True) as folder:
        counts = run_stream(writer.option("checkpointLocation", folder), arguments, enough_rows=arguments.rows)
    counts.rows = min(counts.rows, arguments.rows or counts.rows)  # it counts the rows that the filter drops, too
    return counts


def messages(frame: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """Return a frame with the columns for the data source."""
    body = to_json(struct("*")) if arguments.body is None else col(arguments.body)
    named = (("keys", arguments.keys), ("tags", arguments.tags), ("shardingKey", arguments.sharding_key))
    columns = [col(source).cast("string").alias(name) for name, source in named if source is not None]
    return frame.select(body.alias("body"), *columns)


if __name__ == "__main__":
    sys.exit(main())
