"""One entry of a consume queue: where the n-th message of a queue is in the commit log.

Source: ConsumeQueue.java; store.md 3.1 and 3.5.
"""

from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.units import PhysicalOffset

UNIT: Final = Struct(">qiq")
"""Physical offset, size of the record, tags code; ``UNIT.iter_unpack`` reads many at once."""

UNIT_SIZE: Final = UNIT.size

HALVED_UNIT: Final = Struct(">qiii")
"""The same with the two halves of the tags code apart: filters compare the lower one, see ``REPEATED``."""

BLANK_SIZE: Final = 0x7FFF_FFFF
"""Of a unit that names no record; none is so long."""

_BLANK: Final = (0, BLANK_SIZE, 0)

BLANK_UNIT: Final = UNIT.pack(*_BLANK)
"""Fills a file before its first message: size > 0, so recovery counts it, and offset 0, so it stays hidden."""

REPEATED: Final = 0x7FFF_FFFF
"""Upper half of the tags code of a unit that names the record of a later one, as its own is lost: ``lost_units``.

The lower half, which alone is compared with the tags that are wanted, is 0, as of a message without tags.
"""

REPEATED_CODE: Final = REPEATED << 32


class ConsumeQueueUnit(NamedTuple):
    """One entry; a unit with ``size`` 0 ends the queue."""

    physical_offset: PhysicalOffset
    size: int
    tags_code: int  # of a delayed message: its delivery time in ms

    @property
    def is_lost(self) -> bool:
        """Whether it stands in the place of a lost message, or before the first one of its file."""
        return self.tags_code == REPEATED_CODE or self == _BLANK
