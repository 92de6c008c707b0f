"""Ends waiting for input without ending the requests that are under way."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Stopper:
    """Says that no new work is to be begun.

    Attributes:
        is_set: whether it was said.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._scopes: set[trio.CancelScope] = set()

    def set(self) -> None:
        """End all waiting, now and later."""
        self.is_set = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Make a block that ends early when :meth:`set` is called; look at :attr:`is_set` after it."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.is_set:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)


class Pacer:
    """Lets a number of messages per second pass; time in which there was nothing to send is not made up for."""

    def __init__(self, rate: float | None, stopper: Stopper) -> None:
        self._rate = rate
        self._stopper = stopper
        self._due = 0.0

    async def wait(self, messages: int) -> None:
        """Wait until so many messages may go, or the stopper is set."""
        if self._rate is None:
            return
        now = trio.current_time()
        self._due = max(self._due, now - _MAKE_UP_S)
        due, self._due = self._due, self._due + messages / self._rate
        if due > now:
            with self._stopper.waiting():
                await trio.sleep_until(due)


_MAKE_UP_S = 0.05
"""How late a message may be and the next ones still follow at once: what the timer of a busy machine costs."""
