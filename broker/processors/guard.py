"""Checks every request before anything is done: the account that signed it, and where it may come from.

Rules: a connection remembers no account; one-way requests and codes that nobody serves are checked like all others.
Where administration has a listener of its own, it is refused elsewhere.  The name server asks nobody for an account:
its administration is for this machine, and brokers register from there or from the addresses of ``brokers_from``.
"""

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from triomq.broker.accounts import Accounts
from triomq.broker.addresses import is_in
from triomq.broker.audit import Audit
from triomq.broker.config import ConnectionConfig
from triomq.broker.limits.rates import Quotas
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import Connection, Processor, Requests
from triomq.broker.processors.quotas import QuotaCheck
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.acl.accounts import Account, AclRules
from triomq.protocol.acl.verdict import authenticate, check, passes_as_send
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import RefusedError, TriomqError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.requests.topics import BrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import ACCESS_KEY

LOGGER: Final = logging.getLogger("triomq.broker.processors.guard")

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
#: Apache's brokers begin the remark with it.
_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
Judge: TypeAlias = Callable[[Connection, RemotingCommand], str | None]
"""Lets a request pass; returns its account, "" if its address needs none, ``None`` where nobody needs one.

Raises RefusedError if it does not pass.
"""


class Port(Enum):
    """Kinds of ports."""

    BROKER = auto()
    NAMESRV = auto()
    ADMIN = auto()


class Guard:
    """Lets requests pass by the accounts that count at the moment and the addresses that they come from.

    Attributes:
        quotas: checks how much they use; ``None``: nobody does.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        routes: RouteTable,
        statistics: BrokerStatistics,
        accounts: Accounts | None = None,
        audit: Audit | None = None,
        quotas: QuotaCheck | None = None,
    ) -> None:
        self._config = config
        self._routes = routes
        self._statistics = statistics
        self._accounts = accounts
        self._audit = audit
        self.quotas: Final = quotas
        self._log = EventLog(
            LOGGER, "requests denied since the start: %d; the last one peer=%s code=%d reason=%.300s", logging.WARNING
        )

    def guarded(self, requests: Requests, port: Port) -> Requests:
        """Return the same requests, each checked first; those that nobody serves need an account and no right."""
        processors = {code: self._guarded(code, processor, port) for code, processor in requests.processors.items()}
        unserved = requests.unserved
        if self._accounts is not None and port is not Port.NAMESRV:
            unserved = self._checking(unserved, self._authenticate)
        return requests._replace(processors=processors, unserved=unserved)

    def passes(self, connection: Connection, fields: dict[str, Any], body: bytes) -> bool:
        """Whether a request with this JSON header passes; if not, its processor tells why."""
        try:
            account = "" if self._accounts is None else self._signer(self._accounts.rules, connection, fields, body)
            if self.quotas is not None:
                self.quotas.quotas.join(connection, account)
        except (TriomqError, KeyError, ValueError, TypeError):
            return False
        return True

    def _signer(self, rules: AclRules, connection: Connection, fields: dict[str, Any], body: bytes) -> str:
        if fields["code"] == _SEND and passes_as_send(rules, fields["extFields"], body):
            account: str = fields["extFields"][ACCESS_KEY]
            if self._audit is None or account in connection.logins:
                return account
        command = RemotingCommand.from_json(fields, body)
        account = self._account(connection, command)
        if self._audit is not None:
            self._audit.login(connection, command, account)
        return account

    # --- judges -----------------------------------------------------------------------------------------

    def _judge(self, code: int, port: Port) -> Judge | None:
        place = self._place(code, port)
        if self._accounts is None or port is Port.NAMESRV:
            return place
        if place is None:
            return self._account

        def both(connection: Connection, command: RemotingCommand) -> str | None:
            place(connection, command)
            return self._account(connection, command)

        return both

    def _place(self, code: int, port: Port) -> Judge | None:
        """Return what checks where a request comes from; ``None``: it may come from anywhere."""
        if port is Port.ADMIN:
            return None
        if CATALOGUE[code].kind.is_from_broker:
            return self._from_broker
        if self._config.admin_listen is not None and CATALOGUE[code].is_administration:
            return _administers
        if CATALOGUE[code].kind.changes_name_server and (port is Port.NAMESRV or self._accounts is None):
            return self._changes_name_server
        return None

    def _account(self, connection: Connection, command: RemotingCommand) -> str:
        assert self._accounts is not None
        return _key(check(self._accounts.rules, CATALOGUE[command.code], command, connection.peer_ip))

    def _authenticate(self, connection: Connection, command: RemotingCommand) -> str:
        assert self._accounts is not None
        return _key(authenticate(self._accounts.rules, command, connection.peer_ip))

    def _from_broker(self, connection: Connection, command: RemotingCommand) -> None:
        if connection.is_local:
            return
        if not is_in(connection.peer_ip, self._config.brokers_from):
            raise _misplaced(command, f"is for brokers, and {connection.peer_ip} is not in --brokers-from")
        if command.code == RequestCode.UNREGISTER_BROKER:
            owner = self._routes.owner_of(BrokerRequestHeader.decode(command.ext_fields))
            if owner is not None and owner.peer_ip != connection.peer_ip:
                raise _misplaced(command, f"ends a registration from {owner.peer_ip}, which only that address may")

    def _changes_name_server(self, connection: Connection, command: RemotingCommand) -> None:
        is_idle = command.code == RequestCode.DELETE_TOPIC_IN_NAMESRV and not self._routes.is_registered(
            command.ext_fields.get("topic", "")
        )  # tools send it after each topic that they deleted; here there may be nothing left to do
        if not connection.is_local and not is_idle:
            raise _misplaced(command, "changes the name server: allowed on its machine, or at its --admin-listen")

    # --- checks -----------------------------------------------------------------------------------------

    def _guarded(self, code: int, processor: Processor, port: Port) -> Processor:
        judge = self._judge(code, port)
        if self.quotas is not None and port is not Port.NAMESRV:
            judge = self._joining(judge or _anybody, self.quotas.quotas)
            processor = self.quotas.limited(code, processor)
        is_noted = self._audit is not None and CATALOGUE[code].is_administration
        if judge is None and not is_noted:
            return processor
        return self._checking(processor, judge or _anybody, is_noted=is_noted)

    def _joining(self, judge: Judge, quotas: Quotas) -> Judge:
        def joining(connection: Connection, command: RemotingCommand) -> str | None:
            account = judge(connection, command)
            quotas.join(connection, account or "")
            return account

        return joining

    def _checking(self, processor: Processor, judge: Judge, *, is_noted: bool = False) -> Processor:
        audit = self._audit

        def checking(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            try:
                account = judge(connection, command)
            except RefusedError as exc:
                if exc.limit:  # it has the right, but no room
                    raise
                is_place = exc.code == ResponseCode.NO_PERMISSION
                self._denied(connection, command, str(exc), is_known=is_place)
                if is_place:
                    raise
                raise RefusedError(f"{_EXCEPTION}{exc}") from None
            if audit is not None:
                if account is not None:
                    audit.login(connection, command, account)
                if is_noted:
                    audit.note("administration", connection, command, account)
            return processor(connection, command)

        return checking

    def _denied(self, connection: Connection, command: RemotingCommand, reason: str, *, is_known: bool = True) -> None:
        """Count and log it; a name that is no account is not repeated, as it may be a mistyped secret."""
        account = command.ext_fields.get(ACCESS_KEY)
        if self._accounts is None or account not in self._accounts.rules.accounts:
            reason = reason if is_known or not account else "there is no such account"
            account = None
        self._statistics.denied_requests += 1
        if self._audit is not None:
            self._audit.note("denied", connection, command, account, reason)
        self._log.occurred(self._statistics.denied_requests, connection.peer, command.code, reason)


def _key(account: Account | None) -> str:
    return "" if account is None else account.access_key


def _misplaced(command: RemotingCommand, reason: str) -> RefusedError:
    return RefusedError(f"request {command.code} {reason}", ResponseCode.NO_PERMISSION)


def _anybody(_connection: Connection, _command: RemotingCommand) -> None:
    """Let each request pass."""


def _administers(_connection: Connection, command: RemotingCommand) -> None:
    raise _misplaced(command, "is administration, which this server takes only at its --admin-listen")
