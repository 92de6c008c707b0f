"""Delivers delayed messages when they are due, and saves how far it is.

Rules: one task for all messages, asleep until the first one is due or one comes that is due earlier; a bounded number
of messages in each turn of the loop, so that nobody else waits; the progress on the disk never runs ahead of the
delivered messages on the disk, so that a power loss repeats and does not lose.

Source: behaviour.md A.5, store.md 8.3.
"""

import logging
from itertools import chain
from typing import TYPE_CHECKING, Final

import trio

from triomq.protocol.errors import StoreError
from triomq.storage.cold_read import read_ranges

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.schedule")

_MIN_SLEEP_S: Final = 0.01  # messages that are due within it are delivered together
_MAX_SLEEP_S: Final = 1.0  # the wall clock may be moved meanwhile


class ScheduledDelivery:
    """Keeps ``Broker.schedule`` and ``Broker.timer`` going."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._tables = (broker.schedule.offsets, broker.timer.progress)
        self._is_saving_refused = False
        self._is_reading_refused = False

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_offsets)
            while True:
                if await self._load():
                    await self._wait(self._deliver())
                else:
                    await trio.sleep(_MAX_SLEEP_S)

    async def _load(self) -> bool:
        """Read what is due and on the disk only, in a worker thread; ``False`` if the disk cannot."""
        schedule, timer = self._broker.schedule, self._broker.timer
        now_ms = self._broker.clock_ms()
        try:
            for ranges in chain(schedule.prepare(now_ms), timer.prepare(now_ms)):
                await trio.to_thread.run_sync(read_ranges, ranges)
        except StoreError as exc:
            if not self._is_reading_refused:
                LOGGER.error("delayed messages cannot be read for now: %s", exc)
            self._is_reading_refused = True
            return False
        self._is_reading_refused = False
        return True

    def _deliver(self) -> float | None:
        """Deliver what is due; return for how long there is nothing to do, s, ``None``: until a message comes."""
        broker, schedule = self._broker, self._broker.schedule
        schedule.arrived = trio.Event()
        delivered_before = broker.delivery.delivered
        now_ms = broker.clock_ms()
        times = [time for time in (schedule.deliver(now_ms), broker.timer.deliver(now_ms)) if time is not None]
        if broker.delivery.delivered != delivered_before:
            if broker.group_commit is not None:
                broker.group_commit.wake()
            broker.end_step()
        return max(min(times) - now_ms, 0) / 1000 if times else None

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
        contents = [(table, table.encode()) for table in self._tables if table.is_dirty]
        for table, _ in contents:
            table.is_dirty = False
        plan = broker.store.flush_plan()
        if plan is not None:
            await trio.to_thread.run_sync(plan.run)
            broker.store.flush_done(plan)
            broker.store.dispatch_flushed()
            broker.end_step()
        for table, content in contents:
            try:
                await trio.to_thread.run_sync(table.write, content)
            except StoreError as exc:
                table.is_dirty = True
                if not self._is_saving_refused:
                    LOGGER.error("progress of delayed messages is not saved for now: %s", exc)
                self._is_saving_refused = True
            else:
                self._is_saving_refused = False
