"""Reads all connections in one task, in turns.

With a task for each connection every read would cost a trip through the run loop and an ``epoll_ctl``, together more
than the read and its answer.  Here all connections are in one level-triggered ``epoll`` of our own, and the run loop
waits only for that.
"""

import select
from collections.abc import Iterable
from typing import Final, Protocol

import trio

_MAX_READS: Final = 64  # connections that are read before other tasks run


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
        turns: how often it has polled; between two turns other tasks run.
    """

    def __init__(self) -> None:
        self.turns = 0
        self._poll: Final = select.epoll()
        self._connections: dict[int, Readable] = {}  # by file descriptor

    def add(self, connection: Readable) -> None:
        """Read a connection whenever its peer sends data; close it if the system cannot poll it."""
        number = connection.fileno()
        try:
            self._poll.register(number, select.EPOLLIN)
        except OSError as exc:
            connection.close(f"cannot be read: {exc}")
        else:
            self._connections[number] = connection

    def remove(self, connection: Readable) -> None:
        """Stop reading a connection that is being closed or must wait; idempotent."""
        number = connection.fileno()
        if self._connections.get(number) is connection:
            del self._connections[number]
            self._poll.unregister(number)

    def read_ready(self) -> None:
        """Read the connections that have something now; none when the reader has ended."""
        if self._poll.closed:
            return
        for number, _ in self._poll.poll(0, _MAX_READS):
            connection = self._connections.get(number)
            if connection is not None:  # it may have been closed by another connection of this round
                connection.read()

    async def run(self, connections: Iterable[Readable]) -> None:
        """Read until cancelled; then close all ``connections``, including those that are not being read."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._poll.fileno())
                self.turns += 1
                self.read_ready()
        finally:
            for connection in list(connections):
                connection.close("broker stopped")
            self._poll.close()
