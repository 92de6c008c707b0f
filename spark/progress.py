"""Helpers for users: lag and progress of a query, deduplication by row id.

Source: spark.md 1.8, 4.2.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener, StreamingQueryProgress

from triomq.protocol.message_queue import MessageQueue
from triomq.spark.reading.planning import StreamOffset

_LINE_INTERVAL_S: Final = 1.0


def lag(progress: StreamingQueryProgress) -> dict[MessageQueue, int]:
    """Return the number of unread offsets of each queue of a query, for all its ``rocketmq`` sources."""
    found: dict[MessageQueue, int] = {}
    for source in progress.sources:
        latest, end = _offset(source.latestOffset), _offset(source.endOffset)
        if latest is None or end is None:
            continue
        for queue, high in latest.ends.items():
            found[queue] = max(0, high - end.ends.get(queue, high))
    return found


def deduplicated(frame: DataFrame, delay: str = "10 minutes") -> DataFrame:
    """Return a frame without repeated row ids, which our writers leave when they retry.

    In a stream the watermark is on ``storeTime``: a repetition that arrives more than ``delay`` later is kept.  The
    frame must have the columns ``rowId`` and ``storeTime``.
    """
    if frame.isStreaming:
        return frame.withWatermark("storeTime", delay).dropDuplicatesWithinWatermark(["rowId"])
    return frame.dropDuplicates(["rowId"])


def progress_line(progress: StreamingQueryProgress) -> str:
    """Return a line about one micro-batch."""
    return (
        f"batch {progress.batchId}: {progress.numInputRows} rows, {progress.processedRowsPerSecond:.0f} rows/s, "
        f"lag {sum(lag(progress).values())}, {progress.batchDuration} ms\n"
    )


class PrintProgress(StreamingQueryListener):
    """Prints the progress of queries, at most once a second: ``spark.streams.addListener(PrintProgress())``."""

    def __init__(
        self, write: Callable[[str], object] = sys.stdout.write, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take a function that writes a line, and a monotonic clock in seconds."""
        self._write = write
        self._clock = clock
        self._printed_at = -_LINE_INTERVAL_S
        self.rows = 0

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's names
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Count the rows, and print if the last line is at least a second old."""
        progress = event.progress
        self.rows += progress.numInputRows
        now = self._clock()
        if not progress.numInputRows or now - self._printed_at < _LINE_INTERVAL_S:
            return
        self._printed_at = now
        self._write(progress_line(progress))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""


def _offset(text: str | None) -> StreamOffset | None:
    """Read an offset of a progress object; ``None`` if another source made it."""
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(value, dict) or not {"v", "q", "from"} <= value.keys():
        return None
    return StreamOffset.from_json(value)
