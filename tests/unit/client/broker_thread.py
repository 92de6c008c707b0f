"""A fake broker for clients that are not in a trio loop."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from tests.unit.client.fake_broker import FakeBroker


class BrokerThread:
    """A fake broker in the trio loop of another thread, for callers that block."""

    def __init__(self) -> None:
        self.broker: FakeBroker
        self.token: trio.lowlevel.TrioToken
        self.stop: trio.Event
        self.ready = threading.Event()

    async def main(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self.stop = trio.Event()
        async with trio.open_nursery() as nursery:
            self.broker = FakeBroker(nursery, "broker-a")
            await self.broker.start()
            self.broker.add_topic("Topic")
            self.ready.set()
            await self.stop.wait()
            nursery.cancel_scope.cancel()

    def run(self, function: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        return trio.from_thread.run(function, *arguments, trio_token=self.token)

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["BrokerThread"]:
        made = cls()
        thread = threading.Thread(target=trio.run, args=(made.main,))
        thread.start()
        assert made.ready.wait(5)
        try:
            yield made
        finally:
            made.token.run_sync_soon(made.stop.set)
            thread.join()
