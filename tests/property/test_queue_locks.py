"""The broker's lock table against a plain model."""

from dataclasses import dataclass
from typing import cast

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triomq.broker.groups.queue_locks import LIFE_MS, LOST_LIFE_MS, QueueLocks
from triomq.broker.network.connection import Connection
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.reading.cold_read import finish

GROUPS = ("G", "H")
CLIENTS = ("a", "b", "c")
STOPS_WITH_CONNECTION = ("a", "b")
QUEUES = tuple(MessageQueue("T", "broker-a", queue_id) for queue_id in range(4))
some_queues = st.lists(st.sampled_from(QUEUES), max_size=4, unique=True)


@dataclass
class ModelLock:
    owner: str
    since_ms: int
    refused: bool
    is_connected: bool = True


class LockMachine(RuleBasedStateMachine):
    """Each client has one connection; when it is lost it gets another one."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.told: list[str] = []
        self.locks = QueueLocks(clock_ms=lambda: self.now_ms, freed=self.told.append)
        self.connections = {client: cast(Connection, object()) for client in CLIENTS}
        self.model: dict[tuple[str, MessageQueue], ModelLock] = {}

    def _owner(self, group: str, queue: MessageQueue) -> str | None:
        lock = self.model.get((group, queue))
        if lock is None:
            return None
        return lock.owner if self.now_ms - lock.since_ms <= (LIFE_MS if lock.is_connected else LOST_LIFE_MS) else None

    @rule(milliseconds=st.sampled_from([1, 20_000, LOST_LIFE_MS, LIFE_MS, LIFE_MS + 1]))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS), queues=some_queues)
    def lock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        expected = [queue for queue in queues if self._owner(group, queue) in (None, client)]
        for queue in queues:
            if queue not in expected:
                self.model[group, queue].refused = True
        for queue in expected:
            known = self.model.get((group, queue))
            refused = known is not None and known.owner == client and known.refused
            self.model[group, queue] = ModelLock(client, self.now_ms, refused)
        connection, declares = self.connections[client], client in STOPS_WITH_CONNECTION
        assert self.locks.lock(group, client, connection, queues, ends_with_connection=declares) == expected

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS), queues=some_queues)
    def unlock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        self.told.clear()
        owned = [(group, queue) for queue in queues if (group, queue) in self.model]
        freed = [self.model.pop(key) for key in owned if self.model[key].owner == client]
        self.locks.unlock(group, client, queues)
        assert self.told == [group] * any(lock.refused for lock in freed)

    @rule(client=st.sampled_from(CLIENTS), closed_by_peer=st.booleans())
    def lose_connection(self, client: str, closed_by_peer: bool) -> None:
        self.told.clear()
        told = set()
        for (group, queue), lock in list(self.model.items()):
            if lock.owner == client and lock.is_connected:
                lock.is_connected = False
                if closed_by_peer and client in STOPS_WITH_CONNECTION:
                    del self.model[group, queue]
                    told |= {group} if lock.refused else set()
        release = self.locks.release(
            self.connections[client], lambda _group, _client: None, closed_by_peer=closed_by_peer
        )
        finish(release)
        self.connections[client] = cast(Connection, object())
        assert sorted(self.told) == sorted(told)

    @rule(client=st.sampled_from(CLIENTS), closed_by_peer=st.booleans())
    def reconnect(self, client: str, closed_by_peer: bool) -> None:
        """The client is back before its old connection is found dead."""
        old, new = self.connections[client], cast(Connection, object())
        self.connections[client] = new
        release = self.locks.release(
            old, lambda _group, client_id: new if client_id == client else None, closed_by_peer=closed_by_peer
        )
        finish(release)

    @rule()
    def free_ended(self) -> None:
        self.told.clear()
        told = set()
        for (group, queue), lock in list(self.model.items()):
            if not lock.is_connected and self._owner(group, queue) is None:
                del self.model[group, queue]
                told |= {group} if lock.refused else set()
        finish(self.locks.free_ended())
        assert sorted(self.told) == sorted(told)

    @invariant()
    def owners_agree(self) -> None:
        for group in GROUPS:
            for queue in QUEUES:
                assert self.locks.owner(group, queue) == self._owner(group, queue)


LockMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
test_the_lock_table_behaves_like_its_model = LockMachine.TestCase
