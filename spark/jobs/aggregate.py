"""Count JSON messages by event-time window and group, with the mean of a value: flights by carrier.

Each micro-batch writes the windows that it changed to PATH/updates/batch=N; a repeated micro-batch replaces the same
folder.  At its end the job writes the last state of each window to PATH/totals.  A row whose window was closed by the
watermark is late: it changes no window, and is counted.  So is a row without event time.
"""

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import col, count, count_if, from_json, lit, row_number, window
from pyspark.sql.functions import sum as total

from triomq.spark.jobs.common import Counts, JobParser, SourceOptions, read_options, run_job, run_stream, with_trigger
from triomq.spark.options.options import Use


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = JobParser("aggregate", __doc__)
    parser.add_stream_arguments("PATH/checkpoint")
    add = parser.add_argument
    add("--path", required=True, metavar="DIR", help="folder of the results, Parquet")
    add("--time", default="time_hour", metavar="FIELD", help="member of the JSON with the event time (time_hour)")
    add("--by", default="carrier", metavar="FIELD", help="member to group by (carrier)")
    add("--value", default="dep_delay", metavar="FIELD", help="member to take the mean of (dep_delay)")
    add("--window", default="1 day", metavar="DURATION", help="length of a window (1 day)")
    add("--watermark", default="1 day", metavar="DURATION", help="how late rows may arrive in event time (1 day)")
    return run_job(parser, argv, check, run)


def check(arguments: argparse.Namespace) -> SourceOptions:
    """Return the options of the data source."""
    arguments.checkpoint = arguments.checkpoint or f"{arguments.path}/checkpoint"
    return {Use.STREAM_READ: read_options(arguments)}


def run(spark: SparkSession, arguments: argparse.Namespace, options: SourceOptions) -> Counts:
    """Aggregate until the end, or a signal, and write the totals."""
    updates = f"{arguments.path}/updates"
    batches: list[int] = []

    def write(changed: DataFrame, batch: int) -> None:
        changed.write.mode("overwrite").parquet(f"{updates}/batch={batch}")
        batches.append(batch)

    messages = spark.readStream.format("rocketmq").options(**options[Use.STREAM_READ]).schema("body binary").load()
    writer = by_window(messages, arguments).writeStream.outputMode("update").foreachBatch(write)
    counts = run_stream(with_trigger(writer, arguments), arguments)
    if batches:
        totals = latest(spark.read.parquet(updates))
        totals.write.mode("overwrite").parquet(f"{arguments.path}/totals")
        before = latest(spark.read.parquet(updates).where(col("batch") < batches[0]))
        added = _rows(totals) - _rows(before)
        counts.more["late"] = counts.rows - counts.more["unreadable"] - added
        counts.table = by_group(totals, arguments)
    return counts


def by_window(frame: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """Return the windows' counts and sums, of bodies that are JSON."""
    schema = f"`{arguments.time}` timestamp, `{arguments.by}` string, `{arguments.value}` double"
    parsed = frame.select(from_json(col("body").cast("string"), schema).alias("json"))
    time, group, value = (col(f"json.`{name}`") for name in (arguments.time, arguments.by, arguments.value))
    return (
        parsed.observe("parsing", count_if(time.isNull()).alias("unreadable"))
        .select(time.alias("time"), group.alias("group"), value.alias("value"))
        .withWatermark("time", arguments.watermark)
        .groupBy(window("time", arguments.window), "group")
        .agg(count(lit(1)).alias("rows"), count("value").alias("values"), total("value").alias("sum"))
        .select(col("window.start").alias("start"), col("window.end").alias("end"), "group", "rows", "values", "sum")
    )


def latest(updates: DataFrame) -> DataFrame:
    """Return the last state of each window."""
    newest = Window.partitionBy("start", "group").orderBy(col("batch").desc())
    return updates.withColumn("age", row_number().over(newest)).where("age = 1").drop("age", "batch")


def by_group(totals: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """Return the number of rows, of rows with a value, and the mean of each group, over all windows."""
    values, mean = total("values"), total("sum") / total("values")
    columns = total("rows").alias("rows"), values.alias("with value"), mean.alias(f"mean {arguments.value}")
    return totals.groupBy(col("group").alias(arguments.by)).agg(*columns).orderBy(arguments.by)


def _rows(totals: DataFrame) -> int:
    found = totals.agg(total("rows")).first()
    return (found and found[0]) or 0


if __name__ == "__main__":
    sys.exit(main())
