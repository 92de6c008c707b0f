"""Read topics as a stream into files or onto the console.

Files get each message once: Spark's file sink ignores a micro-batch that it has already written.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import col, to_json

from triomq.cli.arguments.parser import add_option
from triomq.protocol.errors import ConfigError
from triomq.spark.jobs.shared.arguments import JobParser, add_stream_arguments, stream_options
from triomq.spark.jobs.shared.program import Job, Run
from triomq.spark.jobs.shared.running import observed, run_stream, with_trigger
from triomq.spark.options.options import Use
from triomq.spark.schema import READ_TYPES, ddl_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CONSOLE: Final = "console"


def _add_arguments(parser: JobParser) -> None:
    add_stream_arguments(parser, own_checkpoint="temporary: the next run starts again")
    add = partial(add_option, parser)
    add(f"--to parquet|csv|{_CONSOLE}", f"format of the output ({_CONSOLE})", _CONSOLE)
    add("--path DIR", "folder of the files")
    add("--columns A,B", f"columns, of: {', '.join(READ_TYPES)} (all)")
    add("--text", "write the body as text; always for csv and console")


def _prepare(arguments: argparse.Namespace) -> Mapping[Use, Mapping[str, str]]:
    if arguments.to != _CONSOLE and not (arguments.path and arguments.checkpoint):
        raise ConfigError(f"--to {arguments.to} needs --path and --checkpoint")
    if arguments.to == _CONSOLE and arguments.path:
        raise ConfigError("--path needs --to parquet or csv")
    arguments.columns = arguments.columns.split(",") if arguments.columns else list(READ_TYPES)
    unknown = [name for name in arguments.columns if name not in READ_TYPES]
    if unknown:
        raise ConfigError(f"--columns: {', '.join(unknown)} does not exist; the columns are: {', '.join(READ_TYPES)}")
    return {Use.STREAM_READ: stream_options(arguments)}


def _run(run: Run) -> None:
    arguments = run.arguments
    names = dict.fromkeys((*arguments.columns, "body"))  # the body is always read, to count its bytes
    reader = run.spark.readStream.format("rocketmq").options(**run.read_options).schema(ddl_of(list(names)))
    frame = _readable(observed(reader.load()), arguments).select(*arguments.columns)
    writer = frame.writeStream.format(arguments.to).outputMode("append")
    settings = {"truncate": "false"} if arguments.to == _CONSOLE else {"path": arguments.path, "header": "true"}
    writer = writer.options(**settings)
    run_stream(run, with_trigger(writer, follow=arguments.follow, interval=arguments.trigger), arguments.checkpoint)


def _readable(frame: "DataFrame", arguments: argparse.Namespace) -> "DataFrame":
    """Replace what CSV and a console cannot show by text."""
    is_text = arguments.to != "parquet"
    if is_text or arguments.text:
        frame = frame.withColumn("body", col("body").cast("string"))
    if is_text and "properties" in arguments.columns:
        frame = frame.withColumn("properties", to_json("properties"))
    return frame


main: Final = Job(
    name="consume",
    description="Read topics as a stream into Parquet or CSV files or onto the console.",
    add_arguments=_add_arguments,
    prepare=_prepare,
    run=_run,
)

if __name__ == "__main__":
    sys.exit(main())
