"""Measures the disk, and deletes files that are too old or too many.

Rules: one file after the other with a pause between, and queues in portions, so that requests are served meanwhile;
what waits for the disk runs in a worker thread.  A disk that refuses to delete ends nothing: the next run tries again.

Source: store.md 5.10; DefaultMessageStore.java, addScheduleTask.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from triomq.protocol.errors import StoreError
from triomq.storage.retention import Deletion, Retention

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.retention")

_FIRST_MEASUREMENT_S: Final = 1.0
_QUEUES_AT_ONCE: Final = 256


class RetentionService:
    """Keeps ``Retention`` going.

    Attributes:
        retention: what does the work.
    """

    def __init__(self, broker: "Broker") -> None:
        self.retention: Final = Retention(broker.store, (broker.store.index.delete_expired,))
        self._broker = broker
        self._is_refused = False
        self._requested = trio.Event()

    def request(self) -> None:
        """Delete files that are too old now, whatever the hour, and for the next runs."""
        self.retention.request()
        self._requested.set()

    async def run(self) -> None:
        """Work until cancelled."""
        config = self._broker.config
        first_run = trio.current_time() + config.retention_delay_s
        await self._sleep(_FIRST_MEASUREMENT_S)
        while True:
            try:
                if self._requested.is_set() or trio.current_time() >= first_run:
                    self._requested = trio.Event()
                    await self.clean()
                    self._is_refused = False
                else:
                    self._broker.store.check_disk()
            except StoreError as exc:
                if not self._is_refused:
                    LOGGER.warning("old files are not deleted for now: %s", exc)
                self._is_refused = True
            await self._sleep(config.store.clean_interval_s)

    async def _sleep(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._requested.wait()

    async def clean(self) -> None:
        """Do one run.

        Raises:
            StoreError: the disk refuses; the next run goes on.
        """
        retention, store = self.retention, self._broker.store
        for number, reason in enumerate(retention.plan()):
            if number:
                await trio.sleep(store.config.delete_files_interval_s)
            await self._finish(retention.delete_log_file(reason))
        if retention.is_behind:
            every = list(store.queues)
            for queues in (every[at : at + _QUEUES_AT_ONCE] for at in range(0, len(every), _QUEUES_AT_ONCE)):
                if (read := retention.reading_for(queues)) is not None:
                    await trio.to_thread.run_sync(read)
                retention.correct_queues(queues)
                await trio.lowlevel.checkpoint()
                while deletion := retention.delete_queue_files(queues):
                    await self._finish(deletion)
            retention.follow()
        if retention.held:
            await trio.to_thread.run_sync(retention.finish_held)

    async def _finish(self, deletion: Deletion) -> None:
        if not await trio.to_thread.run_sync(deletion.finish):
            self.retention.held.append(deletion)
