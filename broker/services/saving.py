"""Saves the tables: topics and groups at once when they change, but ten times a second at most, and offsets every 5 s.

An Apache broker that gets the store of a broker that was killed knows only the topics in the file.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from triomq.protocol.errors import StoreError

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.saving")

_PAUSE_S: Final = 0.1
_PAUSE_TO_WORK: Final = 20  # of 10,000 topics the event loop makes a file of 50 ms: then once a second
_RETRY_S: Final = 1.0


class TableSaving:
    """Writes what changed, in a worker thread; what the disk refuses is tried again later."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._changed = trio.Event()
        self._is_refused = False
        broker.topics.on_change = broker.subscription_groups.on_change = self._note_change

    async def run(self) -> None:
        """Work until cancelled."""
        interval_s = self._broker.config.persist_offsets_interval_s
        persist_at = trio.current_time() + interval_s
        while True:
            with trio.move_on_at(persist_at):
                await self._changed.wait()
            persist_at = trio.current_time() + interval_s
            self._changed = trio.Event()  # before they are encoded: a later change is saved after the pause
            await trio.sleep(await self._save())

    def _note_change(self) -> None:
        self._changed.set()

    async def _save(self) -> float:
        """Return how long to pause, s."""
        broker = self._broker
        encoding_s = 0.0
        refusal: StoreError | None = None
        for table in (broker.topics, broker.subscription_groups, broker.offsets):
            if table.is_dirty:
                begin = trio.current_time()
                content = table.encode()
                encoding_s += trio.current_time() - begin
                table.is_dirty = False
                try:
                    await trio.to_thread.run_sync(table.write, content)
                except trio.Cancelled:  # before a thread took it on: the broker's end makes up for it
                    table.is_dirty = True
                    raise
                except StoreError as exc:
                    table.is_dirty = True
                    refusal = exc
        if refusal is not None:
            self._changed.set()
            if not self._is_refused:
                LOGGER.error("tables are not saved for now: %s", refusal)
        self._is_refused = refusal is not None
        return _RETRY_S if refusal is not None else max(_PAUSE_S, encoding_s * _PAUSE_TO_WORK)
