"""Requests whose answer needs more than one step: they read from the disk, or process a lot of data.

Rules: the disk is read in a few worker threads, and nobody else waits; if too many requests wait, others are refused.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

import trio

from triomq.broker.limits.refused import Refusals
from triomq.broker.network.connection import Connection, Processor
from triomq.broker.network.memory_budget import MemoryBudget
from triomq.broker.network.steps import Steps
from triomq.broker.paged_read import load
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.errors import RefusedError, StoreError
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.files.file_system import DiskWork
from triomq.storage.reading.cold_read import ColdRange, PagedWork

LOGGER: Final = logging.getLogger("triomq.broker.pulls.paged_reads")

_THREADS: Final = 4
_WAITING_BYTES: Final = 8 * 1024  # memory of a request that waits, besides its content
_ONEWAY: Final = int(CommandFlag.ONEWAY)

Answer = RemotingCommand | None
Found = TypeVar("Found")
PagedProcessor: TypeAlias = Callable[[Connection, RemotingCommand], PagedWork[Answer]]


def check_open(connection: Connection) -> None:
    """Check that somebody waits for an answer.

    Raises:
        trio.ClosedResourceError: the peer has left.
    """
    if connection.closed:
        raise trio.ClosedResourceError


def _check_nothing() -> None:
    """Let the read continue."""


class PagedReads:
    """All requests that wait for the disk or for their next step.

    Attributes:
        waiting: how many there are.
        served: how many there were.
    """

    def __init__(self, steps: Steps, refusals: Refusals, budget: MemoryBudget, unread_high_bytes: int) -> None:
        """A peer with more unread answers than ``unread_high_bytes`` gets no further ones."""
        self.waiting = 0
        self.served = 0
        self._steps = steps
        self._refusals = refusals
        self._budget = budget
        self._unread_high_bytes = unread_high_bytes
        self._limiter = trio.CapacityLimiter(_THREADS)

    def processor(self, process: PagedProcessor) -> Processor:
        """Make a processor of a method that returns a paged read, which runs to its end whatever the peer does."""

        def processor(connection: Connection, command: RemotingCommand) -> Answer:
            return self._answer(connection, command, process(connection, command), _check_nothing)

        return processor

    def question(self, process: PagedProcessor) -> Processor:
        """Make a processor of a method that changes nothing: it is not called, or not ended, if nobody would know."""

        def processor(connection: Connection, command: RemotingCommand) -> Answer:
            if command.flag & _ONEWAY:
                return None
            return self._answer(connection, command, process(connection, command), partial(self._check, connection))

        return processor

    def _answer(
        self, connection: Connection, command: RemotingCommand, read: PagedWork[Answer], check: Callable[[], None]
    ) -> Answer:
        """Return the result of a paged read that needs no disk and little time; else ``None``: it is sent later."""
        try:
            ranges = _advance(read, self._steps)
        except StopIteration as done:
            response: Answer = done.value
            return response
        self.wait(connection, command, read, ranges, check)
        return None

    async def run(self, read: PagedWork[Found]) -> Found:
        """Run a paged read of the broker itself to its end, by turns with those of its peers."""
        return await _run_by_turns(read, self._steps, (), self._limiter, _check_nothing)

    def wait(
        self,
        connection: Connection,
        command: RemotingCommand,
        read: PagedWork[Answer],
        ranges: Sequence[ColdRange | DiskWork],
        check: Callable[[], None],
    ) -> None:
        """Continue a paged read when ``ranges`` are in memory, and send its result.

        ``check`` is called before each step; what it raises is the answer, if the connection is still open.

        Raises:
            RefusedError: too many requests wait already.
        """
        size = _WAITING_BYTES + command.content_bytes
        if not self._budget.has_room(size):
            raise RefusedError(f"{self.waiting} requests wait for the disk: try again later", ResponseCode.SYSTEM_BUSY)
        self._budget.reserved_bytes += size
        self.waiting += 1
        self._steps.nursery.start_soon(self._finish, connection, command, read, ranges, check, size)

    async def _finish(
        self,
        connection: Connection,
        command: RemotingCommand,
        read: PagedWork[Answer],
        ranges: Sequence[ColdRange | DiskWork],
        check: Callable[[], None],
        reserved_bytes: int,
    ) -> None:
        try:
            response = await _run_by_turns(read, self._steps, ranges, self._limiter, check)
        except trio.ClosedResourceError:
            return
        except Exception as exc:  # noqa: BLE001  # boundary, as in Connection
            if isinstance(exc, StoreError):
                LOGGER.error("old messages cannot be read code=%d error=%s", command.code, exc)
            response = self._refusals.response_to(connection.peer, command, exc)
        finally:
            self._budget.reserved_bytes -= reserved_bytes
            self.waiting -= 1
            self.served += 1
        if response is not None and not command.flag & _ONEWAY:
            connection.send(response)
        self._steps.end()

    def _check(self, connection: Connection) -> None:
        """Refuse to continue for a peer that does not read: other answers may be as long, and there may be many.

        Raises:
            trio.ClosedResourceError: the peer has left.
            RefusedError: too much is unread.
        """
        check_open(connection)
        if connection.unread_bytes > self._unread_high_bytes:
            raise RefusedError(
                f"{connection.unread_bytes} bytes of answers are unread: try again later", ResponseCode.SYSTEM_BUSY
            )


def _advance(read: PagedWork[Found], steps: Steps, error: StoreError | None = None) -> Sequence[ColdRange | DiskWork]:
    """Continue a paged read until it needs something in memory, or a step is over: then no ranges are returned.

    Raises:
        StopIteration: it has ended, with this value.
    """
    clock, ends = steps.clock, steps.begin()
    ranges = next(read) if error is None else read.throw(error)
    while not ranges and clock() < ends:
        ranges = next(read)
    return ranges


async def _run_by_turns(
    read: PagedWork[Found],
    steps: Steps,
    ranges: Sequence[ColdRange | DiskWork],
    limiter: trio.CapacityLimiter,
    check: Callable[[], None],
) -> Found:
    """Run a paged read that has yielded ``ranges`` to its end, by turns with those of other peers.

    ``check`` is called before each step; what it raises ends the read.
    """
    try:
        while True:
            error = await load(ranges, limiter)
            async with steps.turn():
                check()
                ranges = _advance(read, steps, error)
    except StopIteration as done:
        found: Found = done.value
        return found
