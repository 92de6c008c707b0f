"""The topics that were deleted, whose older records must stay hidden when queues are rebuilt.

Deleting a topic removes its consume queues; its records stay in the commit log until they expire.  RocketMQ's own
recovery can bring such a topic back; here each deletion is remembered with the end of the log at that moment, in
``config/deletedTopics.json``, which RocketMQ does not look at.
"""

from pathlib import Path
from threading import Lock
from typing import Any

from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable


class DeletedTopics:
    """Topics with the physical offset before which their records no longer count."""

    __slots__ = ("_lock", "_offsets", "_table")

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        """Name the table's file; ``load`` reads it."""
        self._table = JsonTable(path, file_system)
        self._offsets: dict[str, int] = {}
        self._lock = Lock()  # between additions in worker threads

    def load(self) -> None:
        """Read the table.

        Raises:
            StoreLayoutError: it is damaged.
        """
        self._offsets = self._table.load_as(_offsets_in) or {}

    def __len__(self) -> int:
        return len(self._offsets)

    def end_of(self, topic: str) -> int:
        """Return the physical offset from which on records of ``topic`` count; 0 for most topics."""
        return self._offsets.get(topic, 0)

    def add(self, topic: str, log_end: int) -> None:
        """Forget everything of ``topic`` before ``log_end``; on disk when this returns.  May run in a worker thread.

        Raises:
            StoreError: the disk reports an error; nothing is forgotten.
        """
        with self._lock:
            offsets = {**self._offsets, topic: log_end}
            self._table.save({"offsetTable": offsets})
            self._offsets = offsets

    def restrict(self, log_start: int, log_end: int) -> None:
        """Adapt to a log of which the beginning expired, or the end was lost and will be written again.

        Raises:
            StoreError: the disk reports an error.
        """
        offsets = {topic: min(end, log_end) for topic, end in self._offsets.items()}
        offsets = {topic: end for topic, end in offsets.items() if end > log_start}
        if offsets != self._offsets:
            self._table.save({"offsetTable": offsets})
            self._offsets = offsets


def _offsets_in(saved: Any) -> dict[str, int]:
    return {str(topic): int(offset) for topic, offset in saved["offsetTable"].items()}
