"""How far messages with a time of their own are delivered."""

import logging
from collections.abc import Callable
from typing import Final

from triomq.broker.delayed.timer_index import Due
from triomq.protocol.errors import StoreLayoutError
from triomq.storage.files.json_table import JsonTable, encode

LOGGER: Final = logging.getLogger("triomq.broker.delayed.timer_progress")

_NOTHING: Final = (-1, -1)


class TimerProgress:
    """The last message that was delivered: all that were due before it are, too.

    Attributes:
        done: its time, ms, and queue offset.
        first_offset: no message before this queue offset waits, as it was when the file was written.
    """

    def __init__(self, table: JsonTable, first_offset: Callable[[], int]) -> None:
        """Describe the table, which is kept in ``table``; ``first_offset`` is asked when it is written."""
        self._table = table
        self._first_offset = first_offset
        self.done: Due = _NOTHING
        self.first_offset = 0
        self.is_dirty = False

    def load(self) -> None:
        """Read the saved progress.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold something else.
        """
        saved = self._table.load()
        if saved is None:
            return
        try:
            self.done = int(saved["timeMs"]), int(saved["queueOffset"])
            self.first_offset = max(int(saved["firstOffset"]), 0)
        except (KeyError, TypeError, ValueError) as exc:
            raise StoreLayoutError(f"timerProgress.json holds something else than progress: {exc!r}") from exc

    def restrict(self, end: int) -> None:
        """Take back what is behind the end of the queue, as ``ConsumerOffsetTable.restrict`` does.

        Messages that come now get these numbers, and wait; so all that there are have to be looked at again.
        """
        time_ms, queue_offset = self.done
        if max(queue_offset + 1, self.first_offset) > end:
            LOGGER.warning(
                "timer progress taken back queue_offset=%d first_offset=%d end=%d", queue_offset, self.first_offset, end
            )
            self.done = time_ms, min(queue_offset, end - 1)
            self.first_offset = 0
            self.is_dirty = True

    def encode(self) -> bytes:
        """Return the file as it shall be now."""
        time_ms, queue_offset = self.done
        return encode({"timeMs": time_ms, "queueOffset": queue_offset, "firstOffset": self._first_offset()})

    def write(self, content: bytes) -> None:
        """Write what :meth:`encode` returned; may run in a worker thread."""
        self._table.write(content)

    def set(self, done: Due) -> None:
        """Note that everything up to ``done`` is delivered."""
        if done > self.done:
            self.done = done
            self.is_dirty = True
