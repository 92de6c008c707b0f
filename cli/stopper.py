"""Stop waiting for input without cancelling requests in flight."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Stopper:
    """Tells tasks to begin no new work.

    Attributes:
        is_set: whether :meth:`set` was called.
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
        """Run a block that :meth:`set` ends early; check :attr:`is_set` after it."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.is_set:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)


class Pacer:
    """Limits the messages per second; does not make up for time without messages."""

    def __init__(self, rate: float | None, stopper: Stopper) -> None:
        self._rate = rate
        self._stopper = stopper
        self._due: float | None = None

    async def wait(self, messages: int) -> bool:
        """Wait until so many messages may be sent, or the stopper is set; return whether that took time."""
        if self._rate is None:
            return False
        now = trio.current_time()
        due = now if self._due is None else max(self._due, now - _MAKE_UP_S)
        self._due = due + messages / self._rate
        if due <= now:
            return False
        with self._stopper.waiting():
            await trio.sleep_until(due)
        return True


_MAKE_UP_S = 0.05
"""A delay up to this is made up for: timers are late on a busy machine."""
