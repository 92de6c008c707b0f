"""Everything a broker knows of groups."""

from dataclasses import dataclass
from typing import Final

import trio

from triomq.broker.groups.consumer_offsets import ConsumerOffsetTable
from triomq.broker.groups.former_offsets import FormerOffsets
from triomq.broker.groups.members import ConsumerGroups, ProducerGroups
from triomq.broker.groups.queue_locks import CLOSE_GRACE_S, QueueLocks
from triomq.broker.groups.subscription_groups import SubscriptionGroupTable
from triomq.broker.network.connection import Connection
from triomq.broker.work import Worker
from triomq.protocol.errors import RefusedError
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE

MAX_QUEUE_OFFSET: Final = (2**63 - 1) // UNIT_SIZE
"""Positions in a consume queue have 63 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The tables of consumer and producer groups.

    Attributes:
        settings: configurations of consumer groups.
        offsets: how far they have consumed.
        consumers, producers: their live members.
        locks: which member may consume which queue in order.
        former: which members may have offsets of deleted topics.
    """

    settings: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    consumers: ConsumerGroups
    producers: ProducerGroups
    locks: QueueLocks
    former: FormerOffsets
    worker: Worker

    def is_known(self, group: str) -> bool:
        """Whether a group has settings or live members."""
        return self.settings.get(group) is not None or self.consumers.get(group) is not None

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store an offset that a client sent for a queue that exists.

        Raises:
            RefusedError: no queue can be that long, or too many groups have offsets in too many topics.
        """
        if queue_offset > MAX_QUEUE_OFFSET:
            raise RefusedError(f"offset {queue_offset} is illegal: queues end at {MAX_QUEUE_OFFSET}")
        self.offsets.check_room(group, topic)
        self.offsets.commit(group, topic, queue_id, queue_offset)

    def forget(self, connection: Connection, closed_by_peer: bool) -> None:
        """Remove a closed connection from its groups and notify the remaining members."""
        self.consumers.forget(connection)
        self.producers.forget(connection)
        self.former.forget(connection)
        if self.locks.has_locked(connection):
            self.worker.nursery.start_soon(self._release_locks, connection, closed_by_peer)

    async def _release_locks(self, connection: Connection, closed_by_peer: bool) -> None:
        await trio.sleep(CLOSE_GRACE_S)
        release = self.locks.release(connection, self.consumers.connection_of, closed_by_peer=closed_by_peer)
        wait_s = await self.worker.run(release)
        if wait_s:
            await trio.sleep(wait_s)
            await self.worker.run(self.locks.free_ended())
