"""Indexes messages behind the backs of senders: some times a second, in slices between the steps of others.

Nobody waits for it, because a search first goes on to the end of the log itself.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from triomq.protocol.errors import StoreError

if TYPE_CHECKING:
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.index")

_INTERVAL_S: Final = 0.1


class Indexing:
    """Lets the index of the store follow the commit log."""

    def __init__(self, broker: "Broker") -> None:
        self._index = broker.store.index
        self._is_refused = False

    async def run(self) -> None:
        """Index until cancelled."""
        is_more_left = False
        while True:
            await trio.sleep(0 if is_more_left else _INTERVAL_S)
            is_more_left = self._catch_up()

    def _catch_up(self) -> bool:
        try:
            is_more_left = self._index.catch_up()
        except StoreError as exc:  # sending goes on, and so does the next try
            if not self._is_refused:
                LOGGER.error("messages are not indexed for now: %s", exc)
            self._is_refused = True
            return False
        self._is_refused = False
        return is_more_left
