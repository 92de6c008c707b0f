"""Steps of the event loop: all answers of a step leave together at its end.

A step is what one task does between two awaits.  Whoever answers a request in a step ends it with :meth:`Steps.end`.
"""

from collections.abc import Callable
from typing import Final, Protocol

import trio


class _Flushable(Protocol):
    def flush(self) -> None: ...


class Steps:
    """Ends steps.

    Attributes:
        unflushed: connections with queued answers.
        nursery: runs the tasks that individual connections need; set while the broker serves.
    """

    __slots__ = ("_serve_arrivals", "nursery", "unflushed")

    nursery: trio.Nursery

    def __init__(self, serve_arrivals: Callable[[], None]) -> None:
        """``serve_arrivals`` answers the held pulls whose messages arrived in the step."""
        self._serve_arrivals = serve_arrivals
        self.unflushed: Final[list[_Flushable]] = []

    def end(self) -> None:
        """Answer the pulls whose messages arrived in this step, then write everything that is queued anywhere."""
        self._serve_arrivals()
        unflushed = self.unflushed
        for connection in unflushed:
            connection.flush()
        unflushed.clear()
