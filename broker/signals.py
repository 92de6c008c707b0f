"""An event that can be awaited any number of times."""

import trio


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
