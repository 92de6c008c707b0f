"""Where store times go back in the commit log, because the clock was ahead before, or is behind now.

Store times follow the clock, so that only between two such places they ascend.  Each is remembered in
``config/clockSteps.json``, which RocketMQ does not look at, before the first record after it is written: so a search by
time knows which parts of the log to search.  Source: behaviour.md A.4 (6): RocketMQ's store times do the same.
"""

import logging
from pathlib import Path
from typing import Any, Final, NamedTuple

from triomq.protocol.errors import StoreError
from triomq.storage.files.file_system import FileSystem
from triomq.storage.files.json_table import JsonTable

LOGGER: Final = logging.getLogger("triomq.storage.commit_log.clock_steps")


class ClockStep(NamedTuple):
    """One place: records from ``offset`` on may be older than the one before, which was stored at ``newest_ms``."""

    offset: int
    newest_ms: int


class ClockSteps:
    """The places of one log.

    Attributes:
        all: in the order of the log; replaced, never changed.
    """

    __slots__ = ("_table", "all")

    def __init__(self, path: Path | None = None, file_system: FileSystem | None = None) -> None:
        """Name the table's file; ``load`` reads it."""
        self._table = None if path is None else JsonTable(path, file_system)
        self.all: tuple[ClockStep, ...] = ()

    def load(self) -> None:
        """Read the table.

        Raises:
            StoreLayoutError: it is damaged.
        """
        if self._table is not None:
            self.all = self._table.load_as(_steps_in) or ()

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
        if self._table is not None:
            self._table.save({"steps": [list(step) for step in steps]})


def _steps_in(saved: Any) -> tuple[ClockStep, ...]:
    return tuple(ClockStep(int(at), int(newest)) for at, newest in saved.get("steps", ()))
