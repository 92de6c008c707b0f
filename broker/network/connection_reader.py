"""Reads all connections in one task, in turns.

A task for each connection would be woken for each read: a trip through the run loop and an ``epoll_ctl``, together more
than a read and its answer cost.  Here all of them stand in one ``epoll`` of our own, level-triggered, and the run loop
sees only that.
"""

import select
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection

_MOST_AT_ONCE: Final = 64  # connections that are read before other tasks have their turn


class ConnectionReader:
    """The connections that are read."""

    def __init__(self) -> None:
        self._poll: Final = select.epoll()
        self._connections: dict[int, Connection] = {}  # by file descriptor

    def add(self, connection: "Connection") -> None:
        """Read a connection whenever its peer sends something; if the system has no room for it, close it."""
        number = connection.fileno()
        try:
            self._poll.register(number, select.EPOLLIN)
        except OSError as exc:
            connection.close(f"cannot be read: {exc}")
        else:
            self._connections[number] = connection

    def remove(self, connection: "Connection") -> None:
        """Read it no more, because it is being closed or must wait; idempotent."""
        number = connection.fileno()
        if self._connections.get(number) is connection:
            del self._connections[number]
            self._poll.unregister(number)

    async def run(self, connections: Collection["Connection"]) -> None:
        """Read until cancelled; then close all ``connections``, also those that are not read for the moment."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._poll.fileno())
                for number, _ in self._poll.poll(0, _MOST_AT_ONCE):
                    connection = self._connections.get(number)
                    if connection is not None:  # not closed by what another one sent
                        connection.read()
        finally:
            for connection in list(connections):
                connection.close("broker stopped")
            self._poll.close()
