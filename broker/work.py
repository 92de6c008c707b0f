"""Work in steps: how one thread serves all peers without keeping any of them waiting.

The problem
    One trio thread owns all state of the broker.  While it searches the index for a key, encodes the offsets of 65,536
    queues or waits for a page of an old message, it serves no other peer.  So no peer may take the thread for more
    than a few milliseconds, and the thread may never wait for the disk.

What was rejected
    - A task for each request: to start and end one takes 25 us, and most requests take less than 10 us.
    - Async functions: every ``await`` that might wait costs a checkpoint (3.4 us), and each function between the
      request and the wait has to be async, also where nothing ever waits.
    - Worker threads for the work itself: the state has no locks.  Threads only read the disk.

What it is
    A *step* is what one task does between two awaits.  Long work is a generator (``Work``) of small items.  After each
    item it yields ``PAUSE``, where others may run, or what must be read from the disk before it continues.
    :meth:`Worker.answer` begins the work of a request in the step that received the request.  Nearly all work ends
    there, and costs no task.  The rest continues in a task, by turns: one step, then the next task.  In programs
    without a loop, ``finish`` runs the same generators.

The invariant
    - One task at a time holds the turn of its lane, for one step.  All sockets are read before the step, so a peer
      waits for one step of other peers' work, however many long requests there are.
    - A step ends with the first item after ``STEP_S``, or when the work needs the disk.  Only there may other code
      run: what work has read of the broker's state is valid until its next ``yield``.
    - A failed read is raised as ``StoreError`` in the generator, at its ``yield``.
    - Each step ends with :meth:`Worker.end_step`: it answers the pulls whose messages arrived, and writes all answers.
    - When a connection closes, work that only reads ends before its next step; so it does when the peer leaves too
      much unread.  Other work runs to its end, and its answer is dropped.  A cancelled task ends between two steps.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from time import perf_counter
from typing import Final, Protocol, TypeVar

import trio

from triomq.broker.limits.peers import MemoryBudget, Reader
from triomq.broker.limits.refused import Refusals
from triomq.protocol.bodies.json_body import json_pieces
from triomq.protocol.codes import CommandFlag, ResponseCode
from triomq.protocol.errors import RefusedError, StoreError
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import PAUSE, Needed, Work, read_ranges

LOGGER: Final = logging.getLogger("triomq.broker.work")


class Signal:
    """An event that its only waiter clears before it does the work, so that no later :meth:`set` is lost."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the waiter, now or when it waits next."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether :meth:`wait` returns at once."""
        return self._event.is_set()

    def clear(self) -> None:
        """Make :meth:`wait` wait again."""
        self._event = trio.Event()

    async def wait(self) -> None:
        """Return when the signal is set."""
        await self._event.wait()


#: What one peer may take of the loop at a time; a step ends with the next item after it.
STEP_S: Final = 0.002
_WAIT_TO_WORK: Final = 20
_THREADS: Final = 4
_WAITING_BYTES: Final = 8 * 1024  # memory of a request that waits, besides its content
_ONEWAY: Final = int(CommandFlag.ONEWAY)

Answer = RemotingCommand | None
Result = TypeVar("Result")


class _Writer(Protocol):
    def flush(self) -> None: ...


class _Lane:
    """Work that takes turns, and the threads that read the disk for it."""

    def __init__(self) -> None:
        self.turns: Final = trio.Lock()  # a fair one
        self.threads: Final = trio.CapacityLimiter(_THREADS)


def _check_nothing() -> None:
    """Continue whatever the peer does."""


class Worker:
    """Begins and ends steps, and drives the work that takes several.

    Attributes:
        nursery: runs the tasks that individual connections need; set while the broker serves.
        read_ready: serves the requests that have arrived on all sockets.
        serve_arrivals: answers the held pulls whose messages arrived in the step.
        feed_slaves: wakes the slaves if the log has grown in the step; ``None``: no slave is connected.
        unflushed: connections with queued answers.
        step_began: when this step began, by ``clock``.
        wait_s: how long the peer of this step must wait for its next one.
        waiting, served: requests that wait for the disk or for their turn, and those that have waited.
        clock: steady, seconds.
    """

    nursery: trio.Nursery

    def __init__(self, refusals: Refusals, budget: MemoryBudget) -> None:
        self.clock: Callable[[], float] = perf_counter
        self.read_ready: Callable[[], None] = lambda: None
        self.serve_arrivals: Callable[[], None] = lambda: None
        self.feed_slaves: Callable[[], None] | None = None
        self.unflushed: Final[list[_Writer]] = []
        self.step_began = 0.0
        self.wait_s = 0.0
        self.waiting = 0
        self.served = 0
        self._refusals = refusals
        self._budget = budget
        self._peers = _Lane()
        self._services = _Lane()

    # --- one step -------------------------------------------------------------------------------------------

    def begin_step(self) -> float:
        """Return when a step that begins now should end, by ``clock``."""
        self.wait_s = 0.0
        self.step_began = self.clock()
        return self.step_began + STEP_S

    def charge(self, work_s: float) -> None:
        """Make the peer of this step wait, as the work took this long and could not pause."""
        self.wait_s += work_s * _WAIT_TO_WORK

    def end_step(self) -> None:
        """Answer the pulls whose messages arrived in this step, write all queued answers, then wake slaves."""
        self.serve_arrivals()
        unflushed = self.unflushed
        for connection in unflushed:
            connection.flush()
        unflushed.clear()
        if self.feed_slaves is not None:
            self.feed_slaves()

    @asynccontextmanager
    async def turn(self, lane: _Lane | None = None) -> AsyncGenerator[None]:
        """Hold the turn of the peers' lane, or another one, for one step.

        All sockets are read first: the run loop might resume the reader only after the step.
        """
        async with (lane or self._peers).turns:
            self.read_ready()
            yield

    # --- many steps -----------------------------------------------------------------------------------------

    async def run(self, work: Work[Result], *, urgent: bool = False) -> Result:
        """Do work of the broker itself and return its result.

        Urgent work takes turns with other urgent work only, so that peers with long requests do not delay it.
        """
        return await self._drive(work, PAUSE, self._services if urgent else self._peers, _check_nothing)

    def answer(
        self, connection: Reader, command: RemotingCommand, work: Work[Answer], *, only_reads: bool = False
    ) -> Answer:
        """Begin the work of a request; return its answer, or ``None`` if that is sent later.

        Work that ``only_reads`` is not done for a one-way request, and ends early if the peer does not take the answer.

        Raises:
            RefusedError: too many requests wait already.
        """
        if only_reads and command.flag & _ONEWAY:
            return None
        try:
            needed = self._advance(work, self.clock() + STEP_S)
        except StopIteration as done:
            response: Answer = done.value
            return response
        size_bytes = _WAITING_BYTES + command.content_bytes
        if not self._budget.has_room(size_bytes):
            raise RefusedError(f"{self.waiting} requests wait for the disk: try again later", ResponseCode.SYSTEM_BUSY)
        self._budget.reserved_bytes += size_bytes
        self.waiting += 1
        self.nursery.start_soon(self._answer_later, connection, command, work, needed, only_reads, size_bytes)
        return None

    async def _answer_later(
        self,
        connection: Reader,
        command: RemotingCommand,
        work: Work[Answer],
        needed: Needed,
        only_reads: bool,
        reserved_bytes: int,
    ) -> None:
        def check() -> None:
            if connection.closed:
                raise trio.ClosedResourceError
            self._budget.check_reads(connection)

        try:
            response = await self._drive(work, needed, self._peers, check if only_reads else _check_nothing)
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
        self.end_step()

    async def _drive(self, work: Work[Result], needed: Needed, lane: _Lane, check: Callable[[], None]) -> Result:
        """Continue work that has yielded ``needed`` until its end; what ``check`` raises ends it before a step."""
        try:
            while True:
                error: StoreError | None = None
                if needed:
                    try:
                        await trio.to_thread.run_sync(read_ranges, needed, limiter=lane.threads)
                    except StoreError as exc:
                        error = exc
                async with self.turn(lane):
                    check()
                    needed = self._advance(work, self.begin_step(), error)
                    self.end_step()
        except StopIteration as done:
            self.end_step()
            result: Result = done.value
            return result

    def _advance(self, work: Work[Result], ends: float, error: StoreError | None = None) -> Needed:
        """Continue work until a step ``ends``; return its ``Needed`` from the disk, or ``PAUSE`` if the step is over.

        Raises:
            StopIteration: the work has ended, with this value.
        """
        needed = next(work) if error is None else work.throw(error)
        while not needed and self.clock() < ends:
            needed = next(work)
        return needed


def encode(value: object) -> Work[bytes]:
    """Return the JSON of a value, with bodies anywhere in it, of any length."""
    text = BytesIO()
    for piece in json_pieces(value):
        text.write(piece)
        yield PAUSE
    return text.getvalue()
