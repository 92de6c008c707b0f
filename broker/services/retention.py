"""Measures the disk, and deletes files that are too old or too many.

Rules: one file at a time with a pause in between, and queues in portions, so that requests are served meanwhile; what
waits for the disk runs in a worker thread.  If the disk refuses to delete or to read a file, the run continues with
everything else, and the next run tries again.

Source: store.md 5.10; DefaultMessageStore.java, addScheduleTask.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from triomq.broker.services.housekeeping import ClockWatch
from triomq.broker.work import Signal
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore
from triomq.storage.retention import Deletion, Retention

LOGGER: Final = logging.getLogger("triomq.broker.services.retention")

_FIRST_MEASUREMENT_S: Final = 1.0
_MAX_QUEUES: Final = 256


class RetentionService:
    """Runs ``Retention`` at intervals.

    Attributes:
        retention: what does the work.
    """

    def __init__(self, store: MessageStore, delay_s: float, clock_watch: ClockWatch) -> None:
        """The first run is ``delay_s`` after the start; ``clock_watch`` knows whether to believe the clock."""
        self.retention: Final = Retention(store, (store.index.delete_expired,))
        self._clock_watch = clock_watch
        self._store = store
        self._delay_s = delay_s
        self._log = EventLog(LOGGER, "old files are not deleted for now: %s", logging.WARNING)
        self._requested = Signal()

    def request(self) -> None:
        """Delete expired files now and in the next runs, whatever the hour."""
        self.retention.request()
        self._requested.set()

    async def run(self) -> None:
        """Work until cancelled."""
        first_run = trio.current_time() + self._delay_s
        await self._sleep(_FIRST_MEASUREMENT_S)
        while True:
            try:
                if self._requested.is_set() or trio.current_time() >= first_run:
                    self._requested.clear()
                    await self.clean()
                    self._log.ended()
                else:
                    self._store.check_disk()
            except StoreError as exc:
                self._log.occurred(exc)
            await self._sleep(self._store.config.clean_interval_s)

    async def _sleep(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._requested.wait()

    async def clean(self) -> None:
        """Do one run; a refusal of the disk does not keep the rest from being done.

        Raises:
            StoreError: the first refusal; the next run tries everything again.
        """
        retention = self.retention
        refusals: list[StoreError] = []
        if retention.held:
            with _collected(refusals):
                await trio.to_thread.run_sync(retention.finish_held)
        with _collected(refusals):
            for number, reason in enumerate(retention.plan(is_clock_trusted=self._clock_watch.is_trusted)):
                if number:
                    await trio.sleep(self._store.config.delete_files_interval_s)
                await self._finish(retention.delete_log_file(reason))
        if retention.is_behind:
            refused: dict[ConsumeQueue, StoreError] = {}
            behind = retention.queues_behind
            for at in range(0, len(behind), _MAX_QUEUES):
                await self._follow_with(behind[at : at + _MAX_QUEUES], refused)
            refusals += refused.values()
            with _collected(refusals):
                retention.follow(refused)
        if refusals:
            raise refusals[0]

    async def _follow_with(self, queues: Sequence[ConsumeQueue], refused: dict[ConsumeQueue, StoreError]) -> None:
        """Delete the units of deleted messages; a queue that cannot be read or cut does not affect the others."""
        retention = self.retention
        try:
            await trio.to_thread.run_sync(retention.reading_for(queues))
            retention.correct_queues(queues)
            await trio.lowlevel.checkpoint()
            while deletion := retention.delete_queue_files(queues):
                await self._finish(deletion)
        except StoreError as exc:
            if len(queues) == 1:
                refused[queues[0]] = exc
                return
            for queue in queues:
                await self._follow_with((queue,), refused)

    async def _finish(self, deletion: Deletion) -> None:
        is_done = False
        try:
            is_done = await trio.to_thread.run_sync(deletion.finish)
        finally:
            if not is_done:
                self.retention.held.append(deletion)


@contextmanager
def _collected(refusals: list[StoreError]) -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        refusals.append(exc)
