"""Delivers delayed messages when they are due.

Rules: one task for all messages, which sleeps until the first one is due or an earlier one comes; a bounded number of
messages in each turn of the loop, so that no peer waits for long.

Source: behaviour.md A.5, store.md 8.3.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from triomq.broker.delayed.delivery import UNREADABLE_MS, Delivery
from triomq.broker.delayed.levels import Schedule
from triomq.broker.delayed.timer import Timer
from triomq.broker.services.flush import FlushRuns, GroupCommit
from triomq.broker.services.saving import TableSaving
from triomq.broker.work import Signal, Worker
from triomq.protocol.event_log import EventLog
from triomq.storage.message_store import MessageStore

LOGGER: Final = logging.getLogger("triomq.broker.delayed.service")

_MAX_MESSAGES: Final = 4096  # of one turn of the loop, some 10 ms: a send that comes meanwhile waits so long
_MAX_CALLS: Final = 16  # likewise, if messages are long: each call copies little more than a mebibyte
_MIN_SLEEP_S: Final = 0.01  # messages that are due within it are delivered together
_MAX_SLEEP_S: Final = 1.0  # the wall clock may be moved meanwhile


@dataclass(eq=False)
class ScheduledDelivery:
    """The task of ``Schedule`` and ``Timer``; ``saving`` writes their progress."""

    store: MessageStore
    schedule: Schedule
    timer: Timer
    delivery: Delivery
    arrived: Signal
    group_commit: GroupCommit | None
    worker: Worker
    clock_ms: Callable[[], int]

    def __post_init__(self) -> None:
        flushes = FlushRuns(self.store, trio.to_thread.run_sync, self.delivery.statistics.flushes)
        self.saving = TableSaving((self.schedule.offsets, self.timer.progress), self.worker, Signal(), flushes)
        self._reading_log = EventLog(LOGGER, "delayed messages cannot be read for now: %s")
        self._read_again_at = 0.0  # what could not be read

    async def run(self, save_interval_s: float) -> None:
        """Deliver until cancelled; save the progress at intervals."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.saving.run, save_interval_s)
            while True:
                await self._wait(await self._turn())

    async def _turn(self) -> float | None:
        """Deliver a bounded number of due messages; return what ``_deliver`` returns."""
        self.arrived.clear()
        delivered_before = self.delivery.delivered
        delivered = 0
        seconds: float | None = 0.0
        for _ in range(_MAX_CALLS):
            await self._load()
            seconds = self._deliver()
            delivered = self.delivery.delivered - delivered_before
            if seconds != 0 or delivered >= _MAX_MESSAGES:
                break
        if delivered:
            if self.group_commit is not None:
                self.group_commit.wake()
            self.worker.end_step()
        return seconds

    async def _load(self) -> None:
        """Read due messages that are on disk only, in a worker thread; unreadable ones are not delivered."""
        now_ms = self.clock_ms()
        is_retry = trio.current_time() >= self._read_again_at
        for source in (self.schedule, self.timer):
            await self.worker.run(source.prepare(now_ms, is_retry=is_retry), urgent=True)
        refusal = self.schedule.refusal or self.timer.refusal
        if refusal is None:
            self._reading_log.ended()
            return
        if is_retry:
            self._read_again_at = trio.current_time() + UNREADABLE_MS / 1000
        self._reading_log.occurred(refusal)

    def _deliver(self) -> float | None:
        """Deliver once; return how long nothing is due, s; ``None``: until a message comes."""
        now_ms = self.clock_ms()
        times = self.schedule.deliver(now_ms), self.timer.deliver(now_ms)
        next_ms = min((time for time in times if time is not None), default=None)
        return None if next_ms is None else max(next_ms - now_ms, 0) / 1000

    async def _wait(self, seconds: float | None) -> None:
        if seconds == 0:
            await trio.lowlevel.checkpoint()
        elif seconds is None:
            await self.arrived.wait()
        else:
            with trio.move_on_after(min(max(seconds, _MIN_SLEEP_S), _MAX_SLEEP_S)):
                await self.arrived.wait()
