"""Saves tables: topics and groups when they change, at most ten times a second, and consumer offsets every 5 s.

An Apache broker that takes over the store of a killed broker knows only the topics in the file.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from triomq.broker.saved_table import SavedTable
from triomq.broker.signals import Signal
from triomq.broker.work import Worker
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.services.saving")

_PAUSE_S: Final = 0.1
_PAUSE_TO_WORK: Final = 20  # encoding 10,000 topics takes 50 ms: then once a second
_RETRY_S: Final = 1.0


class TableSaving:
    """Writes changed tables in a worker thread; retries those that the disk refuses."""

    def __init__(self, tables: Sequence[SavedTable], changed: Signal, worker: Worker, interval_s: float) -> None:
        """Write ``tables`` when ``changed`` is set and every ``interval_s``."""
        self._tables = tables
        self._changed = changed
        self._worker = worker
        self._interval_s = interval_s
        self._log = EventLog(LOGGER, "tables are not saved for now: %s")

    async def run(self) -> None:
        """Work until cancelled."""
        persist_at = trio.current_time() + self._interval_s
        while True:
            with trio.move_on_at(persist_at):
                await self._changed.wait()
            persist_at = trio.current_time() + self._interval_s
            self._changed.clear()  # before they are encoded: a later change is saved after the pause
            await trio.sleep(await self._save())

    async def _save(self) -> float:
        """Return how long to pause, s."""
        encoding_s = 0.0
        refusal: StoreError | None = None
        for table in self._tables:
            if table.is_dirty:
                table.is_dirty = False  # before it is encoded, as above
                try:
                    pieces, took_s = await self._worker.run(_encode(table))
                    encoding_s += took_s
                    await trio.to_thread.run_sync(table.write, pieces)
                except trio.Cancelled:  # before a thread started it: the shutdown saves the table
                    table.is_dirty = True
                    raise
                except StoreError as exc:
                    table.is_dirty = True
                    refusal = exc
        if refusal is not None:
            self._changed.set()
            self._log.occurred(refusal)
            return _RETRY_S
        self._log.ended()
        return max(_PAUSE_S, encoding_s * _PAUSE_TO_WORK)


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
                table.write(table.encode())
            except StoreError as exc:
                LOGGER.error("table not saved, its changes may be lost: %s", exc)
            else:
                table.is_dirty = False
