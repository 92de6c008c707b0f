"""Reads all connections in one task, in turns.

With a task for each connection, every read would cost a trip through the run loop and an ``epoll_ctl``, together more
than the read and its answer.  Instead, all connections are in one level-triggered ``epoll``, and the run loop waits
only for that.

The connections that are ready at one moment make a round, which takes several turns if it is long.  Each round begins
with another connection, because the last ones wait for all others.

A peer that waits for each answer sends its next request within a millisecond.  A trip through the run loop costs about
a fifth of such a request, so a reader that ``lingers`` waits a moment in its own ``epoll``.  Meanwhile nothing else
runs, for 2 ms at most: it does so only while no other task could run, and in a process that does nothing but serve.
"""

import itertools
import select
from collections.abc import Iterable
from typing import Final, Protocol

import trio

from triomq.broker.work import Worker

_TURN_S: Final = 0.004  # how long connections are read before other tasks run
_LINGER_S: Final = 0.001  # the shortest time that epoll can wait
_LINGERS_S: Final = 0.002  # at most, before the run loop looks at other sockets and deadlines


class Readable(Protocol):
    """A connection as its reader sees it."""

    def fileno(self) -> int:
        """Return the file descriptor of the socket; -1 after it was closed."""

    def read(self) -> None:
        """Receive and serve what the peer sent; raises nothing."""

    def close(self, reason: str) -> None:
        """Close the connection."""


class ConnectionReader:
    """Polls the connections for data.

    Attributes:
        turns: how often it has read; between two turns other tasks run.
        lingers: whether it waits a moment for the next requests before other tasks run.
        arrived_after: time of the previous round's poll: the bytes that this round reads arrived later, except those
            of sockets that held more than one read takes (256 KiB).
    """

    def __init__(self, worker: Worker) -> None:
        self.turns = 0
        self.lingers = False
        self.arrived_after = 0.0
        self._worker = worker
        self._rounds: Final = itertools.count()
        self._round: list[tuple[int, int]] = []  # the rest of this one
        self._round_began = 0.0
        self._round_s = 0.0  # how long the last one took
        self._poll: Final = select.epoll()
        self._connections: dict[int, Readable] = {}  # by file descriptor

    def add(self, connection: Readable) -> None:
        """Read a connection whenever its peer sends data; close it if that is not possible any more."""
        number = connection.fileno()
        try:
            self._poll.register(number, select.EPOLLIN)
        except (OSError, ValueError) as exc:
            connection.close(f"cannot be read: {exc}")
        else:
            self._connections[number] = connection

    def remove(self, connection: Readable) -> None:
        """Stop reading a connection that is being closed or must wait; idempotent."""
        number = connection.fileno()
        if self._connections.get(number) is connection:
            del self._connections[number]
            self._poll.unregister(number)

    def read_ready(self, ready: list[tuple[int, int]] | None = None) -> None:
        """Read the connections that are ready, for one turn; none after the reader has ended.

        ``ready`` is what the poll has just returned, if it was polled already.
        """
        if self._poll.closed:
            return
        self.turns += 1
        clock = self._worker.clock
        now = clock()
        turn_ends = now + _TURN_S
        if not self._round:
            self.arrived_after = now - self._round_s
            self._round_began = now
            found = ready or self._poll.poll(0, len(self._connections) or 1)
            first = next(self._rounds) % len(found) if len(found) > 1 else 0
            self._round = found[first:] + found[:first]
        ready = self._round
        while ready and now <= turn_ends:
            number, _ = ready.pop()
            connection = self._connections.get(number)
            if connection is not None:  # it may have been closed by another connection of this round
                connection.read()
            now = clock()
        if not ready:
            self._round_s = now - self._round_began

    def _linger(self) -> None:
        clock = self._worker.clock
        ends = clock() + _LINGERS_S
        while clock() < ends:
            statistics = trio.lowlevel.current_statistics()
            io_statistics = statistics.io_statistics
            assert io_statistics.backend == "epoll"
            if statistics.tasks_runnable or io_statistics.tasks_waiting_write or self._worker.waiting:
                return  # another task can run, waits for the disk, or for a peer to read
            ready = self._poll.poll(_LINGER_S, len(self._connections) or 1)
            if not ready:
                return
            self.read_ready(ready)

    async def run(self, connections: Iterable[Readable]) -> None:
        """Read until cancelled; then close all ``connections``, including those that are not being read."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._poll.fileno())
                before = self._round_began
                self.read_ready()
                if self.lingers and self._round_began - before < _LINGER_S:
                    self._linger()
        finally:
            for connection in list(connections):
                connection.close("broker stopped")
            self._connections.clear()  # those that others close
            self._poll.close()
