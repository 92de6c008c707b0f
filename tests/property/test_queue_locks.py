"""The broker's lock table against a plain model: a dictionary from group and queue to owner, connection and time."""

from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triomq.broker.groups.queue_locks import LIFE_MS, QueueLocks
from triomq.broker.network.connection import Connection
from triomq.protocol.message_queue import MessageQueue

GROUPS = ("G", "H")
CLIENTS = ("a", "b", "c")
QUEUES = tuple(MessageQueue("T", "broker-a", queue_id) for queue_id in range(4))
some_queues = st.lists(st.sampled_from(QUEUES), max_size=4, unique=True)


class LockMachine(RuleBasedStateMachine):
    """Each client has one connection; when it is lost it gets another one."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.told: list[str] = []
        self.locks = QueueLocks(clock_ms=lambda: self.now_ms, freed=self.told.append)
        self.connections = {client: cast(Connection, object()) for client in CLIENTS}
        self.model: dict[tuple[str, MessageQueue], list[Any]] = {}  # owner, time, whether somebody was refused

    def _owner(self, group: str, queue: MessageQueue) -> str | None:
        owner, since, _ = self.model.get((group, queue), (None, 0, False))
        return owner if owner is not None and self.now_ms - since <= LIFE_MS else None

    @rule(milliseconds=st.sampled_from([1, 20_000, LIFE_MS, LIFE_MS + 1]))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS), queues=some_queues)
    def lock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        expected = [queue for queue in queues if self._owner(group, queue) in (None, client)]
        for queue in queues:
            if queue not in expected:
                self.model[group, queue][2] = True
        for queue in expected:
            owner, _, refused = self.model.get((group, queue), (None, 0, False))
            self.model[group, queue] = [client, self.now_ms, refused and owner == client]
        assert self.locks.lock(group, client, self.connections[client], queues) == expected

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS), queues=some_queues)
    def unlock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        self.told.clear()
        freed = [queue for queue in queues if self.model.get((group, queue), [None])[0] == client]
        self.locks.unlock(group, client, queues)
        assert self.told == [group] * any(entry[2] for entry in [self.model.pop((group, queue)) for queue in freed])

    @rule(client=st.sampled_from(CLIENTS))
    def lose_connection(self, client: str) -> None:
        self.told.clear()
        lost = {key: self.model.pop(key) for key in list(self.model) if self.model[key][0] == client}
        self.locks.forget(self.connections[client], lambda _group, _client: None)
        self.connections[client] = cast(Connection, object())
        assert sorted(self.told) == sorted({group for (group, _), entry in lost.items() if entry[2]})

    @rule(client=st.sampled_from(CLIENTS))
    def reconnect(self, client: str) -> None:
        """The client is back before its old connection is found dead."""
        old, new = self.connections[client], cast(Connection, object())
        self.connections[client] = new
        self.locks.forget(old, lambda _group, client_id: new if client_id == client else None)

    @invariant()
    def owners_agree(self) -> None:
        for group in GROUPS:
            for queue in QUEUES:
                assert self.locks.owner(group, queue) == self._owner(group, queue)


LockMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
test_the_lock_table_behaves_like_its_model = LockMachine.TestCase
