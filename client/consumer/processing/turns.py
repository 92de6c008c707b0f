"""Consume services share one thread with everything else of a client: how long they may keep it to themselves."""

from collections.abc import Callable
from typing import Final

import trio

#: How long workers may keep the loop to themselves.
TURN_S: Final = 0.005


class Turns:
    """Turns of a service's workers; all of them together leave the loop's other tasks alone for one turn at most.

    Attributes:
        now: trio's clock; :meth:`use_clock` looks it up once for all messages.
        turn_ends: workers that find a later time call :meth:`yield_turn` before the next message.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = trio.current_time
        self.turn_ends = 0.0
        self._turn = 0

    def use_clock(self) -> None:
        """Take the clock of the running loop: trio.current_time() looks it up each time."""
        self.now = trio.lowlevel.current_clock().current_time

    async def yield_turn(self) -> None:
        """Let everything else in the loop go on; the first worker to come back opens the next turn.

        One that comes back later in the same pass of the scheduler, and finds that turn used up, yields again: so
        sockets are looked at after one turn, not after one for each worker.
        """
        while True:
            turn = self._turn
            await trio.lowlevel.checkpoint()
            now = self.now()
            if now <= self.turn_ends:
                return
            if turn == self._turn:
                self._turn += 1
                self.turn_ends = now + TURN_S
                return
