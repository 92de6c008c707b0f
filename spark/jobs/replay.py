"""Copy the messages that a topic received in a time range to another topic.

A copy has the row id of its original, so that :func:`triomq.spark.deduplicated` drops the repetitions of a replay that
ran twice.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import coalesce, col

from triomq.cli.arguments.parser import add_option
from triomq.protocol.errors import ConfigError
from triomq.protocol.record.properties import PropertyName
from triomq.spark.jobs.shared.arguments import JobParser, start_options
from triomq.spark.jobs.shared.program import Job, Run
from triomq.spark.jobs.shared.running import write_topic
from triomq.spark.options.options import Use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIME: Final = "milliseconds since 1970 or ISO 8601"


def _add_arguments(parser: JobParser) -> None:
    add = partial(add_option, parser)
    add("--subscribe TOPIC", "topic to read", required=True)
    add("--topic TOPIC", "topic to write", required=True)
    add("--from TIME", f"first store time: {_TIME} (the first message)", read=str, dest="start")
    text = "end before this store time (all messages that exist at the start)"
    add("--to TIME", text, read=str, dest="end")
    parser.add_argument("--tags", metavar="A||B", help="only messages with these tags")
    add("--rate N", "approximate messages per second (no limit)")


def _prepare(arguments: argparse.Namespace) -> Mapping[Use, Mapping[str, str]]:
    if arguments.topic in arguments.subscribe.split(","):
        raise ConfigError("--topic must differ from the topics that are read")
    reading = {
        "subscribe": arguments.subscribe,
        **start_options("starting", arguments.start),
        **start_options("ending", arguments.end),
    }
    if arguments.tags is not None:
        reading["tags"] = arguments.tags
    return {Use.BATCH_READ: reading, Use.WRITE: {"topic": arguments.topic, "idColumn": "rowId"}}


def _run(run: Run) -> None:
    frame = run.spark.read.format("rocketmq").options(**run.read_options).load()
    write_topic(run, copies(frame), run.arguments.rate)


def copies(frame: "DataFrame") -> "DataFrame":
    """Return the messages as their producer sent them, but without a delay."""
    return frame.select(
        "body",
        "keys",
        "tags",
        "flag",
        "properties",
        col("properties")[str(PropertyName.SHARDING_KEY)].alias("shardingKey"),
        "msgId",
        "queueOffset",
        coalesce("rowId", "msgId").alias("rowId"),
    )


main: Final = Job(
    name="replay",
    description="Copy the messages that a topic received in a time range to another topic.",
    add_arguments=_add_arguments,
    prepare=_prepare,
    run=_run,
)

if __name__ == "__main__":
    sys.exit(main())
