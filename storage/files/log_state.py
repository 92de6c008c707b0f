"""The store's small files about its log: ``checkpoint``, and two tables in ``config/`` that RocketMQ does not look at.

The checkpoint holds how much of the store is on the disk: RocketMQ's three times, 64 bits each, at its start; at 64
three physical offsets, which mean the same also where store times go back because the clock was set, and the times for
which they were written: RocketMQ changes only those at the start.  The rest of the 4096 bytes is zero.  No value may be
ahead of the disk; it may lag.  Source: StoreCheckpoint.java; store.md 5.2.

``deletedTopics.json``: deleting a topic removes its consume queues; its records stay in the commit log until they
expire.  RocketMQ's own recovery can bring such a topic back; here each deletion is remembered with the end of the log
at that moment, so that older records stay hidden when queues are rebuilt.

``clockSteps.json``: store times follow the clock, so they ascend only between two places where it was set back.  Each
is remembered before the first record after it is written: so a search by time knows which parts of the log to search.
Source: behaviour.md A.4 (6): RocketMQ's store times do the same.
"""

import logging
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from triomq.protocol.errors import StoreError, StoreFullError
from triomq.storage.files.file_system import FileSystem, translated
from triomq.storage.files.json_table import JsonTable

LOGGER: Final = logging.getLogger("triomq.storage.files.log_state")

CHECKPOINT: Final = "checkpoint"
"""Name of the file in the root of a store."""

_TIMES: Final = Struct(">qqq")
_PLACES: Final = Struct(">qqqqqq")
_PLACES_AT: Final = 64  # in the first sector, so that they cannot tear; RocketMQ 5 has other numbers before
_FILE_SIZE_BYTES: Final = 4096


class Checkpoint(NamedTuple):
    """The last messages that are known to be on the disk.

    Attributes:
        physic: store time (ms) of the last one in the commit log.
        logics: in the consume queues.
        indexes: in the index files that are full (indexMsgTimestamp).
        log_end: physical offset up to which the commit log is on the disk; 0 if RocketMQ wrote the file.
        queues_end: up to which the records have units there.
        index_end: the records that begin before it are in index files that are full; 0 without such files, and -1 if
            RocketMQ wrote the file.
    """

    physic: int = 0
    logics: int = 0
    indexes: int = 0
    log_end: int = 0
    queues_end: int = 0
    index_end: int = 0

    @property
    def end(self) -> int:
        """Messages up to this physical offset are in commit log and consume queues."""
        return min(self.log_end, self.queues_end)

    def save(self, file_system: FileSystem, path: Path) -> bool:
        """Write the file in place, so that an existing one needs no space and, being in one sector, cannot tear.

        Returns:
            ``False`` if the disk is too full to create the file; running without one is safe.

        Raises:
            StoreError: another error of the disk.
        """
        try:
            with translated("write", path):
                content = _TIMES.pack(*self[:3]).ljust(_PLACES_AT, b"\0") + _PLACES.pack(*self[3:], *self[:3])
                file_system.overwrite_file(path, content.ljust(_FILE_SIZE_BYTES, b"\0"))
        except StoreFullError as exc:
            LOGGER.warning("checkpoint not written error=%s", exc)
            return False
        return True


def load_checkpoint(file_system: FileSystem, path: Path) -> Checkpoint:
    """Read the file; a missing or cut one counts as zeros, so that recovery looks at everything.

    Raises:
        StoreError: it is there, but cannot be read.
    """
    with translated("read", path):
        if not file_system.exists(path):
            return Checkpoint()
        content = file_system.read_file(path)
    if len(content) < _TIMES.size:
        return Checkpoint()
    times = _TIMES.unpack_from(content)
    places = _PLACES.unpack_from(content.ljust(_FILE_SIZE_BYTES, b"\0"), _PLACES_AT)
    return Checkpoint(*times, *places[:3]) if places[3:] == times else Checkpoint(*times)._replace(index_end=-1)


class DeletedTopics:
    """Topics with the physical offset before which their records no longer count."""

    def __init__(self, directory: Path, file_system: FileSystem) -> None:
        """Name the directory of the table; ``load`` reads it."""
        self._table = JsonTable(directory / "deletedTopics.json", file_system)
        self._offsets: dict[str, int] = {}
        self._lock = Lock()  # between additions in worker threads

    def load(self) -> None:
        """Read the table.

        Raises:
            StoreLayoutError: it is damaged.
        """
        rows = self._table.load_as(lambda saved: {str(name): int(at) for name, at in saved["offsetTable"].items()})
        self._offsets = rows or {}

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


class ClockStep(NamedTuple):
    """One place: records from ``offset`` on may be older than the one before, which was stored at ``newest_ms``."""

    offset: int
    newest_ms: int


class ClockSteps:
    """The places of one log.

    Attributes:
        all: in the order of the log; replaced, never changed.
    """

    def __init__(self, directory: Path, file_system: FileSystem) -> None:
        """Name the directory of the table; ``load`` reads it."""
        self._table = JsonTable(directory / "clockSteps.json", file_system)
        self.all: tuple[ClockStep, ...] = ()

    def load(self) -> None:
        """Read the table.

        Raises:
            StoreLayoutError: it is damaged.
        """
        steps = self._table.load_as(lambda saved: [ClockStep(int(at), int(ms)) for at, ms in saved.get("steps", ())])
        self.all = tuple(steps or ())

    def add(self, offset: int, newest_ms: int) -> None:
        """Remember that the next record, at ``offset``, is older than the one before, stored at ``newest_ms``.

        It is on the disk when this returns, unless the disk refuses: then only until the broker stops.
        """
        if self.all and self.all[-1].offset == offset:  # that record could not be stored
            return
        try:
            self._set((*self.all, ClockStep(offset, newest_ms)))
        except StoreError as exc:
            LOGGER.warning("clock step not saved error=%s", exc)

    def restrict(self, log_start: int, log_end: int) -> None:
        """Adapt to a log of which the beginning expired, or the end was lost and will be written again.

        Raises:
            StoreError: the disk reports an error.
        """
        left = tuple(step for step in self.all if log_start < step.offset <= log_end)
        if left != self.all:
            self._set(left)

    def _set(self, steps: tuple[ClockStep, ...]) -> None:
        self.all = steps
        self._table.save({"steps": [list(step) for step in steps]})
