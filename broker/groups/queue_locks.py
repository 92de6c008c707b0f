"""Queue locks: which member of a group may consume a queue in order.

A lock belongs to a client id and lives 60 s after it was last asked for; groups do not know of each other.  Beyond
RocketMQ, whose locks only run out: a lock is freed at once when its owner's connection ends and the client has no
other one, and members that were refused it are told to ask again.

Locks are in memory only, as in Java: after a restart of the broker the first one to ask has the queue.

Source: behaviour.md A.14; RebalanceLockManager.java.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from triomq.protocol.message_queue import MessageQueue

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection

LOGGER: Final = logging.getLogger("triomq.broker.groups.queue_locks")

#: How long a lock lives without being asked for again.  Source: rocketmq.broker.rebalance.lockMaxLiveTime.
LIFE_MS: Final = 60_000


class QueueLock:
    """One locked queue of a group.

    Attributes:
        client_id: who owns it.
        connection: where the owner last asked for it.
        renewed_ms: when that was.
        refused: whether somebody else asked for it since.
    """

    __slots__ = ("client_id", "connection", "refused", "renewed_ms")

    def __init__(self, client_id: str, connection: "Connection", renewed_ms: int) -> None:
        self.client_id = client_id
        self.connection = connection
        self.renewed_ms = renewed_ms
        self.refused = False


class QueueLocks:
    """The locks of all groups.

    Args:
        clock_ms: a steady clock: with the wall clock set forward, all locks would be over at once.
        freed: called with a group of which a queue became free that somebody had been refused.
    """

    def __init__(self, *, clock_ms: Callable[[], int], freed: Callable[[str], None]) -> None:
        self._clock_ms = clock_ms
        self._freed = freed
        self._locks: dict[str, dict[MessageQueue, QueueLock]] = {}
        self._groups_of: dict[Connection, set[str]] = {}

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client id of a queue's owner; ``None`` if it has none, or its time is over."""
        lock = self._locks.get(group, {}).get(queue)
        return None if lock is None or self._is_over(lock) else lock.client_id

    def lock(
        self, group: str, client_id: str, connection: "Connection", queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Give the client all of these queues that nobody else owns, and return what it has now.

        What it had already lives on from now.
        """
        now_ms = self._clock_ms()
        locks = self._locks.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id != client_id and not self._is_over(lock):
                lock.refused = True
                continue
            if lock is None or lock.client_id != client_id:
                locks[queue] = QueueLock(client_id, connection, now_ms)
            else:
                lock.connection, lock.renewed_ms = connection, now_ms
            granted.append(queue)
        if granted:
            self._groups_of.setdefault(connection, set()).add(group)
        elif not locks:
            del self._locks[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free these queues as far as the client owns them."""
        locks = self._locks.get(group, {})
        owned = [queue for queue in dict.fromkeys(queues) if queue in locks and locks[queue].client_id == client_id]
        self._free(group, owned)

    def leave(self, connection: "Connection", group: str) -> None:
        """Free what was locked on this connection: its consumer has left the group."""
        locks = self._locks.get(group, {})
        self._free(group, [queue for queue, lock in locks.items() if lock.connection is connection])

    def forget(self, connection: "Connection", successor: "Callable[[str, str], Connection | None]") -> None:
        """Free what was locked on a connection that is closed.

        Args:
            connection: which.
            successor: returns another live connection in a group of a client id, which takes the locks over: a
                client that is back before the loss of its old connection was noticed keeps its queues.
        """
        for group in self._groups_of.pop(connection, ()):
            free = []
            for queue, lock in self._locks.get(group, {}).items():
                if lock.connection is connection:
                    heir = successor(group, lock.client_id)
                    if heir is None:
                        free.append(queue)
                    else:
                        lock.connection = heir
                        self._groups_of.setdefault(heir, set()).add(group)
            if free:
                LOGGER.info("locks of a lost member freed group=%s queues=%d", group, len(free))
                self._free(group, free)

    def _free(self, group: str, queues: Iterable[MessageQueue]) -> None:
        locks = self._locks.get(group, {})
        freed = [locks.pop(queue) for queue in queues]
        if not locks:
            self._locks.pop(group, None)
        if any(lock.refused for lock in freed):
            self._freed(group)

    def _is_over(self, lock: QueueLock) -> bool:
        return self._clock_ms() - lock.renewed_ms > LIFE_MS
