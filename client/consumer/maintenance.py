"""The periodic work of a consumer that holds queues: storing offsets, sampling counters, heartbeats; and how it leaves.

Source: behaviour.md B.2 (timers), B.18 (shutdown).
"""

from typing import Final

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.consumer.assignment.locks import LockKeeper
from triomq.client.consumer.assignment.rebalancer import Rebalancer
from triomq.client.consumer.offsets.offset_store import OffsetStore
from triomq.client.consumer.statistics import SAMPLE_INTERVAL_S

#: How often progress is stored that no pull has carried to the broker.
_CHANGES_INTERVAL_S: Final = 0.5
#: Time to store the last offsets when a consumer ends, and to leave the group after that.
_LAST_COMMIT_LIMIT_S: Final = 3.0
_LEAVE_LIMIT_S: Final = 2.0
#: Time for all of :meth:`Maintenance.leave`.
END_LIMIT_S: Final = _LAST_COMMIT_LIMIT_S + 2 * _LEAVE_LIMIT_S


class Maintenance:
    """The timers of one consumer."""

    def __init__(self, instance: ClientInstance, group: str, offsets: OffsetStore) -> None:
        self._instance = instance
        self._group = group
        self._offsets = offsets
        self._unannounced = trio.Event()

    def announce(self) -> None:
        """Send a heartbeat soon: a broker does not know the subscriptions."""
        self._unannounced.set()

    async def run(self, rebalancer: Rebalancer) -> None:
        """Do the periodic work; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._persist_offsets, rebalancer)
            nursery.start_soon(self._sample, rebalancer)
            nursery.start_soon(self._send_announcements)

    async def leave(self, rebalancer: Rebalancer, locks: LockKeeper | None = None) -> None:
        """Store the last offsets, release the locks and leave the group; shield it, for ``END_LIMIT_S``."""
        with trio.move_on_after(_LAST_COMMIT_LIMIT_S):
            rebalancer.note_progress()
            if rebalancer.is_out_of_date:
                await self._offsets.persist(rebalancer.held, changed_only=True)
            else:
                await self._offsets.persist_now(rebalancer.held)
        if locks is not None:  # only now: the next owner of a queue begins at the stored offset
            with trio.move_on_after(_LEAVE_LIMIT_S):
                await locks.release_all()
        with trio.move_on_after(_LEAVE_LIMIT_S):
            await self._instance.groups.remove_consumer(self._group)

    async def _persist_offsets(self, rebalancer: Rebalancer) -> None:
        """Store all offsets once per interval and changes sooner, so that a crash or a new member redelivers less."""
        interval_s = self._instance.config.persist_offset_interval_s
        next_full = trio.current_time() + interval_s
        while True:
            await trio.sleep(min(interval_s, _CHANGES_INTERVAL_S))
            full = trio.current_time() >= next_full
            if full:
                next_full += interval_s
            rebalancer.note_progress()
            # must not set back what a new member has stored of a queue that is still held here
            changed_only = not full or rebalancer.is_out_of_date
            await self._offsets.persist(tuple(rebalancer.loops), changed_only=changed_only)

    async def _sample(self, rebalancer: Rebalancer) -> None:
        while True:
            for counted in rebalancer.counters.values():
                counted.sample(trio.current_time())
            await trio.sleep(SAMPLE_INTERVAL_S)

    async def _send_announcements(self) -> None:
        while True:
            await self._unannounced.wait()
            self._unannounced = trio.Event()
            await self._instance.groups.beat()
