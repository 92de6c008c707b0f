"""A unit of a consume queue: the place of the n-th message of a queue in the commit log.

Source: ConsumeQueue.java; store.md 3.1 and 3.5.
"""

from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.message_queue import PhysicalOffset

UNIT: Final = Struct(">qiq")
"""Physical offset, size of the record, tags code; ``UNIT.iter_unpack`` reads many at once."""

UNIT_SIZE: Final = UNIT.size

HALVED_UNIT: Final = Struct(">qiii")
"""The same with the two halves of the tags code apart: filters compare the lower one, see ``REPEATED``."""

BLANK_SIZE: Final = 0x7FFF_FFFF
"""The size in a unit without a record; no record is that long."""

_BLANK: Final = (0, BLANK_SIZE, 0)

BLANK_UNIT: Final = UNIT.pack(*_BLANK)
"""Fills a file before its first message: its size is above 0, so recovery counts it, and its offset 0 hides it."""

REPEATED: Final = 0x7FFF_FFFF
"""Upper half of the tags code of a unit that repeats a later record because its own is lost (``lost_units``).

The lower half, the only one that filters compare, is 0, as for a message without tags.
"""

REPEATED_CODE: Final = REPEATED << 32


class ConsumeQueueUnit(NamedTuple):
    """One unit; one with ``size`` 0 ends the queue."""

    physical_offset: PhysicalOffset
    size: int
    tags_code: int  # of a delayed message: its delivery time in ms

    @property
    def is_lost(self) -> bool:
        """Whether it replaces a lost message, or precedes the first one of its file."""
        return self.tags_code == REPEATED_CODE or self == _BLANK
