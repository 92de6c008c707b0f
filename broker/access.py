"""Who may do what, and how much of it: accounts, quotas and the audit of a server.

The pipeline checks the rights that the row of a request declares.  What a request finds only while it is served, such
as the topic of a record, is checked by its processor with :meth:`Access.may`: for the account that the pipeline
put into the command.
"""

import logging
from dataclasses import dataclass
from typing import Final, NoReturn

from triomq.broker.accounts import Accounts
from triomq.broker.audit import Audit
from triomq.broker.limits.quotas import Quotas
from triomq.broker.network.connection import Connection
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.acl.accounts import authenticate, check
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.catalogue import NAME_SERVER_STATE, Request
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import ACCESS_KEY

LOGGER: Final = logging.getLogger("triomq.broker.access")

_DENIED: Final = "requests denied since the start: %d; the last one peer=%s code=%d reason=%.300s"
#: Apache's brokers begin the remark with it.
_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "


@dataclass(eq=False)
class Access:
    """Checks accounts; counts, logs and audits denied requests.

    Attributes:
        statistics: counts denied requests.
        audit: records administration, denied requests and logins; ``None``: not kept.
        accounts: who may do what; ``None``: all may do everything.
        quotas: how much; ``None``: that is not limited.
    """

    statistics: BrokerStatistics
    audit: Audit | None
    accounts: Accounts | None = None
    quotas: Quotas | None = None

    def __post_init__(self) -> None:
        self._log = EventLog(LOGGER, _DENIED, logging.WARNING)

    @property
    def files(self) -> list[Accounts | Quotas]:
        """The files that are read again when they change."""
        return [file for file in (self.accounts, self.quotas) if file is not None]

    def check(
        self, accounts: Accounts, connection: Connection, command: RemotingCommand, request: Request | None
    ) -> str:
        """Return the account that signed a request; "": the address needs none.

        Without a row the account is checked, but no right.

        Raises:
            RefusedError: the account or a right is missing.
        """
        try:
            if request is None:
                account = authenticate(accounts.rules, command, connection.peer_ip)
            else:
                account = check(accounts.rules, request, command, connection.peer_ip)
        except RefusedError as exc:
            # A name that is no account is not repeated: it may be a mistyped secret.
            key = command.ext_fields.get(ACCESS_KEY)
            is_shown = not key or key in accounts.rules.accounts
            if key is not None or request is None or request.kind is not NAME_SERVER_STATE:
                self.denied(connection, command, str(exc) if is_shown else "there is no such account")
            raise RefusedError(f"{_EXCEPTION}{exc}") from None
        return "" if account is None else account.access_key

    def may(self, account: str, resource: str, right: int) -> bool:
        """Whether an account has a right now, on a topic, or on a group by its retry topic; "" may do everything."""
        if self.accounts is None or not account:
            return True
        found = self.accounts.rules.accounts.get(account)
        return found is not None and found.may(resource, right)

    def refuse(self, connection: Connection, command: RemotingCommand, reason: str, *, shown: str = "") -> NoReturn:
        """Deny a request for a reason.

        Args:
            connection, command: of the request.
            reason: for the log and the audit.
            shown: the text of the error, where the reason would show the peer something that it must not know.

        Raises:
            RefusedError: always.
        """
        self.denied(connection, command, reason)
        raise RefusedError(shown or f"{_EXCEPTION}{reason}")

    def refuse_place(self, connection: Connection, command: RemotingCommand, reason: str) -> NoReturn:
        """Deny a request because of where it came from; ``reason`` follows its code.

        Raises:
            RefusedError: always.
        """
        text = f"request {command.code} {reason}"
        self.denied(connection, command, text)
        raise RefusedError(text, ResponseCode.NO_PERMISSION)

    def denied(self, connection: Connection, command: RemotingCommand, reason: str) -> None:
        """Count, log and audit a denied request."""
        account = command.ext_fields.get(ACCESS_KEY)
        if self.accounts is None or account not in self.accounts.rules.accounts:
            account = None
        self.statistics.denied_requests += 1
        if self.audit is not None:
            self.audit.note("denied", connection, command, account, reason)
        self._log.occurred(self.statistics.denied_requests, connection.peer, command.code, reason)
