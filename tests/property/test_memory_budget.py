"""The budget is never exceeded, and who reads and finishes, or holds less than others, is never given up."""

import logging
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.broker.limits.peers import UNCOUNTED_BYTES, MemoryBudget
from triomq.broker.statistics.counters import BrokerStatistics

LIMIT = 64 * 1024


@dataclass(eq=False)
class Peer:
    """Holds some memory; when it must give up, it remembers the memory of the others."""

    others: "list[Peer]"
    peer: str = "peer"
    held_bytes: int = 0
    size: int = 0
    given_up: list[int] = field(default_factory=list)

    def give_up(self) -> None:
        most = max(peer.size for peer in self.others)
        self.given_up.append(self.size)
        assert 2 * self.size > most
        self.size = 0


def budget_and_peers(count: int = 8) -> tuple[MemoryBudget, list[Peer]]:
    peers: list[Peer] = []
    peers += [Peer(peers) for _ in range(count)]
    return MemoryBudget(LIMIT, LIMIT, BrokerStatistics(0)), peers


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2 * LIMIT)), max_size=60),
    st.integers(0, LIMIT // 2),
)
def test_what_is_held_stays_within_the_budget(changes: list[tuple[int, int]], reserved: int) -> None:
    budget, peers = budget_and_peers()
    assert budget.has_room(reserved)
    budget.reserved_bytes += reserved
    for number, size in changes:
        peer = peers[number]
        peer.size = size
        budget.hold(peer, size)
        counted = [peer.size for peer in peers if peer.size >= UNCOUNTED_BYTES]
        assert budget.held_bytes == sum(counted) == sum(peer.held_bytes for peer in peers)
        assert budget.held_bytes + reserved <= LIMIT
        assert not budget.has_room(LIMIT - budget.held_bytes - reserved + 1)
    assert all(size >= UNCOUNTED_BYTES for peer in peers for size in peer.given_up)
    assert sum(len(peer.given_up) for peer in peers) == budget._statistics.given_up_peers


def test_equal_holders_are_closed_in_order() -> None:
    budget, peers = budget_and_peers(LIMIT // (UNCOUNTED_BYTES * 16) + 1)
    for peer in peers:
        peer.size = UNCOUNTED_BYTES * 16
        budget.hold(peer, peer.size)
    assert [bool(peer.given_up) for peer in peers] == [True, *[False] * (len(peers) - 1)]


def test_closed_slow_reader_is_logged_with_address(caplog: pytest.LogCaptureFixture) -> None:
    budget = MemoryBudget(LIMIT, LIMIT, BrokerStatistics(0))
    peers: list[Peer] = []
    peers.append(Peer(peers, "192.0.2.1:5000"))
    for _ in range(2):
        peers[0].size = LIMIT + 1
        budget.hold(peers[0], LIMIT + 1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "192.0.2.1:5000" in caplog.text
    assert "connections closed since the start: 1" in caplog.text
