from typing import Any, cast
from unittest.mock import Mock

from triomq.protocol.message_queue import MessageQueue
from triomq.spark import PrintProgress, lag

LATEST = '{"v": 1, "q": {"T": {"b": {"0": 9, "1": 5}}}, "from": {}, "at": 0}'
END = '{"v": 1, "q": {"T": {"b": {"0": 7, "1": 5}}}, "from": {}, "at": 0}'


def progress(batch: int, rows: int) -> Any:
    ours = Mock(latestOffset=LATEST, endOffset=END)
    others = [Mock(latestOffset=text, endOffset=text) for text in (None, "12", "no JSON")]
    return Mock(
        batchId=batch, numInputRows=rows, processedRowsPerSecond=2.0, batchDuration=30, sources=[*others, ours]
    )  # fmt: skip


def test_lag_counts_unread_offsets_of_our_sources() -> None:
    assert lag(progress(0, 1)) == {MessageQueue("T", "b", 0): 2, MessageQueue("T", "b", 1): 0}


def test_progress_prints_at_most_once_a_second() -> None:
    lines: list[str] = []
    times = iter((0.0, 0.9, 1.1, 1.2))
    printer = PrintProgress(lines.append, lambda: next(times))
    for batch, rows in enumerate((5, 6, 0, 7)):
        printer.onQueryProgress(cast("Any", Mock(progress=progress(batch, rows))))
    assert lines == [f"batch {batch}: {rows} rows, 2 rows/s, lag 2, 30 ms\n" for batch, rows in ((0, 5), (3, 7))]
    assert printer.rows == 18
