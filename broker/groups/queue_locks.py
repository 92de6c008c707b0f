"""Queue locks: which member of a group may consume a queue in order.

A lock belongs to a client id and ends 60 s after its last renewal, as in RocketMQ.  It outlives the connection: Java
members trust a lock for 30 s, and continue with cached messages when their connection is lost.  Then it ends 45 s
after its last renewal.  A lock ends at once if the member unlocks the queue or unregisters.

Beyond RocketMQ, a member may declare that it stops with its connection.  If that connection is closed by the peer (a
plain FIN, as when its process dies) and the client does not reconnect within :data:`CLOSE_GRACE_S`, its locks are freed
and the members that were refused them are notified.  A reset or a timeout proves nothing: the member may live.

Locks are in memory only, as in RocketMQ: after a restart of the broker the first member that asks gets the queue.

Source: behaviour.md A.14; RebalanceLockManager.java.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from triomq.broker.network.connection import Connection
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.reading.cold_read import PAUSE, Work

LOGGER: Final = logging.getLogger("triomq.broker.groups.queue_locks")

#: Life of a lock after its last renewal.  Source: rocketmq.broker.rebalance.lockMaxLiveTime.
LIFE_MS: Final = 60_000
#: Life of a lock whose owner has lost its connection.  Java members trust theirs for 30 s after a renewal, and handlers
#: that began before that may still run.
LOST_LIFE_MS: Final = 45_000
#: How long a client whose connection was closed by a proxy, say, has to reconnect before its locks are freed.
CLOSE_GRACE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class QueueLock:
    """One locked queue of a group.

    Attributes:
        client_id: the owner.
        connection: where the owner last asked for it; ``None`` when that is closed.
        renewed_ms: when that was.
        ends_with_connection: whether the owner declared that it stops when its connection ends.
        refused: whether another client asked for it since.
    """

    client_id: str
    connection: Connection | None = None
    renewed_ms: int = 0
    ends_with_connection: bool = False
    refused: bool = False


@dataclass(eq=False, kw_only=True)
class QueueLocks:
    """The locks of all groups.

    Attributes:
        groups_of: the groups in which queues were locked, by connection.
        clock_ms: a steady clock: if the wall clock were set forward, all locks would end at once.
        freed: called with a group one of whose queues became free after a client had been refused it.
        may_lock: whether a group and a queue exist.
    """

    clock_ms: Callable[[], int]
    freed: Callable[[str], None]
    may_lock: Callable[[str, MessageQueue], bool] = lambda _group, _queue: True

    def __post_init__(self) -> None:
        self._locks: dict[str, dict[MessageQueue, QueueLock]] = {}
        self.groups_of: dict[Connection, set[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._locks.values()))

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client id of a queue's owner; ``None`` if no client holds a valid lock."""
        lock = self._locks.get(group, {}).get(queue)
        return None if lock is None or self._is_over(lock) else lock.client_id

    def lock(
        self,
        group: str,
        client_id: str,
        connection: Connection,
        queues: Iterable[MessageQueue],
        *,
        ends_with_connection: bool = False,
    ) -> list[MessageQueue]:
        """Lock those of the queues that no other client holds, renew those that the client holds; return both."""
        now_ms = self.clock_ms()
        locks = self._locks.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id != client_id and not self._is_over(lock):
                lock.refused = True
                continue
            if lock is None and not self.may_lock(group, queue):
                continue
            if lock is None or lock.client_id != client_id:
                lock = locks[queue] = QueueLock(client_id)
            lock.connection, lock.renewed_ms, lock.ends_with_connection = connection, now_ms, ends_with_connection
            granted.append(queue)
        if granted:
            self.groups_of.setdefault(connection, set()).add(group)
        elif not locks:
            del self._locks[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free those of the queues that the client holds."""
        locks = self._locks.get(group, {})
        owned = [queue for queue in dict.fromkeys(queues) if queue in locks and locks[queue].client_id == client_id]
        self._free(group, owned)

    def leave(self, group: str, client_id: str) -> None:
        """Free all queues of a client that unregistered from the group."""
        self.unlock(group, client_id, tuple(self._locks.get(group, ())))

    def release(
        self, connection: Connection, successor: Callable[[str, str], Connection | None], *, closed_by_peer: bool
    ) -> Work[float]:
        """Free the locks of a connection that ended :data:`CLOSE_GRACE_S` ago, as far as its members have stopped.

        Args:
            connection: the closed connection.
            successor: returns a live connection of a client id in a group, which takes over the locks.
            closed_by_peer: whether it ended by a plain FIN.

        Returns:
            Seconds until the last of the other locks ends, when :meth:`free_ended` is to be called; 0 without any.
        """
        ends_ms = 0
        for group in self.groups_of.pop(connection, ()):
            free = []
            for queue, lock in list(self._locks.get(group, {}).items()):
                yield PAUSE
                if lock.connection is not connection:  # renewed on another one
                    continue
                lock.connection = successor(group, lock.client_id)
                if lock.connection is not None:
                    self.groups_of.setdefault(lock.connection, set()).add(group)
                elif closed_by_peer and lock.ends_with_connection:
                    free.append(queue)
                else:
                    ends_ms = max(ends_ms, lock.renewed_ms + LOST_LIFE_MS)
            if free:
                LOGGER.info("locks of a lost member freed group=%s queues=%d", group, len(free))
                self._free(group, free)
        return max(ends_ms + 1 - self.clock_ms(), 1) / 1000 if ends_ms else 0.0

    def free_ended(self) -> Work[None]:
        """Free the ended locks of lost members, and notify the members that were refused them."""
        for group, locks in list(self._locks.items()):
            ended = []
            for queue, lock in list(locks.items()):
                yield PAUSE
                if lock.connection is None and self._is_over(lock):
                    ended.append(queue)
            if ended:
                self._free(group, ended)

    def _free(self, group: str, queues: Iterable[MessageQueue]) -> None:
        locks = self._locks.get(group, {})
        freed = [locks.pop(queue) for queue in queues if queue in locks]
        if not locks:
            self._locks.pop(group, None)
        if any(lock.refused for lock in freed):
            self.freed(group)

    def _is_over(self, lock: QueueLock) -> bool:
        life_ms = LOST_LIFE_MS if lock.connection is None else LIFE_MS
        return self.clock_ms() - lock.renewed_ms > life_ms
