"""Requests whose answer needs more than one step: they read from the disk, or process a lot of data.

Rules: the disk is read in a few worker threads, and nobody else waits; if too many requests wait, others are refused.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import trio

from triomq.broker.network.connection import Connection, Processor
from triomq.broker.network.memory_budget import MemoryBudget
from triomq.broker.network.refusal import Refusals, RefusedError
from triomq.broker.network.steps import Steps
from triomq.broker.paged_read import run_paged_read
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.errors import StoreError
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import ColdRange, PagedRead

LOGGER: Final = logging.getLogger("triomq.broker.pulls.paged_reads")

_THREADS: Final = 4
_WAITING_BYTES: Final = 8 * 1024  # memory of a request that waits, besides its content
_MAX_STEPS: Final = 3  # of a long read, 1 ms each, before other requests are served
_ONEWAY: Final = int(CommandFlag.ONEWAY)

Answer = RemotingCommand | None
PagedProcessor: TypeAlias = Callable[[Connection, RemotingCommand], PagedRead[Answer]]


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
        """Make a processor of a method that returns a paged read."""

        def processor(connection: Connection, command: RemotingCommand) -> Answer:
            return self.answer(connection, command, process(connection, command))

        return processor

    def answer(self, connection: Connection, command: RemotingCommand, read: PagedRead[Answer]) -> Answer:
        """Return the result of a paged read that needs no disk and little time; else ``None``: it is sent later.

        Raises:
            TriomqError: what the paged read raises.
            RefusedError: too many requests wait already.
        """
        ranges: Sequence[ColdRange] = ()
        for _ in range(_MAX_STEPS):
            try:
                ranges = next(read)
            except StopIteration as done:
                response: Answer = done.value
                return response
            if ranges:
                break
        self.wait(connection, command, read, ranges, partial(self._check_unread, connection))
        return None

    def wait(
        self,
        connection: Connection,
        command: RemotingCommand,
        read: PagedRead[Answer],
        ranges: Sequence[ColdRange],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Continue a paged read when ``ranges`` are in memory, and send its result.

        ``check`` is called before each step; what it raises is the answer.

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
        read: PagedRead[Answer],
        ranges: Sequence[ColdRange],
        check: Callable[[], None],
        reserved_bytes: int,
    ) -> None:
        def check_step() -> None:
            if connection.closed:
                raise trio.ClosedResourceError
            check()

        try:
            response = await run_paged_read(read, ranges, limiter=self._limiter, check=check_step)
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

    def _check_unread(self, connection: Connection) -> None:
        """Refuse to continue for a peer that does not read: other answers may be as long, and there may be many.

        Raises:
            RefusedError: too much is unread.
        """
        if connection.unread_bytes > self._unread_high_bytes:
            raise RefusedError(
                f"{connection.unread_bytes} bytes of answers are unread: try again later", ResponseCode.SYSTEM_BUSY
            )
