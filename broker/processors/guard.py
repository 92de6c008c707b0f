"""Checks every request before anything is done, in a broker with accounts.

Rules: a connection remembers no account; one-way requests and codes that nobody serves are checked like all others.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from triomq.broker.accounts import Accounts
from triomq.broker.addresses import Address
from triomq.broker.network.connection import Connection, Processor, Requests
from triomq.broker.network.refusal import RareLog, RefusedError
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.acl.accounts import AclRules
from triomq.protocol.acl.verdict import authenticate, check, passes_as_send
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import AccessDeniedError, TriomqError
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.processors.guard")

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
#: Apache's brokers begin the remark with it.
_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "


#: What changes the name server: its tables, its settings, and the brokers that it names.
_NAMESRV_CHANGES: Final = frozenset(
    (
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    )
)

Judge: TypeAlias = Callable[[AclRules, RemotingCommand, str], object]
"""Raises AccessDeniedError for a request of a host that does not pass."""


class Guard:
    """Lets requests pass by the accounts that count at the moment."""

    def __init__(self, accounts: Accounts, statistics: BrokerStatistics, clock_ms: Callable[[], int]) -> None:
        self._accounts = accounts
        self._statistics = statistics
        self._log = RareLog(
            LOGGER, "requests denied since the start: %d; the last one peer=%s code=%d reason=%.300s", clock_ms
        )

    def guarded(self, requests: Requests) -> Requests:
        """Return the same requests, each checked first; those that nobody serves need an account and no right."""
        processors = {code: self._checking(processor) for code, processor in requests.processors.items()}
        return Requests(processors, requests.next_command, self._checking(requests.unserved, authenticate))

    def passes(self, connection: Connection, fields: dict[str, Any], body: bytes) -> bool:
        """Whether a request with this JSON header passes; if not, its processor tells why."""
        rules = self._accounts.rules
        try:
            if fields["code"] == _SEND and passes_as_send(rules, fields["extFields"], body):
                return True
            check(rules, RemotingCommand.from_json(fields, body), connection.peer_ip)
        except (TriomqError, KeyError, ValueError, TypeError):
            return False
        return True

    def _checking(self, processor: Processor, judge: Judge = check) -> Processor:
        def checking(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            try:
                judge(self._accounts.rules, command, connection.peer_ip)
            except AccessDeniedError as exc:
                self._note(connection, command, exc)
                raise RefusedError(f"{_EXCEPTION}{exc}") from None
            return processor(connection, command)

        return checking

    def _note(self, connection: Connection, command: RemotingCommand, error: AccessDeniedError) -> None:
        self._statistics.denied_requests += 1
        self._log.note(self._statistics.denied_requests, connection.peer, command.code, error)


def changed_from_loopback(requests: Requests) -> Requests:
    """Return the requests of a name server's port, those that change it only for peers on this machine."""

    def checking(processor: Processor) -> Processor:
        def process(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            if not Address(connection.peer_ip, 0).is_loopback:
                raise RefusedError(
                    f"request {command.code} changes the name server, which is allowed on its machine only"
                )
            return processor(connection, command)

        return process

    processors = {
        code: checking(processor) if code in _NAMESRV_CHANGES else processor
        for code, processor in requests.processors.items()
    }
    return requests._replace(processors=processors)
