"""Requests of the broker to clients that want an answer: which are under way, and who waits for it.

Nothing waits here: an answer, the end of the client's connection or the deadline calls a plain function, in the step in
which it came.

Source: behaviour.md A.15, wire.md 6; Broker2Client.java.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import trio

from triomq.broker.network.refusal import RequestRefusedError
from triomq.protocol.codes import ResponseCode
from triomq.protocol.wire.command import RemotingCommand

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection

#: Most requests under way; clients answer in milliseconds, or are broken.
LIMIT: Final = 4096


class NoAnswer(Enum):
    """Why there is none."""

    TIMEOUT = "no answer in time"
    CLOSED = "the connection ended"


Done: TypeAlias = Callable[[RemotingCommand | NoAnswer], None]


class _UnderWay(NamedTuple):
    connection: "Connection"
    done: Done
    deadline: float


class ClientRequests:
    """All requests under way, by opaque."""

    def __init__(self, next_opaque: Callable[[], int]) -> None:
        self._next_opaque = next_opaque
        self._under_way: dict[int, _UnderWay] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def ask(
        self,
        connection: "Connection",
        code: int,
        fields: Mapping[str, str],
        body: bytes | memoryview,
        timeout_s: float,
        done: Done,
    ) -> None:
        """Send a request; ``done`` is called once: with the answer, or with why there is none.

        Raises:
            RequestRefusedError: too many are under way.
        """
        self._check_room(1)
        opaque = self._next_opaque()
        self._under_way[opaque] = _UnderWay(connection, done, trio.current_time() + timeout_s)
        connection.send(RemotingCommand(code, opaque, 0, dict(fields), body))

    def ask_all(
        self,
        connections: "Mapping[str, Connection]",
        code: int,
        fields: Mapping[str, str],
        timeout_s: float,
        done: Callable[[dict[str, RemotingCommand | NoAnswer]], None],
    ) -> None:
        """Send a request to several clients, by client id; ``done`` is called with what each answered.

        Raises:
            RequestRefusedError: too many are under way; nobody was asked.
        """
        self._check_room(len(connections))
        answers: dict[str, RemotingCommand | NoAnswer] = {}

        def take(client_id: str, answer: RemotingCommand | NoAnswer) -> None:
            answers[client_id] = answer
            if len(answers) == len(connections):
                done(answers)

        for client_id, connection in connections.items():
            self.ask(connection, code, fields, b"", timeout_s, partial(take, client_id))

    def _check_room(self, count: int) -> None:
        if len(self._under_way) + count > LIMIT:
            raise RequestRefusedError(ResponseCode.SYSTEM_BUSY, f"{LIMIT} requests wait for clients")

    def answered(self, connection: "Connection", response: RemotingCommand) -> bool:
        """Take an answer; return ``False`` if nobody asked this client for it."""
        under_way = self._under_way.get(response.opaque)
        if under_way is None or under_way.connection is not connection:
            return False
        del self._under_way[response.opaque]
        under_way.done(response)
        return True

    def forget(self, connection: "Connection") -> None:
        """End what a closed connection will not answer any more."""
        self._end([key for key, each in self._under_way.items() if each.connection is connection], NoAnswer.CLOSED)

    def expire(self, now: float) -> None:
        """End what was not answered in time."""
        self._end([opaque for opaque, each in self._under_way.items() if each.deadline <= now], NoAnswer.TIMEOUT)

    def _end(self, opaques: list[int], reason: NoAnswer) -> None:
        for opaque in opaques:
            self._under_way.pop(opaque).done(reason)
