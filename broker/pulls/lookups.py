"""Requests whose answer needs more than one step: what they read is on the disk only, or there is much to look at.

Rules: the disk is read in worker threads, a few for all, and nobody else waits; a request that finds too many others
waiting is told to come again.
"""

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Final

import trio

from triomq.broker.network.refusal import RequestRefusedError, remark_of, response_code
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.errors import StoreError, TriomqError
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import ColdRange, Lookup, read_ranges

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.broker.processors.table import Processor
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.pulls.lookups")

_THREADS: Final = 4
_MOST_WAITING: Final = 10_000
_STEPS_AT_ONCE: Final = 3  # of a long look, 1 ms each
_ONEWAY: Final = int(CommandFlag.ONEWAY)

Answer = RemotingCommand | None


class Lookups:
    """All requests that are not answered in the step that read them, as they look into the store.

    Attributes:
        waiting: how many there are.
        served: how many there were.
    """

    def __init__(self, broker: "Broker") -> None:
        self.waiting = 0
        self.served = 0
        self._broker = broker
        self._limiter = trio.CapacityLimiter(_THREADS)

    def answer(self, connection: "Connection", command: RemotingCommand, lookup: Lookup[Answer]) -> Answer:
        """Return what a lookup returns if that takes no disk and little time; else ``None``: it is sent later.

        Raises:
            TriomqError: what the lookup raises.
            RequestRefusedError: too many wait already.
        """
        ranges: Sequence[ColdRange] = ()
        for _ in range(_STEPS_AT_ONCE):
            try:
                ranges = next(lookup)
            except StopIteration as done:
                response: Answer = done.value
                return response
            if ranges:
                break
        self.wait(connection, command, _while_read(connection, lookup), ranges)
        return None

    def wait(
        self, connection: "Connection", command: RemotingCommand, lookup: Lookup[Answer], ranges: Sequence[ColdRange]
    ) -> None:
        """Go on with a lookup when ``ranges`` are in memory; what it returns at last is sent.

        Raises:
            RequestRefusedError: too many wait already.
        """
        if self.waiting >= _MOST_WAITING:
            raise RequestRefusedError(
                ResponseCode.SYSTEM_BUSY, f"{self.waiting} requests wait for the disk: come again"
            )
        self.waiting += 1
        self._broker.connection_nursery.start_soon(self._finish, connection, command, lookup, ranges)

    async def _finish(
        self, connection: "Connection", command: RemotingCommand, lookup: Lookup[Answer], ranges: Sequence[ColdRange]
    ) -> None:
        broker = self._broker
        try:
            response = await self._run(connection, lookup, ranges)
        except TriomqError as exc:
            if isinstance(exc, StoreError):
                LOGGER.error("old messages cannot be read code=%d error=%s", command.code, exc)
            response = broker.refuse(connection, command, response_code(exc), remark_of(exc))
        except Exception as exc:  # boundary, as in Connection
            LOGGER.exception("request failed code=%d peer=%s", command.code, connection.peer)
            text = f"{type(exc).__name__}: {remark_of(exc)}"
            response = broker.refuse(connection, command, ResponseCode.SYSTEM_ERROR, text)
        finally:
            self.waiting -= 1
            self.served += 1
        if response is not None and not command.flag & _ONEWAY:
            connection.send(response)
        broker.end_step()

    async def _run(self, connection: "Connection", lookup: Lookup[Answer], ranges: Sequence[ColdRange]) -> Answer:
        while not connection.closed:
            if ranges:
                await trio.to_thread.run_sync(read_ranges, ranges, limiter=self._limiter)
            else:
                await trio.lowlevel.checkpoint()
            try:
                ranges = next(lookup)
            except StopIteration as done:
                response: Answer = done.value
                return response
        return None


def _while_read(connection: "Connection", lookup: Lookup[Answer]) -> Lookup[Answer]:
    """Go on with a lookup unless its peer does not read what it has got: others may be as long, and any number.

    Raises:
        RequestRefusedError: it does not; TriomqError: what the lookup raises.
    """
    while connection.unread_bytes <= connection.broker.config.unread_high_bytes:
        try:
            ranges = next(lookup)
        except StopIteration as done:
            response: Answer = done.value
            return response
        yield ranges
    raise RequestRefusedError(
        ResponseCode.SYSTEM_BUSY, f"{connection.unread_bytes} bytes of answers are unread: come again"
    )


def in_steps(process: "Callable[[Connection, RemotingCommand], Lookup[Answer]]") -> "Processor":
    """Make a processor of one that looks into the store step by step."""

    @wraps(process)
    def processor(connection: "Connection", command: RemotingCommand) -> Answer:
        return connection.broker.lookups.answer(connection, command, process(connection, command))

    return processor
