"""Measures the disk, and deletes files that are too old or too many.

Rules: one file after the other with a pause between, and queues in portions, so that requests are served meanwhile;
what waits for the disk runs in a worker thread.  A disk that refuses to delete or to read a file ends nothing: the run
goes on with what does not need it, and the next one tries again.

Source: store.md 5.10; DefaultMessageStore.java, addScheduleTask.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from triomq.protocol.errors import StoreError
from triomq.storage.retention import Deletion, Retention

if TYPE_CHECKING:
    from triomq.broker.server import Broker
    from triomq.storage.consume_queue.consume_queue import ConsumeQueue

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
        """Do one run; what the disk refuses keeps nothing else from being done.

        Raises:
            StoreError: what the disk refused first; the next run tries all of it again.
        """
        retention = self.retention
        refusals: list[StoreError] = []
        if retention.held:
            with _noted(refusals):
                await trio.to_thread.run_sync(retention.finish_held)
        with _noted(refusals):
            await self._delete_log_files()
        if retention.is_behind:
            refused: dict[ConsumeQueue, StoreError] = {}
            behind = retention.queues_behind
            for at in range(0, len(behind), _QUEUES_AT_ONCE):
                await self._follow_with(behind[at : at + _QUEUES_AT_ONCE], refused)
            refusals += refused.values()
            with _noted(refusals):
                retention.follow(refused)
        if refusals:
            raise refusals[0]

    async def _delete_log_files(self) -> None:
        for number, reason in enumerate(self.retention.plan()):
            if number:
                await trio.sleep(self._broker.store.config.delete_files_interval_s)
            await self._finish(self.retention.delete_log_file(reason))

    async def _follow_with(self, queues: "Sequence[ConsumeQueue]", refused: "dict[ConsumeQueue, StoreError]") -> None:
        """Let queues begin where the log does; if one of them cannot be read or cut, the others do all the same."""
        retention = self.retention
        try:
            if (read := retention.reading_for(queues)) is not None:
                await trio.to_thread.run_sync(read)
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
def _noted(refusals: list[StoreError]) -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        refusals.append(exc)
