"""Notices to the members of a group that has changed: soon, and one for all changes until then.

Each change must be told to every member, so members that join or leave together would cost the square of their number.
"""

from collections.abc import Callable, Iterator
from typing import Final

from triomq.broker.groups.members import ConsumerGroup
from triomq.broker.network.connection import Connection
from triomq.broker.network.steps import Steps
from triomq.broker.signals import Signal

_AT_ONCE: Final = 64  # members, each with a write of its own: 1 ms


class GroupNotices:
    """Tells the members of changed groups."""

    def __init__(self, steps: Steps, notify: Callable[[Connection, str], None]) -> None:
        """``notify`` queues the notice for a member, which is sent at the end of the step."""
        self._steps = steps
        self._notify = notify
        self._changed: dict[str, ConsumerGroup] = {}
        self._signal = Signal()

    def add(self, group: ConsumerGroup) -> None:
        """Note that a group has changed."""
        self._changed[group.name] = group
        self._signal.set()

    def parts(self) -> Iterator[None]:
        """Notify the members of all changed groups, a step's worth of them for each item."""
        while self._changed:
            group = self._changed.pop(next(iter(self._changed)))
            members = list(group.members)
            for begin in range(0, len(members), _AT_ONCE):
                for connection in members[begin : begin + _AT_ONCE]:
                    self._notify(connection, group.name)
                yield

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._signal.wait()
            self._signal.clear()
            parts = self.parts()
            is_more_left = True
            while is_more_left:
                async with self._steps.turns:
                    is_more_left = next(parts, self) is not self
                    self._steps.end()
