"""Requests that the broker sends to clients.

No task waits for an answer: the answer, the end of the client's connection or the deadline calls a plain function, in
the step in which it happens.

Source: behaviour.md A.15, wire.md 6; Broker2Client.java.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

import trio

from triomq.broker.limits.peers import MemoryBudget, Reader
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.wire.command import RemotingCommand

#: Largest number of unanswered requests.  Working clients answer in milliseconds.
LIMIT: Final = 4096
_MAX_OPAQUE: Final = 0x7FFFFFFF
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class NoAnswer(Enum):
    """Why a request has no answer."""

    TIMEOUT = "no answer in time"
    NO_ROOM = "the answers are too large, or requests not read"
    CLOSED = "the connection ended"


Read = TypeVar("Read")
Done: TypeAlias = Callable[[RemotingCommand | NoAnswer], None]


class _Pending(NamedTuple):
    connection: Reader
    done: Done
    deadline: float


class ClientRequests:
    """Sends requests to clients, and keeps those that are not answered yet, by opaque.

    Attributes:
        budget: bounds the memory of requests and answers.
    """

    def __init__(self, stopping: trio.Event, budget: MemoryBudget) -> None:
        """Notices of group changes end with ``stopping``, because all members leave then."""
        self._stopping = stopping
        self.budget = budget
        self._pending: dict[int, _Pending] = {}
        self._opaque = 0

    def __len__(self) -> int:
        return len(self._pending)

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & _MAX_OPAQUE
        return self._opaque

    def send_oneway(self, connection: Reader, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Send a one-way request."""
        connection.send(RemotingCommand(code, self._next_opaque(), _ONEWAY, dict(fields), body))

    def notify_ids_changed(self, connection: Reader, group: str) -> None:
        """Ask a member of a consumer group to rebalance; one that does not read does so by its timer."""
        if not self._stopping.is_set() and self.budget.is_read_by(connection):
            self.send_oneway(connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def ask(
        self,
        connection: Reader,
        code: int,
        fields: Mapping[str, str],
        body: bytes | memoryview,
        timeout_s: float,
        done: Done,
    ) -> None:
        """Send a request; ``done`` is called once, with the answer or the reason why none came.

        Raises:
            RefusedError: too many requests are unanswered, or the client does not read.
        """
        self._check_room(1)
        self.budget.check_reads(connection)
        opaque = self._next_opaque()
        self._pending[opaque] = _Pending(connection, done, trio.current_time() + timeout_s)
        connection.send(RemotingCommand(code, opaque, 0, dict(fields), body))

    def ask_all(
        self,
        requests: Mapping[str, tuple[Reader, Mapping[str, str]]],
        code: int,
        timeout_s: float,
        read: Callable[[RemotingCommand], Read],
        done: Callable[[dict[str, Read | None]], None],
    ) -> None:
        """Send a request to several clients, by client id, each with its fields.

        ``read`` is called with each answer when it comes, which spreads the work, and ``done`` with all its results,
        ``None`` for clients that did not answer.

        Raises:
            RefusedError: too many requests are unanswered; none was sent.
        """
        self._check_room(len(requests))
        answers: dict[str, Read | None] = {}
        reserved = 0

        def take(client_id: str, answer: RemotingCommand | NoAnswer) -> None:
            nonlocal reserved
            answers[client_id] = None
            if isinstance(answer, RemotingCommand) and self.budget.has_room(answer.content_bytes):
                reserved += answer.content_bytes
                self.budget.reserved_bytes += answer.content_bytes
                answers[client_id] = read(answer)
            if len(answers) == len(requests):
                self.budget.reserved_bytes -= reserved
                done(answers)

        for client_id, (connection, fields) in requests.items():
            try:
                self.ask(connection, code, fields, b"", timeout_s, partial(take, client_id))
            except RefusedError:
                take(client_id, NoAnswer.NO_ROOM)

    def _check_room(self, count: int) -> None:
        if len(self._pending) + count > LIMIT:
            raise RefusedError(f"{LIMIT} requests wait for clients", ResponseCode.SYSTEM_BUSY)

    def handle_answer(self, connection: Reader, response: RemotingCommand) -> bool:
        """End the request that a client answers; return ``False`` if it was not asked."""
        pending = self._pending.get(response.opaque)
        if pending is None or pending.connection is not connection:
            return False
        del self._pending[response.opaque]
        pending.done(response)
        return True

    def forget(self, connection: Reader) -> None:
        """End the requests that a closed connection will not answer any more."""
        self._end([opaque for opaque, each in self._pending.items() if each.connection is connection], NoAnswer.CLOSED)

    def expire(self, now: float) -> None:
        """End the requests whose deadline has passed."""
        self._end([opaque for opaque, each in self._pending.items() if each.deadline <= now], NoAnswer.TIMEOUT)

    def _end(self, opaques: list[int], reason: NoAnswer) -> None:
        for opaque in opaques:
            self._pending.pop(opaque).done(reason)
