"""Writes to the disk: flushes the store, and saves tables.

The store is flushed at intervals (``async``), or for every group of waiting senders (``sync``).  fdatasync runs in a
worker thread, so the event loop never waits for a disk; a failed flush ends the broker, because no later
acknowledgement could be trusted.  If only a file cannot be opened, for lack of permission or of file descriptors,
nothing is lost, and the flush is retried.

Topics and groups are saved soon after they change, because an Apache broker that takes over the store of a killed
broker knows only the topics in the file; consumer offsets and delivery progress are saved at intervals.

Source: store.md 5.9.
"""

import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from threading import Thread
from types import TracebackType
from typing import Final, NamedTuple, Self

import trio

from triomq.broker.network.connection import Connection
from triomq.broker.saved_table import SavedTable
from triomq.broker.statistics.counters import BrokerStatistics, Flushes
from triomq.broker.work import Signal, Worker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter
from triomq.storage.files.file_system import is_unopened
from triomq.storage.flush import FlushPlan
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.services.flush")

_TIMEOUT_CHECK_S: Final = 0.25
_RETRY_S: Final = 0.25
_MAX_WAIT: Final = 1 / 8  # of the duration of a flush that the next one may wait for more senders
_BUSY_S: Final = 0.002  # it may also wait this long while each turn of the event loop brings some
_GO: Final = 1


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


class FlushThread:
    """A thread that waits for the disk, alive in a ``with`` block; only one task may use it.

    Each call of ``trio.to_thread.run_sync`` passes a limiter, a lock and two wake-ups of the run loop: 60 to 100 us, on
    a disk that syncs in 150 us.  Here the two sides wake each other by one ``eventfd`` each.
    """

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, name="triomq-flush", daemon=True)

    def __enter__(self) -> Self:
        self._wanted = os.eventfd(0, os.EFD_CLOEXEC)
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._action = None
        os.eventfd_write(self._wanted, _GO)
        self._thread.join()  # returns at once: the thread is idle outside of run()
        os.close(self._wanted)
        os.close(self._done)

    async def run(self, action: Callable[[], None]) -> None:
        """Call ``action`` in the thread and wait for its end, even if cancelled.  Its exception is raised here."""
        self._action = action
        os.eventfd_write(self._wanted, _GO)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._done)
        os.eventfd_read(self._done)
        error, self._error = self._error, None
        if error is not None:
            raise error
        await trio.lowlevel.checkpoint_if_cancelled()

    def _work(self) -> None:
        while os.eventfd_read(self._wanted) and (action := self._action) is not None:
            try:
                action()
            except Exception as exc:  # noqa: BLE001  # boundary: it is raised again in run()
                self._error = exc
            finally:
                os.eventfd_write(self._done, _GO)


class _Waiting(NamedTuple):
    end_offset: int  # the answers may leave when the log is flushed up to here
    deadline: float
    connection: Connection
    answers: bytes  # whole frames


class GroupCommit:
    """Senders that wait for the disk: one fdatasync answers all senders before it."""

    def __init__(self, store: MessageStore, worker: Worker, timeout_s: float, statistics: BrokerStatistics) -> None:
        self._store = store
        self._statistics = statistics
        self._worker = worker
        self._timeout_s = timeout_s
        self._waiting: deque[_Waiting] = deque()
        self._wanted = Signal()
        self._expected = 0  # answers that waited at the end of the last flush
        self._flush_s = 0.0  # how long it took

    @property
    def waiting(self) -> int:
        """Number of answers that wait for the disk."""
        return len(self._waiting)

    def defer(self, connection: Connection, answers: bytes) -> None:
        """Send whole frames when everything stored so far is on disk."""
        deadline = trio.current_time() + self._timeout_s
        end_offset = self._store.commit_log.max_offset
        self._waiting.append(_Waiting(end_offset, deadline, connection, answers))
        self._wanted.set()

    def wake(self) -> None:
        """Flush soon although no sender waits: consumers see messages only after the flush."""
        self._wanted.set()

    async def run(self) -> None:
        """Flush whenever a sender waits, until cancelled."""
        with FlushThread() as thread:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_deadlines)
                await self._flush_groups(thread)

    async def _flush_groups(self, thread: FlushThread) -> None:
        runs = FlushRuns(self._store, thread.run, self._statistics.flushes)
        while True:
            await self._wanted.wait()
            await self._gather()
            self._wanted.clear()  # before the flush: senders that arrive during it wait for the next one
            plan = self._store.flush_plan()
            if plan is not None:
                begin = trio.current_time()
                if not await runs.run(plan):
                    await trio.sleep(_RETRY_S)
                    self._wanted.set()
                    continue
                self._flush_s = trio.current_time() - begin
                self._store.dispatch_flushed()
            self._expected = len(self._waiting)
            self._answer(self._store.commit_log.flushed_offset)
            self._worker.end_step()

    async def _gather(self) -> None:
        """Wait shortly until as many senders have joined as the previous flush answered.

        These usually send again at once.  Without waiting there would be two groups, each of which also waits for the
        flush of the other; and a flush costs as much CPU as several sends.
        """
        begin = trio.current_time()
        wait_until = begin + self._flush_s * _MAX_WAIT
        deadline = max(begin + _BUSY_S, wait_until)
        while (waiting := len(self._waiting)) < self._expected and trio.current_time() < deadline:
            await trio.lowlevel.checkpoint()
            if len(self._waiting) == waiting:  # the event loop is idle
                if trio.current_time() >= wait_until:
                    return
                self._wanted.clear()
                with trio.move_on_at(wait_until):
                    await self._wanted.wait()

    def _answer(self, flushed_offset: int) -> None:
        waiting, observe = self._waiting, self._statistics.sends.observe
        began = trio.current_time() + self._timeout_s
        while waiting and waiting[0].end_offset <= flushed_offset:
            entry = waiting.popleft()
            observe(began - entry.deadline)
            entry.connection.send_frame(entry.answers)

    async def _watch_deadlines(self) -> None:
        """Answer FLUSH_DISK_TIMEOUT (stored, but not known to be durable) to senders that waited too long."""
        while True:
            await trio.sleep(_TIMEOUT_CHECK_S)
            now = trio.current_time()
            while self._waiting and self._waiting[0].deadline < now:
                entry = self._waiting.popleft()
                LOGGER.warning("flush timed out peer=%s", entry.connection.peer)
                for frame in FrameSplitter().split(entry.answers)[0]:
                    response = RemotingCommand.decode(frame)
                    response.code = ResponseCode.FLUSH_DISK_TIMEOUT
                    response.remark = "the message is stored, but the disk did not confirm it in time"
                    entry.connection.send(response)
            self._worker.end_step()


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
