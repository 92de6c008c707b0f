"""Limits for each peer: connections, and memory.

Connections: one rule applies to all, whose number the open files limit, and to those with TLS among them, whose memory
is limited.  Quotas of accounts are in ``quotas.py``: only a request shows the account.

Memory: two kinds count.  It is *held* for a peer while that leaves answers unread or frames unfinished, or its requests
are not served yet, and for its groups and subscriptions.  Above the limit, the peers that hold the most are given up.
It is *reserved* for requests that wait, such as held pulls.  They are refused if too little is left.
"""

import logging
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from triomq.broker.addresses import limited_host
from triomq.broker.config import ConnectionConfig
from triomq.broker.limits.quotas import Quotas
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.event_log import EventLog
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.limits.peers")

#: OpenSSL's memory for a connection after its handshake.
TLS_SESSION_BYTES: Final = 40 * 1024
_OTHER_FILES: Final = 64  # listeners, index, files that threads open for a moment
_MIN_CONNECTIONS: Final = 64
_RESERVED_FOR_LOCAL: Final = 32  # one in so many
_RESERVED_FOR_OTHER_KIND: Final = 8  # one in so many


class NoPlace(NamedTuple):
    """Why a peer gets no place."""

    of_address: bool  # because of the other places of its address
    text: str


class Places:
    """A limited number of places, and the addresses that have them; see :func:`limited_host` for IPv6.

    No address takes all places.  The last 32nd is for this machine, so that an administrator still gets in.  Each of
    two kinds of peers leaves an eighth to the other.  An address of another machine has half of all at most, one of
    this machine as many as other machines together.  Without local peers none is kept for this machine.
    """

    def __init__(self, *, two_kinds: bool = False, local_peers: bool = True) -> None:
        self._two_kinds = two_kinds
        self._local_peers = local_peers
        self._by_kind: Counter[bool] = Counter()
        self._by_address: Counter[str] = Counter()

    def take(
        self, host: str, limit: int, *, is_local: bool, kind: bool = False, most: float | None = None
    ) -> NoPlace | None:
        """Take a place until :meth:`leave`, or return the reason why not.

        Args:
            host: the address of the peer.
            limit: number of all places.
            is_local: whether the peer is on this machine.
            kind: which of two kinds the peer is.
            most: how many places the address may have, instead of the usual number.
        """
        for_remote = limit - limit // _RESERVED_FOR_LOCAL * self._local_peers
        for_other_kind = limit // _RESERVED_FOR_OTHER_KIND if self._two_kinds else 0
        for_peer = limit if is_local else for_remote
        if most is None:
            most = for_remote - for_other_kind if is_local else max(limit // 2, 1)
        host = limited_host(host)
        total, of_address = self._by_kind.total(), self._by_address[host]
        if total >= for_peer or self._by_kind[kind] >= for_peer - for_other_kind:
            return NoPlace(False, f"{total} of at most {limit} are open")
        if of_address >= most:
            return NoPlace(True, f"{of_address} of at most {most} are open from there")
        self._by_kind[kind] += 1
        self._by_address[host] += 1
        return None

    def leave(self, host: str, *, kind: bool = False) -> None:
        """Free a place."""
        host = limited_host(host)
        self._by_kind[kind] -= 1
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]


@dataclass(eq=False)
class ConnectionLimits:
    """The connections of a server.  Those to a port for name servers only are one kind, all others another one.

    Attributes:
        files_of_store: returns how many files the store may open.
        quotas: may limit an address further.
        all: the places of all connections.
        with_tls: the places of those with TLS.
    """

    config: ConnectionConfig
    statistics: BrokerStatistics
    files_of_store: Callable[[], int]
    quotas: Quotas | None

    def __post_init__(self) -> None:
        self.all = Places(two_kinds=True, local_peers=self.config.local_peers)
        self.with_tls = Places(local_peers=self.config.local_peers)
        self._log = EventLog(
            LOGGER, "connections refused since the start: %d; the last one from %s: %s (%s)", logging.WARNING
        )

    def admits(self, host: str, *, is_local: bool, is_namesrv: bool) -> bool:
        """Return whether another connection is accepted; it counts until it leaves ``all``."""
        setting = "max_connections_per_address"
        most: float | None = None if is_local else self.config.max_connections_per_address or None
        quota = None if self.quotas is None else self.quotas.connections_of(host)
        if quota is not None:
            most, setting = quota, "connections in the quotas"
        full = self.all.take(host, self.limit(), is_local=is_local, kind=is_namesrv, most=most)
        if full is not None and not full.of_address:
            setting = f"max_connections {self.config.max_connections}, ulimit -n"
        return full is None or self._refused(host, full, setting)

    def admits_tls(self, host: str, *, is_local: bool) -> bool:
        """Return whether another connection may use TLS; it counts until it leaves ``with_tls``."""
        full = self.with_tls.take(host, self.config.memory_budget_bytes // TLS_SESSION_BYTES, is_local=is_local)
        return full is None or self._refused(host, full, "with TLS: memory_budget")

    def _refused(self, host: str, full: NoPlace, setting: str) -> bool:
        self.statistics.refused_connections += 1
        self._log.occurred(
            self.statistics.refused_connections, limited_host(host), full.text, setting, key=(full.of_address, setting)
        )
        return False

    def limit(self) -> int:
        """Return the largest number of open connections at the moment, given the limit of open files."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.config.max_connections
        left = files - self.files_of_store() - _OTHER_FILES
        return min(self.config.max_connections, max(left, _MIN_CONNECTIONS))


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

    peer: str
    closed: bool

    @property
    def unread_bytes(self) -> int:
        """Bytes that it has not read yet."""

    def send(self, command: RemotingCommand) -> None:
        """Queue an answer or a request."""


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
            "%d bytes by unread answers, unfinished requests and subscriptions",
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
            largest = next(iter(next(filter(None, reversed(self._holders)))))
            size = largest.held_bytes
            self._statistics.given_up_peers += 1
            self._count(largest, 0)
            largest.give_up()
            self._log.occurred(self.limit_bytes, self._statistics.given_up_peers, largest.peer, size)

    def _count(self, holder: Holder, size_bytes: int) -> None:
        before, holder.held_bytes = holder.held_bytes, size_bytes
        self.held_bytes += size_bytes - before
        old, new = before.bit_length(), size_bytes.bit_length()
        if old != new:
            if before:
                del self._holders[old][holder]
            if size_bytes:
                self._holders[new][holder] = None

    def has_room(self, size_bytes: int) -> bool:
        """Whether this much may be reserved; refuse what needs it otherwise."""
        reserved = self.reserved_bytes + size_bytes
        return reserved <= self.limit_bytes // 2 and self.held_bytes + reserved <= self.limit_bytes
