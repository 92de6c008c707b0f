"""Delivers delayed messages when they are due, and saves how far it is.

Rules: one task for all messages, asleep until the first one is due or one comes that is due earlier; a bounded number
of messages in each turn of the loop, so that nobody else waits; the progress on the disk never runs ahead of the
delivered messages on the disk, so that a power loss repeats and does not lose.

Source: behaviour.md A.5, store.md 8.3.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from triomq.broker.delayed.delivery import UNREADABLE_MS
from triomq.broker.services.flush import FlushRuns
from triomq.protocol.errors import StoreError
from triomq.storage.reading.cold_read import Lookup, read_ranges

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.delayed.levels")

_MOST_MESSAGES: Final = 4096  # of one turn of the loop, some 10 ms: a send that comes meanwhile waits so long
_MOST_CALLS: Final = 16  # likewise, if messages are long: each call copies little more than a mebibyte
_MIN_SLEEP_S: Final = 0.01  # messages that are due within it are delivered together
_MAX_SLEEP_S: Final = 1.0  # the wall clock may be moved meanwhile


class ScheduledDelivery:
    """Keeps ``Broker.schedule`` and ``Broker.timer`` going."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._tables = (broker.schedule.offsets, broker.timer.progress)
        self._flushes = FlushRuns(broker, trio.to_thread.run_sync)
        self._is_saving_refused = False
        self._is_reading_refused = False
        self._read_again_at = 0.0  # what could not be read

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_offsets)
            while True:
                await self._wait(await self._turn())

    async def _turn(self) -> float | None:
        """Deliver what is due, a bounded number; return what ``_deliver`` does."""
        broker = self._broker
        broker.schedule.arrived = trio.Event()
        delivered_before = broker.delivery.delivered
        delivered = 0
        seconds: float | None = 0.0
        for _ in range(_MOST_CALLS):
            await self._load()
            seconds = self._deliver()
            delivered = broker.delivery.delivered - delivered_before
            if seconds != 0 or delivered >= _MOST_MESSAGES:
                break
        if delivered:
            if broker.group_commit is not None:
                broker.group_commit.wake()
            broker.end_step()
        return seconds

    async def _load(self) -> None:
        """Read what is due and on the disk only, in a worker thread; what the disk cannot read is not delivered."""
        schedule, timer = self._broker.schedule, self._broker.timer
        now_ms = self._broker.clock_ms()
        is_retry = trio.current_time() >= self._read_again_at
        for lookup in (schedule.prepare(now_ms, is_retry=is_retry), timer.prepare(now_ms, is_retry=is_retry)):
            await _read(lookup)
        refusal = schedule.refusal or timer.refusal
        if refusal is not None:
            if is_retry:
                self._read_again_at = trio.current_time() + UNREADABLE_MS / 1000
            if not self._is_reading_refused:
                LOGGER.error("delayed messages cannot be read for now: %s", refusal)
        self._is_reading_refused = refusal is not None

    def _deliver(self) -> float | None:
        """Deliver once; return for how long there is nothing to do, s, ``None``: until a message comes."""
        now_ms = self._broker.clock_ms()
        times = self._broker.schedule.deliver(now_ms), self._broker.timer.deliver(now_ms)
        next_ms = min((time for time in times if time is not None), default=None)
        return None if next_ms is None else max(next_ms - now_ms, 0) / 1000

    async def _wait(self, seconds: float | None) -> None:
        if seconds == 0:
            await trio.lowlevel.checkpoint()
        elif seconds is None:
            await self._broker.schedule.arrived.wait()
        else:
            with trio.move_on_after(min(max(seconds, _MIN_SLEEP_S), _MAX_SLEEP_S)):
                await self._broker.schedule.arrived.wait()

    async def _save_offsets(self) -> None:
        while True:
            await trio.sleep(self._broker.config.persist_delay_offsets_interval_s)
            if any(table.is_dirty for table in self._tables):
                await self._save()

    async def _save(self) -> None:
        """Write the offsets, but first the messages they say are delivered.

        Raises:
            StoreError: the log cannot be flushed: as for every flush, the broker ends.
        """
        broker = self._broker
        unsaved = {table: table.encode() for table in self._tables if table.is_dirty}
        for table in unsaved:
            table.is_dirty = False
        try:
            plan = broker.store.flush_plan()
            if plan is not None:
                if not await self._flushes.run(plan):
                    return
                broker.store.dispatch_flushed()
                broker.end_step()
            for table, content in list(unsaved.items()):
                try:
                    await trio.to_thread.run_sync(table.write, content)
                except StoreError as exc:
                    if not self._is_saving_refused:
                        LOGGER.error("progress of delayed messages is not saved for now: %s", exc)
                    self._is_saving_refused = True
                else:
                    self._is_saving_refused = False
                    del unsaved[table]
        finally:
            for table in unsaved:  # refused, or cancelled: the broker's end makes up for it
                table.is_dirty = True


async def _read(lookup: Lookup[None]) -> None:
    """Read what a lookup asks for, and tell it what the disk cannot read."""
    ranges = next(lookup, None)
    while ranges is not None:
        try:
            await trio.to_thread.run_sync(read_ranges, ranges)
        except StoreError as exc:
            with suppress(StopIteration):
                ranges = lookup.throw(exc)
                continue
            return
        ranges = next(lookup, None)
