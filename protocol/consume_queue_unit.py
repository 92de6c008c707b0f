"""One entry of a consume queue: where the n-th message of a queue is in the commit log.

Source: ConsumeQueue.java; store.md 3.1 and 3.5.
"""

from struct import Struct
from typing import Final, NamedTuple

from triomq.protocol.units import PhysicalOffset

UNIT: Final = Struct(">qiq")
"""Physical offset, size of the record, tags code; ``UNIT.iter_unpack`` reads many at once."""

UNIT_SIZE: Final = UNIT.size

BLANK_UNIT: Final = UNIT.pack(0, 0x7FFF_FFFF, 0)
"""Fills a file before its first message: size > 0, so recovery counts it, and offset 0, so it stays hidden."""


class ConsumeQueueUnit(NamedTuple):
    """One entry; a unit with ``size`` 0 ends the queue."""

    physical_offset: PhysicalOffset
    size: int
    tags_code: int  # of a delayed message: its delivery time in ms
