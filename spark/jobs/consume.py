"""Read topics as a stream into files or onto the console.

Files get each message once: Spark's file sink ignores a micro-batch that it has already written.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, to_json

from triomq.protocol.errors import ConfigError
from triomq.spark.jobs.common import Counts, JobParser, SourceOptions, read_options, run_job, run_stream, with_trigger
from triomq.spark.options.options import Use
from triomq.spark.schema import READ_TYPES, ddl_of

_COLUMNS: Final = ", ".join(READ_TYPES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = JobParser("consume", __doc__)
    parser.add_stream_arguments("temporary: the next run starts again")
    add = parser.add_argument
    add("--to", choices=("parquet", "csv", "console"), default="console", help="format of the output (console)")
    add("--path", metavar="DIR", help="folder of the files")
    add("--columns", metavar="A,B", default=_COLUMNS, help=f"columns, of: {_COLUMNS} (all)")
    add("--text", action="store_true", help="write the body as text; always for csv and console")
    return run_job(parser, argv, check, run)


def check(arguments: argparse.Namespace) -> SourceOptions:
    """Check the combination of arguments; return the options of the data source."""
    if arguments.to != "console" and not (arguments.path and arguments.checkpoint):
        raise ConfigError(f"--to {arguments.to} needs --path and --checkpoint")
    if arguments.to == "console" and arguments.path:
        raise ConfigError("--path needs --to parquet or csv")
    arguments.columns = [name.strip() for name in arguments.columns.split(",")]
    if unknown := [name for name in arguments.columns if name not in READ_TYPES]:
        raise ConfigError(f"--columns: {', '.join(unknown)} does not exist; the columns are: {_COLUMNS}")
    return {Use.STREAM_READ: read_options(arguments)}


def run(spark: SparkSession, arguments: argparse.Namespace, options: SourceOptions) -> Counts:
    """Read until the end, or a signal."""
    reader = spark.readStream.format("rocketmq").options(**options[Use.STREAM_READ])
    frame = reader.schema(ddl_of(arguments.columns)).load()
    if "body" in arguments.columns and (arguments.text or arguments.to != "parquet"):
        frame = frame.withColumn("body", col("body").cast("string"))
    if "properties" in arguments.columns and arguments.to != "parquet":
        frame = frame.withColumn("properties", to_json("properties"))
    writer = with_trigger(frame.writeStream.format(arguments.to), arguments)
    to_console = arguments.to == "console"
    writer = writer.options(**{"truncate": "false"} if to_console else {"path": arguments.path, "header": "true"})
    return run_stream(writer, arguments)


if __name__ == "__main__":
    sys.exit(main())
