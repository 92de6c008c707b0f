"""A client that fails, blocks or is cancelled on request, for tests of the facades."""

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import trio

from triomq.client.nursery import OpenOnce, open_service_nursery


class Fragile(OpenOnce):
    """Fails in the background on request; calls a function, and blocks, in the chosen step."""

    def __init__(self, slow_to: str = "nothing", on_slow: Callable[[], None] = lambda: None) -> None:
        self.slow_to = slow_to
        self.on_slow = on_slow
        self.told = trio.Event()
        self.error: BaseException = KeyError("inside")
        self.busy, self.cancelled, self.finished = threading.Event(), threading.Event(), False

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        await self.do("open")
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._fail)
            yield
        await self.do("close")

    async def _fail(self) -> None:
        await self.told.wait()
        raise self.error

    async def fail(self) -> None:
        self.told.set()
        await trio.testing.wait_all_tasks_blocked()

    async def do(self, step: str) -> None:
        if step == self.slow_to:
            self.busy.set()
            self.on_slow()
            await self.linger()

    async def linger(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    async def finish_all_the_same(self) -> None:
        self.busy.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05)
        self.finished = True
