"""``python -m tests.spark.one_task read|write NAMESRV TOPIC COUNT``: run one task, and print its maximum memory.

It has imported what a Python worker of Spark has.  The last line is the high water mark of its memory in MB.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas  # noqa: F401  # Spark's workers import it
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from triomq.protocol.message_queue import MessageQueue
from triomq.spark.options.options import Use, parse_options
from triomq.spark.reading.partition_reader import read_ranges
from triomq.spark.reading.planning import QueueRange
from triomq.spark.schema import READ_COLUMNS
from triomq.spark.writing.writer import BatchWriter

BODY_BYTES = 4 * 1024**2 - 1024
#: So many bodies are in one batch of Spark's: 64 MiB.
BATCH_ROWS = 16


def high_water_mb() -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def read(namesrv: str, topic: str, count: int) -> None:
    options = parse_options({"nameServer": namesrv, "subscribe": topic}, Use.BATCH_READ)
    wanted = QueueRange(MessageQueue(topic, "broker-a", 0), 0, count)
    rows = sum(batch.num_rows for batch in read_ranges(options, [one.name for one in READ_COLUMNS], [wanted]))
    assert rows == count


def write(namesrv: str, topic: str, count: int) -> None:
    def batches() -> Iterator[Any]:
        for begin in range(0, count, BATCH_ROWS):
            rows = min(BATCH_ROWS, count - begin)
            offsets = pa.array(range(0, rows * BODY_BYTES + 1, BODY_BYTES), pa.int32()).buffers()[1]
            bodies = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(b"x" * (rows * BODY_BYTES))])
            yield pa.record_batch({"body": bodies})
            del bodies  # as Spark has one batch only while it gets the next

    options = parse_options({"nameServer": namesrv, "topic": topic, "compressAbove": "0"}, Use.WRITE)
    task = BatchWriter(options, StructType([StructField("body", BinaryType())]))
    assert task.send(batches(), "writer", 0, 0).counts["rows"] == count


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
    print(high_water_mb())
