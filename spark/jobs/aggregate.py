"""Count messages by event time and group, and the mean of a value, as they come: flights by carrier.

Bodies are JSON.  Each micro-batch writes the windows it changed to ``PATH/updates/batch=N``; a repeated micro-batch
writes the same folder again.  At its end the job writes the last state of each window to ``PATH/totals``.  A row whose
window was closed by the watermark is late: it changes no window, and is counted.  So is a row without event time.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql.functions import col, count, count_if, from_json, lit, row_number, window
from pyspark.sql.functions import sum as total

from triomq.cli.arguments.parser import add_option
from triomq.spark.jobs.shared.arguments import JobParser, add_stream_arguments, parse_interval, stream_options
from triomq.spark.jobs.shared.program import Job, Run
from triomq.spark.jobs.shared.running import observed, run_stream, with_trigger
from triomq.spark.options.options import Use
from triomq.spark.schema import ddl_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNREADABLE: Final = "unreadable"
_KEY: Final = ("start", "group")


def _add_arguments(parser: JobParser) -> None:
    add_stream_arguments(parser, own_checkpoint="PATH/checkpoint")
    add = partial(add_option, parser)
    add("--path DIR", "folder of the results, Parquet", required=True)
    add("--time FIELD", "member of the JSON with the event time (time_hour)", "time_hour")
    add("--by FIELD", "member to group by (carrier)", "carrier")
    add("--value FIELD", "member to take the mean of (dep_delay)", "dep_delay")
    add("--window DURATION", "length of a window (1 day)", "1 day", read=parse_interval)
    add("--watermark DURATION", "how late rows may arrive in event time (1 day)", "1 day", read=parse_interval)


def _prepare(arguments: argparse.Namespace) -> Mapping[Use, Mapping[str, str]]:
    if not arguments.checkpoint:
        arguments.checkpoint = f"{arguments.path}/checkpoint"
    return {Use.STREAM_READ: stream_options(arguments)}


def _run(run: Run) -> None:
    arguments = run.arguments
    reader = run.spark.readStream.format("rocketmq").options(**run.read_options).schema(ddl_of(["body"]))
    changed = by_window(reader.load(), arguments)
    updates = Updates(run.spark, f"{arguments.path}/updates")
    writer = changed.writeStream.outputMode("update").foreachBatch(updates.write)
    writer = with_trigger(writer, follow=arguments.follow, interval=arguments.trigger)
    tally = run_stream(run, writer, arguments.checkpoint)
    if not updates.exist():
        return
    totals = updates.latest()
    totals.write.mode("overwrite").parquet(f"{arguments.path}/totals")
    unreadable = tally.more[_UNREADABLE]
    run.outcome.more |= {"late": tally.written - unreadable - updates.added(), _UNREADABLE: unreadable}
    run.outcome.table = (
        (arguments.by, "rows", "with value", f"mean {arguments.value}"),
        [tuple(row) for row in by_group(totals).collect()],
    )


def by_window(frame: "DataFrame", arguments: argparse.Namespace) -> "DataFrame":
    """Return the windows' counts and sums, of bodies that are JSON."""
    names = (
        ("time", arguments.time, "timestamp"),
        ("group", arguments.by, "string"),
        ("value", arguments.value, "double"),
    )
    schema = ", ".join(f"`{source}` {kind}" for _, source, kind in names)
    parsed = frame.withColumn("j", from_json(col("body").cast("string"), schema))
    unreadable = count_if(col(f"j.`{arguments.time}`").isNull()).alias(_UNREADABLE)
    fields = observed(parsed, unreadable).select(*(col(f"j.`{source}`").alias(name) for name, source, _ in names))
    return (
        fields.withWatermark("time", arguments.watermark)
        .groupBy(window("time", arguments.window), "group")
        .agg(count(lit(1)).alias("rows"), count("value").alias("values"), total("value").alias("sum"))
        .select(col("window.start").alias("start"), col("window.end").alias("end"), "group", "rows", "values", "sum")
    )


def by_group(totals: "DataFrame") -> "DataFrame":
    """Return rows, rows with a value, and the mean of each group, over all windows."""
    summed = totals.groupBy("group").agg(
        total("rows").alias("rows"), total("values").alias("values"), total("sum").alias("sum")
    )
    return summed.select("group", "rows", "values", (col("sum") / col("values")).alias("mean")).orderBy("group")


@dataclass
class Updates:
    """The windows that each micro-batch changed.

    Attributes:
        spark: the session.
        path: their folder.
        first_batch: of this run; ``None``: it had none.
    """

    spark: "SparkSession"
    path: str
    first_batch: int | None = None

    def write(self, changed: "DataFrame", batch: int) -> None:
        """Write what a micro-batch changed; the same folder if it is repeated."""
        if self.first_batch is None:
            self.first_batch = batch
        changed.write.mode("overwrite").parquet(f"{self.path}/batch={batch}")

    def exist(self) -> bool:
        """Whether this run had a micro-batch."""
        return self.first_batch is not None

    def latest(self, before: int | None = None) -> "DataFrame":
        """Return the last state of each window, or what it was before a micro-batch."""
        frame = self.spark.read.parquet(self.path)
        if before is not None:
            frame = frame.where(col("batch") < before)
        newest = Window.partitionBy(*_KEY).orderBy(col("batch").desc())
        return frame.withColumn("age", row_number().over(newest)).where("age = 1").drop("age", "batch")

    def added(self) -> int:
        """Return how many rows this run added to windows; the others were late."""
        now, before = (_rows(self.latest(limit)) for limit in (None, self.first_batch))
        return now - before


def _rows(totals: "DataFrame") -> int:
    found = totals.agg(total("rows")).first()
    return int(found[0] or 0) if found is not None else 0


main: Final = Job(
    name="aggregate",
    description="Count JSON messages by event-time window and group, with the mean of a value: flights by carrier.",
    add_arguments=_add_arguments,
    prepare=_prepare,
    run=_run,
)

if __name__ == "__main__":
    sys.exit(main())
