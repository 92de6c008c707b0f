"""A thread that waits for the disk again and again, for a task that waits for it each time.

For each call ``trio.to_thread.run_sync`` goes through a limiter, a lock and two wake-ups of the run loop: 60 to 100 us,
on a disk that syncs in 150 us.  Here the two sides wake each other by one ``eventfd`` each.
"""

import os
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Final, Self

import trio

_GO: Final = 1


class FlushThread:
    """One thread, alive in a ``with`` block; one task may use it."""

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, name="triomq-flush", daemon=True)

    def __enter__(self) -> Self:
        self._wanted = os.eventfd(0, os.EFD_CLOEXEC)
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._action = None
        os.eventfd_write(self._wanted, _GO)
        self._thread.join()  # at once: nothing runs in it outside of run()
        os.close(self._wanted)
        os.close(self._done)

    async def run(self, action: Callable[[], None]) -> None:
        """Call ``action`` in the thread and wait for its end, also when cancelled; raises what it raises."""
        self._action = action
        os.eventfd_write(self._wanted, _GO)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._done)
        os.eventfd_read(self._done)
        error, self._error = self._error, None
        if error is not None:
            raise error
        await trio.lowlevel.checkpoint_if_cancelled()

    def _work(self) -> None:
        while os.eventfd_read(self._wanted) and (action := self._action) is not None:
            try:
                action()
            except Exception as exc:  # noqa: BLE001  # boundary: it is raised again where it is waited for
                self._error = exc
            finally:
                os.eventfd_write(self._done, _GO)
