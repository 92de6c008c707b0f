"""Writes to the disk: flushes the store, and saves tables.

The store is flushed at intervals (``async``), or for every group of waiting senders (``sync``: ``group_commit.py``).
fdatasync runs in a worker thread, so the event loop never waits for a disk; a failed flush ends the broker, because no
later acknowledgement could be trusted.  If only a file cannot be opened, for lack of permission or of file descriptors,
nothing is lost, and the flush is retried.

Topics and groups are saved soon after they change, because an Apache broker that takes over the store of a killed
broker knows only the topics in the file; consumer offsets and delivery progress are saved at intervals.

Source: store.md 5.9.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import trio

from triomq.broker.saved_table import SavedTable
from triomq.broker.statistics.counters import Flushes
from triomq.broker.work import Signal, Worker
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.files.file_system import is_unopened
from triomq.storage.flush import FlushPlan
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.services.flush")


class FlushRuns:
    """Runs flush plans in another thread."""

    def __init__(
        self, store: MessageStore, run_in_thread: Callable[[Callable[[], None]], Awaitable[None]], flushes: Flushes
    ) -> None:
        self._store = store
        self._flushes = flushes
        self._run_in_thread = run_in_thread
        self._log = EventLog(LOGGER, "messages are not flushed for now: %s")

    async def run(self, plan: FlushPlan) -> bool:
        """Run a plan and record its result; return ``False`` if files could not be opened: try again later.

        Raises:
            StoreError: the disk has failed.
        """
        self._flushes.begin(self, trio.current_time())
        try:
            await self._run_in_thread(plan.run)
        except StoreError as exc:
            if not is_unopened(exc):
                raise
            self._log.occurred(exc)
            return False
        self._log.ended()
        self._flushes.end(self, trio.current_time())
        self._store.flush_done(plan)
        return True

    async def flush_log(self) -> bool:
        """Flush all stored messages; return ``False`` as :meth:`run` does.

        Raises:
            StoreError: the disk has failed.
        """
        plan = self._store.flush_plan()
        if plan is not None and not await self.run(plan):
            return False
        self._store.dispatch_flushed()
        return True

    def flush_log_now(self) -> bool:
        """Flush in this thread, when the broker ends; return whether it worked."""
        try:
            if not self._store.has_failed:
                self._store.flush()
        except StoreError as exc:
            LOGGER.error("messages not flushed, delayed messages may be delivered again: %s", exc)
            return False  # also where only a file could not be opened, which is no failure of the disk
        return not self._store.has_failed


async def flush_periodically(store: MessageStore, worker: Worker, flushes: Flushes, *, of_queues: bool) -> None:
    """Flush the consume queues, or for durability ``async`` the commit log, at intervals until cancelled.

    As in RocketMQ, files with a minimum of dirty pages are flushed often, and all from time to time: of the commit log
    16 KiB or more every 500 ms, and all every 10 s.  No sender waits for consume queues: they can be rebuilt.
    """
    config, runs = store.config, FlushRuns(store, trio.to_thread.run_sync, flushes)
    if of_queues:
        interval_s, least_pages = config.flush_consume_queue_interval_s, config.flush_consume_queue_least_pages
        thorough_interval_s = config.flush_consume_queue_thorough_interval_s
    else:
        interval_s, least_pages = config.flush_interval_s, config.flush_least_pages
        thorough_interval_s = config.flush_thorough_interval_s
    last_thorough = trio.current_time()
    while True:
        await trio.sleep(interval_s)
        now = trio.current_time()
        pages = least_pages
        if now - last_thorough >= thorough_interval_s:
            pages, last_thorough = 0, now
        if of_queues:
            plan = await worker.run(store.planning_consume_queues_flush(pages), urgent=True)
        else:
            plan = store.flush_plan(pages)
        if plan is not None:
            await runs.run(plan)


_PAUSE_S: Final = 0.1
_PAUSE_TO_WORK: Final = 20  # encoding 10,000 topics takes 50 ms: then once a second
_SAVE_RETRY_S: Final = 1.0


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
            encoding_s = [await self._save(table) for table in self.tables if table.is_dirty]
            if None in encoding_s:
                self.changed.set()
                await trio.sleep(_SAVE_RETRY_S)
            else:
                self._log.ended()
                await trio.sleep(max(_PAUSE_S, sum(filter(None, encoding_s)) * _PAUSE_TO_WORK))

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
