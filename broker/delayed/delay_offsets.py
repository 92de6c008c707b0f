"""How far each delay level is delivered.

Source: store.md 6.6; ScheduleMessageService.java.
"""

import logging
from collections.abc import Callable, ItemsView
from typing import Final

from triomq.protocol.errors import StoreLayoutError
from triomq.protocol.names import SCHEDULE_TOPIC
from triomq.storage.files.json_table import JsonTable, encode

LOGGER: Final = logging.getLogger("triomq.broker.delayed.delay_offsets")

_MAX_QUEUE_OFFSET: Final = 2**63 - 1


class DelayOffsetTable:
    """Delay level, from 1, to the queue offset of its next message; only levels that have delivered something."""

    def __init__(self, table: JsonTable) -> None:
        self._table = table
        self._offsets: dict[int, int] = {}
        self.is_dirty = False

    def load(self) -> None:
        """Read the saved table.

        Raises:
            StoreLayoutError: the file and its previous generation cannot be read, or hold no offsets.
        """
        saved = self._table.load() or {}
        try:
            offsets = {int(level): int(offset) for level, offset in (saved.get("offsetTable") or {}).items()}
        except (AttributeError, TypeError, ValueError) as exc:
            raise StoreLayoutError(f"delayOffset.json holds something else than offsets: {exc}") from exc
        self._offsets = {level: min(max(offset, 0), _MAX_QUEUE_OFFSET) for level, offset in offsets.items()}

    def restrict(self, max_offset_of: Callable[[str, int], int]) -> int:
        """Take back offsets behind the end of their level's queue, as ``ConsumerOffsetTable.restrict`` does."""
        count = 0
        for level, offset in self._offsets.items():
            if offset > (most := max_offset_of(SCHEDULE_TOPIC, level - 1)):
                LOGGER.warning("delay offset taken back level=%d stored=%d end=%d", level, offset, most)
                self._offsets[level] = most
                count += 1
        self.is_dirty = self.is_dirty or count > 0
        return count

    def to_json(self) -> dict[str, object]:
        """Return the table as ``delayOffset.json`` and response 45 hold it."""
        return {"offsetTable": dict(self._offsets)}

    def encode(self) -> bytes:
        """Return the table's file as it shall be now."""
        return encode(self.to_json())

    def write(self, content: bytes) -> None:
        """Write what :meth:`encode` returned to the file; may run in a worker thread."""
        self._table.write(content)

    def get(self, level: int) -> int:
        """Return the queue offset of the level's next message."""
        return self._offsets.get(level, 0)

    def items(self) -> ItemsView[int, int]:
        """Return level and queue offset of its next message, of each level that has delivered something."""
        return self._offsets.items()

    def set(self, level: int, queue_offset: int) -> None:
        """Note that everything before ``queue_offset`` is delivered."""
        if self._offsets.get(level, 0) != queue_offset:
            self._offsets[level] = queue_offset
            self.is_dirty = True
