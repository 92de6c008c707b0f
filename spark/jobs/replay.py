"""Copy the messages that a topic received in a time range to another topic."""

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from triomq.protocol.errors import ConfigError
from triomq.protocol.record.properties import PropertyName
from triomq.spark.jobs.common import TIME_TEXT, Counts, JobParser, SourceOptions, read_options, run_job, write_topic
from triomq.spark.options.options import Use


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = JobParser("replay", __doc__)
    add = parser.add_argument
    add("--subscribe", required=True, metavar="TOPIC", help="topic to read")
    add("--topic", required=True, help="topic to write")
    add("--from", dest="start", metavar="TIME", help=f"first store time: {TIME_TEXT} (the first message)")
    help_to = "end before this store time (all messages that exist at the start)"
    add("--to", dest="endingTimestamp", metavar="TIME", help=help_to)
    add("--tags", metavar="A||B", help="only messages with these tags")
    add("--rate", type=int, metavar="N", help="approximate messages per second (no limit)")
    return run_job(parser, argv, check, run)


def check(arguments: argparse.Namespace) -> SourceOptions:
    """Check the combination of arguments; return the options of the data source."""
    if arguments.topic in arguments.subscribe.split(","):
        raise ConfigError("--topic must differ from the topics that are read")
    return {Use.BATCH_READ: read_options(arguments), Use.WRITE: {"topic": arguments.topic}}


def run(spark: SparkSession, arguments: argparse.Namespace, options: SourceOptions) -> Counts:
    """Copy the messages."""
    frame = spark.read.format("rocketmq").options(**options[Use.BATCH_READ]).load()
    return write_topic(copies(frame), options[Use.WRITE], arguments.rate)


def copies(frame: DataFrame) -> DataFrame:
    """Return the messages as their producer sent them, but without a delay.

    With ``msgId`` and ``queueOffset`` the writer sees that they were read from RocketMQ, and drops system properties.
    """
    sharding_key = col("properties")[str(PropertyName.SHARDING_KEY)].alias("shardingKey")
    return frame.select("body", "keys", "tags", "flag", "properties", sharding_key, "msgId", "queueOffset")


if __name__ == "__main__":
    sys.exit(main())
