"""Runs batches and streams that report progress and end at a signal.

A batch blocks the main thread, and must run there: Spark finds data sources by the session of the thread.  So another
thread watches it.
"""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.sql import Observation
from pyspark.sql.functions import coalesce, col, count, length, lit
from pyspark.sql.functions import sum as total

from triomq.spark.jobs.shared.program import Run
from triomq.spark.progress import PrintProgress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_S: Final = 0.2
_SAY_INTERVAL_S: Final = 1.0
_LISTENER_TIMEOUT_S: Final = 10.0
_METRICS: Final = "triomq"
_COUNTED: Final = ("rows", "bytes")


def _metrics(body: "Column") -> tuple["Column", "Column"]:
    return count(lit(1)).alias("rows"), coalesce(total(length(body)), lit(0)).alias("bytes")


def write_topic(run: Run, frame: "DataFrame", rate: int | None) -> None:
    """Write a frame to a topic and count its rows; a signal cancels the tasks.

    Args:
        run: of the job.
        frame: with the columns of a write.
        rate: approximate rows per second of all tasks together; ``None``: no limit.

    Raises:
        PySparkException: the write failed or was cancelled.
    """
    options = dict(run.write_options)
    if rate is not None:
        at_once = min(frame.rdd.getNumPartitions(), run.spark.sparkContext.defaultParallelism)
        options["rateLimit"] = str(max(1, rate // max(1, at_once)))
    observation = Observation(_METRICS)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(run, done), daemon=True)
    watcher.start()
    try:
        counted = frame.observe(observation, *_metrics(col("body")))
        counted.write.format("rocketmq").options(**options).mode("append").save()
    finally:
        done.set()
        watcher.join()
    found = observation.get
    run.outcome.rows, run.outcome.body_bytes = int(found["rows"]), int(found["bytes"])


def _watch(run: Run, done: threading.Event) -> None:
    """Report changes of the number of finished tasks, at most once a second; cancel the tasks at a signal."""
    context = run.spark.sparkContext
    tracker = context.statusTracker()
    said, said_at = "", time.monotonic()
    while not done.wait(_POLL_S):
        if run.stopper.signal is not None:
            context.cancelAllJobs()  # repeatedly: another job may follow a cancelled one
        elif time.monotonic() - said_at >= _SAY_INTERVAL_S:
            stages = [stage for one in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(one)) is not None]
            text = ", ".join(
                f"stage {stage.stageId}: {stage.numCompletedTasks} of {stage.numTasks} tasks done, "
                f"{stage.numActiveTasks} running"
                for stage in stages
            )
            if text and text != said:
                run.say(text + "\n")
                said, said_at = text, time.monotonic()


class Tally(PrintProgress):
    """Counts the observed rows and bytes of a query, and knows when the counts are complete."""

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__(write=say)
        self.ended = threading.Event()
        self.written = 0
        self.body_bytes = 0
        self.batches = 0
        self.more: Counter[str] = Counter()

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802  # Spark's names
        """Add the counts of a micro-batch."""
        super().onQueryProgress(event)
        progress = event.progress
        metrics = progress.observedMetrics.get(_METRICS)
        if metrics is not None and metrics["rows"]:
            self.written += int(metrics["rows"])
            self.body_bytes += int(metrics["bytes"])
            self.batches += 1
            self.more.update({name: int(value) for name, value in metrics.asDict().items() if name not in _COUNTED})

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802
        """Note that no more progress follows."""
        self.ended.set()


def observed(frame: "DataFrame", *more: "Column") -> "DataFrame":
    """Return the frame with metrics for a :class:`Tally`: rows, bytes of the column ``body``, and further sums."""
    return frame.observe(_METRICS, *_metrics(col("body")), *more)


def run_stream(
    run: Run, writer: "DataStreamWriter", checkpoint: str | None, *, enough_rows: int | None = None
) -> Tally:
    """Run a query until it ends, a signal arrives, or it has written enough rows; count in ``run.outcome``.

    Raises:
        StreamingQueryException: the query failed.
    """
    tally = Tally(run.say)
    run.spark.streams.addListener(tally)
    try:
        with _folder(checkpoint) as folder:
            query = writer.option("checkpointLocation", folder).start()
            try:
                while query.isActive and not run.stopper.wait(_POLL_S):
                    if enough_rows is not None and tally.written >= enough_rows:
                        break
                error = query.exception()
            finally:
                _stop(run.spark, query, tally)
            if error is not None:
                raise error
    finally:
        run.outcome.rows, run.outcome.body_bytes = tally.written, tally.body_bytes
        run.outcome.batches = tally.batches
        if not _has_ended(run.spark):
            run.spark.streams.removeListener(tally)
    return tally


def _stop(spark: "SparkSession", query: "StreamingQuery", tally: Tally) -> None:
    """Stop a query and wait for its last progress, unless the JVM is ending."""
    if _has_ended(spark):
        return
    if query.isActive:
        query.stop()
    deadline = time.monotonic() + _LISTENER_TIMEOUT_S
    while not tally.ended.wait(_POLL_S) and not _has_ended(spark) and time.monotonic() < deadline:
        pass


def _has_ended(spark: "SparkSession") -> bool:
    """Whether something else stopped the context: the JVM, after a SIGTERM to ``spark-submit``."""
    try:
        return not spark.sparkContext.defaultParallelism
    except (Py4JError, OSError):
        return True


@contextmanager
def _folder(checkpoint: str | None) -> Iterator[str]:
    if checkpoint is not None:
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="triomq-checkpoint-", ignore_cleanup_errors=True) as folder:
        yield folder


def with_trigger(writer: "DataStreamWriter", *, follow: bool, interval: str | None) -> "DataStreamWriter":
    """Return the writer with the trigger that the arguments select."""
    if not follow:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=interval) if interval is not None else writer
