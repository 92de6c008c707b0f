"""The reader reads ready connections in rounds.  The connections are fakes on real sockets."""

import socket
from collections.abc import Callable, Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq.broker.network.connection import Connection
from triomq.broker.network.connection_reader import ConnectionReader
from triomq.broker.server import Broker


class Peer(Connection):
    """A connection that keeps the bytes that it reads."""

    __slots__ = ("is_open", "on_read", "reader", "received", "remote", "socket")

    def __init__(self, reader: ConnectionReader) -> None:
        self.reader = reader
        self.socket, self.remote = socket.socketpair()
        self.socket.setblocking(False)
        self.received: list[bytes] = []
        self.is_open = True
        self.on_read: Callable[[], object] = lambda: None

    def fileno(self) -> int:
        return self.socket.fileno()

    def read(self) -> None:
        self.received.append(self.socket.recv(100))
        self.on_read()

    def close(self, reason: str = "", *, closed_by_peer: bool = False) -> None:
        self.is_open = False
        self.reader.remove(self)
        self.socket.close()
        self.remote.close()


@pytest.fixture
def reader(broker: Broker) -> ConnectionReader:
    return broker.context.reader


@pytest.fixture
def peers(reader: ConnectionReader) -> Iterator[list[Peer]]:
    made = [Peer(reader) for _ in range(3)]
    yield made
    for peer in made:
        peer.close()


async def test_removed_connection_is_read_when_added_again(
    reader: ConnectionReader, peers: list[Peer], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reader.run, peers)
    peer = peers[0]
    reader.add(peer)
    reader.remove(peer)
    reader.remove(peer)
    peer.remote.send(b"a")
    await wait_all_tasks_blocked()
    assert peer.received == []
    reader.add(peer)
    await wait_all_tasks_blocked()
    assert peer.received == [b"a"]


async def test_connection_added_after_the_end_is_closed(reader: ConnectionReader, peers: list[Peer]) -> None:
    """A slave may connect while its master stops."""
    with trio.move_on_after(0):
        await reader.run(())
    reader.add(peers[0])
    assert [peer.is_open for peer in peers] == [False, True, True]


async def test_connection_closed_within_a_round_is_not_read(
    reader: ConnectionReader, peers: list[Peer], nursery: trio.Nursery
) -> None:
    """All three have sent something before the first of them is read, and that one closes the others."""

    def close_others(reading: Peer) -> None:
        for peer in peers:
            if peer is not reading:
                peer.close()

    for peer in peers:
        reader.add(peer)
        peer.remote.send(b"a")
        peer.on_read = lambda peer=peer: close_others(peer)  # type: ignore[misc]
    nursery.start_soon(reader.run, peers)
    await wait_all_tasks_blocked()
    assert sum(len(peer.received) for peer in peers) == 1


async def test_busy_peers_do_not_starve_other_tasks(
    reader: ConnectionReader, peers: list[Peer], nursery: trio.Nursery
) -> None:
    for peer in peers:
        reader.add(peer)
        peer.on_read = lambda peer=peer: peer.remote.send(b"more")  # type: ignore[misc]
        peer.remote.send(b"more")
    nursery.start_soon(reader.run, peers)
    for _ in range(10):
        before = len(peers[0].received)
        await trio.lowlevel.checkpoint()
        assert len(peers[0].received) <= before + 3
    while min(len(peer.received) for peer in peers) < 5:  # bounded by the test's timeout
        await trio.lowlevel.checkpoint()


async def test_long_round_shows_its_age_and_takes_turns(
    reader: ConnectionReader, peers: list[Peer], nursery: trio.Nursery
) -> None:
    """Each read takes 5 ms by the clock; all three peers are ready in each of three rounds."""
    now = 10.0
    order: list[int] = []
    other = -1

    def read(peer: Peer) -> None:
        nonlocal now
        order.append(peers.index(peer))
        now += 0.005

    async def note_turns() -> None:
        while True:
            order.append(other)
            await trio.lowlevel.checkpoint()

    sinces = []
    reader._worker.clock = lambda: now
    nursery.start_soon(reader.run, peers)
    for peer in peers:
        reader.add(peer)
        peer.on_read = lambda peer=peer: read(peer)  # type: ignore[misc]
    for _ in range(3):
        for peer in peers:
            peer.remote.send(b"a")
        await wait_all_tasks_blocked()
        sinces.append(round(now - reader.arrived_after, 3))
    assert sinces == [0.015, 0.03, 0.03]
    assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]
    assert len({order[0], order[3], order[6]}) == 3  # a different one is first
    order.clear()
    for peer in peers:
        peer.remote.send(b"a")
    nursery.start_soon(note_turns)
    while len(order) - order.count(other) < 3:
        await trio.lowlevel.checkpoint()
    reads = [position for position, each in enumerate(order) if each != other]
    assert other in order[reads[0] : reads[2]]


async def test_connection_that_cannot_be_polled_is_closed(
    reader: ConnectionReader, peers: list[Peer], nursery: trio.Nursery
) -> None:
    """As when the system's table of watched sockets is full."""
    reader.add(peers[1])
    reader.add(peers[1])  # refused with EEXIST
    assert not peers[1].is_open
    nursery.start_soon(reader.run, peers)
    peers[2].remote.send(b"a")
    reader.add(peers[2])
    await wait_all_tasks_blocked()
    assert peers[2].received == [b"a"]


class _IoWaits(trio.abc.Instrument):
    """Counts how often the run loop waits for I/O."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize(("lingers", "waiting", "fewer"), [(True, 0, True), (False, 0, False), (True, 1, False)])
async def test_reader_lingers_if_no_request_waits(
    broker: Broker, peers: list[Peer], nursery: trio.Nursery, lingers: bool, waiting: int, fewer: bool
) -> None:
    reader, peer, waits, done = broker.context.reader, peers[0], _IoWaits(), trio.Event()
    reader.lingers, broker.worker.waiting = lingers, waiting

    def send_again() -> None:
        if len(peer.received) < 10:
            peer.remote.send(b"a")
        else:
            done.set()

    peer.on_read = send_again
    reader.add(peer)
    peer.remote.send(b"a")
    trio.lowlevel.add_instrument(waits)
    nursery.start_soon(reader.run, peers)
    await done.wait()
    trio.lowlevel.remove_instrument(waits)
    assert (waits.count < 10) == fewer
