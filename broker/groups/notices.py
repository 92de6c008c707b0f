"""Notices to the members of a group that has changed: soon, and one for all changes until then.

Each change must be told to every member, so members that join or leave together would cost the square of their number.
"""

from collections.abc import Callable
from typing import Final

from triomq.broker.groups.members import ConsumerGroup
from triomq.broker.network.connection import Connection
from triomq.broker.signals import Signal
from triomq.broker.work import Worker
from triomq.storage.reading.cold_read import PAUSE, Work

_AT_ONCE: Final = 32  # members, each with a write of its own: 0.5 ms


class GroupNotices:
    """Tells the members of changed groups."""

    def __init__(self, worker: Worker, notify: Callable[[Connection, str], None]) -> None:
        """``notify`` queues the notice for a member."""
        self._worker = worker
        self._notify = notify
        self._changed: dict[str, ConsumerGroup] = {}
        self._signal = Signal()

    def add(self, group: ConsumerGroup) -> None:
        """Note that a group has changed."""
        self._changed[group.name] = group
        self._signal.set()

    def notify_members(self) -> Work[None]:
        """Notify the members of all changed groups; pauses after some of them."""
        while self._changed:
            group = self._changed.pop(next(iter(self._changed)))
            members = list(group.members)
            for begin in range(0, len(members), _AT_ONCE):
                for connection in members[begin : begin + _AT_ONCE]:
                    self._notify(connection, group.name)
                yield PAUSE

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._signal.wait()
            self._signal.clear()
            await self._worker.run(self.notify_members())
