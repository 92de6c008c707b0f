"""Steps of the event loop: nobody's work holds the others up, and all answers of a step leave together at its end.

A step is what one task does between two awaits.  Whoever answers a request in a step ends it with :meth:`Steps.end`.
What a peer wants beyond one step goes on in a task of its own, by turns: one such task works at a time, so that all
sockets are read before each of its steps, however many long requests there are.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final, Protocol, TypeVar

import trio

#: What one peer may take of the loop at a time; a step ends with the next pause after it.
STEP_S: Final = 0.002
_WAIT_TO_WORK: Final = 20


Result = TypeVar("Result")


class _Flushable(Protocol):
    def flush(self) -> None: ...


class Steps:
    """Begins and ends steps.

    Attributes:
        unflushed: connections with queued answers.
        read_ready: serves what has come from peers.
        owed_s: how long the peer of this step must wait for its next one.
        clock: steady, seconds.
        nursery: runs the tasks that individual connections need; set while the broker serves.
    """

    __slots__ = ("_serve_arrivals", "_turns", "clock", "nursery", "owed_s", "read_ready", "unflushed")

    nursery: trio.Nursery

    def __init__(self, serve_arrivals: Callable[[], None]) -> None:
        """``serve_arrivals`` answers the held pulls whose messages arrived in the step."""
        self._serve_arrivals = serve_arrivals
        self.clock: Callable[[], float] = perf_counter
        self.owed_s = 0.0
        self.read_ready: Callable[[], None] = lambda: None
        self._turns = trio.Lock()  # a fair one
        self.unflushed: Final[list[_Flushable]] = []

    def begin(self) -> float:
        """Return when a step that begins now should be over, by ``clock``."""
        self.owed_s = 0.0
        return self.clock() + STEP_S

    def owe(self, work_s: float) -> None:
        """Let the others come first for a while, as the work of this step took so long although it could not pause."""
        self.owed_s += work_s * _WAIT_TO_WORK

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Hold the turn during one step of work that takes several.

        The sockets are read at its begin: the run loop might resume the reader only after this step.
        """
        async with self._turns:
            self.read_ready()
            yield

    async def run(self, work: Generator[object, None, Result]) -> Result:
        """Do work that may pause at each item, by turns with other such work; return its result."""
        try:
            while True:
                async with self.turn():
                    ends = self.begin()
                    next(work)
                    while self.clock() < ends:
                        next(work)
                    self.end()
        except StopIteration as done:
            self.end()
            result: Result = done.value
            return result

    def end(self) -> None:
        """Answer the pulls whose messages arrived in this step, then write everything that is queued anywhere."""
        self._serve_arrivals()
        unflushed = self.unflushed
        for connection in unflushed:
            connection.flush()
        unflushed.clear()
