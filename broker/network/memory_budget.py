"""A budget for what peers make the broker hold, so that no number of them can take all memory.

Two kinds count.  What a peer leaves unread, unfinished or unserved is *held* for it: where the budget is exceeded, the
peers for whom most is held are given up.  What waits for something else, such as a held pull, is *reserved*: where too
little is left, it is refused.
"""

import logging
from typing import Final, Protocol

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.network.memory_budget")

#: Less is not counted: nearly every read ends within a frame.
UNCOUNTED_BYTES: Final = 1024
_SIZES: Final = 64  # powers of 2


class Holder(Protocol):
    """A peer for whom something is held.

    Attributes:
        peer: its name in the log.
        held_bytes: as the budget counts it; only the budget changes it.
    """

    peer: str
    held_bytes: int

    def give_up(self) -> None:
        """Drop at once all that is held, which is not counted any more; close the connection in a later step."""


class MemoryBudget:
    """Counts what is held and reserved.

    Attributes:
        limit_bytes: of all together; reservations may take half.
        held_bytes: what is held now.
        reserved_bytes: what is reserved now; whoever waits adds to it, and subtracts again.
    """

    def __init__(self, limit_bytes: int, statistics: BrokerStatistics) -> None:
        self.limit_bytes: Final = limit_bytes
        self.held_bytes = 0
        self.reserved_bytes = 0
        self._statistics = statistics
        self._log = EventLog(
            LOGGER,
            "memory budget is used up: %d bytes, connections closed since the start: %d; the last one peer=%s held "
            "%d bytes that it does not read or finish",
            logging.WARNING,
        )
        # By the number of bits of what is held, so that nobody is searched for; first those who have held it longest.
        self._holders: Final[list[dict[Holder, None]]] = [{} for _ in range(_SIZES)]

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Count what is held for a peer now; if that is too much, give up those for whom most is held."""
        self._count(holder, size_bytes if size_bytes >= UNCOUNTED_BYTES else 0)
        while self.held_bytes and self.held_bytes + self.reserved_bytes > self.limit_bytes:
            self._give_up(next(iter(next(filter(None, reversed(self._holders))))))

    def _count(self, holder: Holder, size_bytes: int) -> None:
        before, holder.held_bytes = holder.held_bytes, size_bytes
        self.held_bytes += size_bytes - before
        old, new = before.bit_length(), size_bytes.bit_length()
        if old != new:
            if before:
                del self._holders[old][holder]
            if size_bytes:
                self._holders[new][holder] = None

    def _give_up(self, holder: Holder) -> None:
        size = holder.held_bytes
        self._statistics.given_up_peers += 1
        self._count(holder, 0)
        holder.give_up()
        self._log.occurred(self.limit_bytes, self._statistics.given_up_peers, holder.peer, size)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be reserved; else what needs it must be refused."""
        reserved = self.reserved_bytes + size_bytes
        return reserved <= self.limit_bytes // 2 and self.held_bytes + reserved <= self.limit_bytes
