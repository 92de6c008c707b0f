"""Answers held pulls whose time is over."""

from typing import TYPE_CHECKING

import trio

from triomq.broker.processors.pull import serve_held

if TYPE_CHECKING:
    from triomq.broker.server import Broker


class PullTimeout:
    """Sleeps while no pull is held."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def run(self) -> None:
        """Answer expired pulls until cancelled."""
        broker = self._broker
        while True:
            await broker.pull_hold.wait_sweep()
            for pull in broker.pull_hold.take_expired(trio.current_time()):
                serve_held(pull, is_expired=True)
            broker.end_step()
