"""Saves tables: topics and groups soon after they change, consumer offsets and delivery progress at intervals.

An Apache broker that takes over the store of a killed broker knows only the topics in the file.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from triomq.broker.saved_table import SavedTable
from triomq.broker.services.flush import FlushRuns
from triomq.broker.work import Signal, Worker
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.services.saving")

_PAUSE_S: Final = 0.1
_PAUSE_TO_WORK: Final = 20  # encoding 10,000 topics takes 50 ms: then once a second
_RETRY_S: Final = 1.0


class TableSaving:
    """Writes changed tables in a worker thread; retries those that the disk refuses.

    Tables of delivery progress are written after a flush of the log.  So the progress on disk is never ahead of the
    delivered messages on disk, and a power loss repeats messages and does not lose them.

    Attributes:
        tables: all that are saved, changed or not.
        changed: set when a table must be saved soon.
    """

    def __init__(
        self, tables: Sequence[SavedTable], worker: Worker, changed: Signal, flush_before: FlushRuns | None = None
    ) -> None:
        """Save ``tables`` when ``changed`` is set; before each of them, flush the log with ``flush_before``."""
        self.tables = tables
        self._worker = worker
        self.changed = changed
        self._flush_before = flush_before
        self._log = EventLog(LOGGER, "tables are not saved for now: %s")

    async def run(self, interval_s: float) -> None:
        """Save changed tables at least every ``interval_s``, until cancelled.

        Raises:
            StoreError: the log cannot be flushed; like every failed flush this ends the broker.
        """
        save_at = trio.current_time() + interval_s
        while True:
            with trio.move_on_at(save_at):
                await self.changed.wait()
            save_at = trio.current_time() + interval_s
            self.changed.clear()  # before they are encoded: a later change is saved after the pause
            await trio.sleep(await self._save_all())

    async def _save_all(self) -> float:
        """Return the length of the pause that must follow, s."""
        encoding_s = [await self._save(table) for table in self.tables if table.is_dirty]
        if None in encoding_s:
            self.changed.set()
            return _RETRY_S
        self._log.ended()
        return max(_PAUSE_S, sum(filter(None, encoding_s)) * _PAUSE_TO_WORK)

    async def _save(self, table: SavedTable) -> float | None:
        """Save a table; return the seconds that its encoding took, ``None`` if the disk refuses it."""
        table.is_dirty, is_saved = False, False  # before it is encoded, as above
        try:
            pieces, encoding_s = await self._worker.run(_encode(table))
            if self._flush_before is not None:
                if not await self._flush_before.flush_log():
                    return None
                self._worker.end_step()
            try:
                await trio.to_thread.run_sync(table.write, pieces)
            except StoreError as exc:
                self._log.occurred(exc)
                return None
            is_saved = True
            return encoding_s
        finally:
            table.is_dirty = table.is_dirty or not is_saved  # if cancelled, the shutdown saves it

    def save_now(self) -> None:
        """Write changed tables in this thread; log those that the disk refuses."""
        dirty = [table for table in self.tables if table.is_dirty]
        if dirty and (self._flush_before is None or self._flush_before.flush_log_now()):
            save_now(dirty)


def _encode(table: SavedTable) -> Work[tuple[list[bytes], float]]:
    """Return the content of the file in pieces, and how long it took to make them, s."""
    pieces, took_s, begin = [], 0.0, trio.current_time()
    for piece in table.pieces():
        pieces.append(piece)
        took_s += trio.current_time() - begin
        yield PAUSE
        begin = trio.current_time()
    return pieces, took_s


def save_now(tables: Iterable[SavedTable]) -> None:
    """Write changed tables in this thread; log those that the disk refuses."""
    for table in tables:
        if table.is_dirty:
            try:
                table.write(list(table.pieces()))
            except StoreError as exc:
                LOGGER.error("table not saved, its changes may be lost: %s", exc)
            else:
                table.is_dirty = False
