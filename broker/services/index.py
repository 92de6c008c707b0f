"""Indexes messages behind the backs of senders: some times a second, in slices between the steps of others.

Nobody waits for it, because a search first goes on to the end of the log itself.  So while messages come or go in
crowds it stays behind, up to a limit, and makes up for that when there are fewer.  What has to be indexed again is old,
and read in a thread first.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from triomq.protocol.errors import StoreError
from triomq.storage.reading.cold_read import read_ranges

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.index")

_INTERVAL_S: Final = 0.1
_CROWD: Final = 1_000  # messages in this time
_MAX_LAG_BYTES: Final = 256 * 1024**2  # of the log: less than a second's work, and still in memory


class Indexing:
    """Lets the index of the store follow the commit log."""

    def __init__(self, broker: "Broker") -> None:
        self._index = broker.store.index
        self._statistics = broker.statistics
        self._is_refused = False

    async def run(self) -> None:
        """Index until cancelled."""
        while True:
            before = self._passed()
            await trio.sleep(_INTERVAL_S)
            await self._follow(_MAX_LAG_BYTES if self._passed() - before > _CROWD else 0)

    async def _follow(self, allowed_lag_bytes: int) -> None:
        """Index until no more than this is left, or a crowd comes while all would have been done."""
        before = self._passed()
        while self._index.lag_bytes > allowed_lag_bytes and await self._catch_up():
            await trio.lowlevel.checkpoint()
            if not allowed_lag_bytes and self._passed() - before > _CROWD:
                return

    def _passed(self) -> int:
        return self._statistics.put_messages + self._statistics.get_messages

    async def _catch_up(self) -> bool:
        try:
            is_more_left = await self._step()
        except StoreError as exc:  # sending goes on, and so does the next try
            if not self._is_refused:
                LOGGER.error("messages are not indexed for now: %s", exc)
            self._is_refused = True
            return False
        self._is_refused = False
        return is_more_left

    async def _step(self) -> bool:
        step = self._index.follow()
        while True:
            try:
                ranges = next(step)
            except StopIteration as done:
                return bool(done.value)
            await trio.to_thread.run_sync(read_ranges, ranges)
