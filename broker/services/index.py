"""Indexes messages in the background: several times a second, in slices between other steps.

Nothing depends on it, because a search first indexes the rest of the log itself.  So under load the index falls behind,
up to a limit, and catches up later.  Messages that must be indexed again are old, and are read in a thread first.
"""

import logging
from typing import Final

import trio

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.work import Worker
from triomq.protocol.errors import StoreError
from triomq.protocol.event_log import EventLog
from triomq.storage.index.message_index import MessageIndex

LOGGER: Final = logging.getLogger("triomq.broker.services.index")

_INTERVAL_S: Final = 0.1
_BUSY_MESSAGES: Final = 1_000  # sent and pulled in an interval
_MAX_LAG_BYTES: Final = 256 * 1024**2  # of the log: less than a second's work, and still in memory


class Indexing:
    """Indexes new messages of the commit log."""

    def __init__(self, index: MessageIndex, worker: Worker, statistics: BrokerStatistics) -> None:
        self._index = index
        self._worker = worker
        self._statistics = statistics
        self._log = EventLog(LOGGER, "messages are not indexed for now: %s")

    async def run(self) -> None:
        """Index until cancelled."""
        while True:
            before = self._messages()
            await trio.sleep(_INTERVAL_S)
            await self._follow(_MAX_LAG_BYTES if self._messages() - before > _BUSY_MESSAGES else 0)

    async def _follow(self, allowed_lag_bytes: int) -> None:
        """Index until no more than this is left, or the broker becomes busy while it would index everything."""
        before = self._messages()
        while self._index.lag_bytes > allowed_lag_bytes and await self._catch_up():
            await trio.lowlevel.checkpoint()
            if not allowed_lag_bytes and self._messages() - before > _BUSY_MESSAGES:
                return

    def _messages(self) -> int:
        return self._statistics.put_messages + self._statistics.get_messages

    async def _catch_up(self) -> bool:
        """Index a slice; return whether more is left."""
        try:
            is_more_left = await self._worker.run(self._index.follow(), urgent=True)
        except StoreError as exc:  # sending continues, and the next interval tries again
            self._log.occurred(exc)
            return False
        self._log.ended()
        return is_more_left
