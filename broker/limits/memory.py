"""How much memory peers may make the broker hold.

Two kinds count.  Memory is *held* for a peer while it leaves answers unread or frames unfinished, or its requests are
not served yet.  Above the limit, the peers that hold the most are given up.  Memory is *reserved* for requests that
wait, such as held pulls.  They are refused if too little is left.
"""

import logging
from typing import Final, Protocol

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.event_log import EventLog

LOGGER: Final = logging.getLogger("triomq.broker.limits.memory")

#: Less is not counted: nearly every read ends within a frame.
UNCOUNTED_BYTES: Final = 1024
_SIZES: Final = 64  # powers of 2


class Holder(Protocol):
    """A peer for which memory is held.

    Attributes:
        peer: its name in the log.
        held_bytes: as the budget counts it; only the budget changes it.
    """

    peer: str
    held_bytes: int

    def give_up(self) -> None:
        """Free the held memory at once, which no longer counts; close the connection in a later step."""


class Reader(Protocol):
    """A peer that gets answers or requests."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that it has not read yet."""


class MemoryBudget:
    """Counts held and reserved memory.

    Attributes:
        limit_bytes: of all together; reservations may take half.
        unread_high_bytes: a peer that leaves more unread gets no further answers.
        held_bytes: held at the moment.
        reserved_bytes: reserved at the moment; users add to it, and subtract again.
    """

    def __init__(self, limit_bytes: int, unread_high_bytes: int, statistics: BrokerStatistics) -> None:
        self.limit_bytes: Final = limit_bytes
        self.unread_high_bytes: Final = unread_high_bytes
        self.held_bytes = 0
        self.reserved_bytes = 0
        self._statistics = statistics
        self._log = EventLog(
            LOGGER,
            "memory budget is used up: %d bytes, connections closed since the start: %d; the last one peer=%s held "
            "%d bytes that it does not read or finish",
            logging.WARNING,
        )
        # By the bit length of ``held_bytes``, which saves a search; the oldest first.
        self._holders: Final[list[dict[Holder, None]]] = [{} for _ in range(_SIZES)]

    def is_read_by(self, peer: Reader) -> bool:
        """Whether a peer reads its answers, so that it may get more."""
        return peer.unread_bytes <= self.unread_high_bytes

    def check_reads(self, peer: Reader) -> None:
        """Check that a peer reads its answers.

        Raises:
            RefusedError: too much is unread.
        """
        if not self.is_read_by(peer):
            text = f"the receiver has not read {peer.unread_bytes} bytes: try again later"
            raise RefusedError(text, ResponseCode.SYSTEM_BUSY)

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Set the held memory of a peer; above the limit, give up the peers that hold the most."""
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
        """Whether this much may be reserved; refuse what needs it otherwise."""
        reserved = self.reserved_bytes + size_bytes
        return reserved <= self.limit_bytes // 2 and self.held_bytes + reserved <= self.limit_bytes
