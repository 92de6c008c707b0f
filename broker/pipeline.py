"""The pipeline: the way of each request from a command to its answer, in straight code that reads the request's row.

The problem
    Before a request is served, several parts have a say: where it comes from, whose it is, how much its account uses.
    Who administers, and who was denied, is recorded.  Some requests take several steps.

What was rejected
    Functions that wrap the processor, one for each part: which of them wrap a code is decided far from the code, and a
    traceback is a pile of frames with the same name.

What it is
    ``serve`` looks up the row (``protocol/requests/catalogue.py``) and the method, and then takes these steps in order:
    place, account, limits (overload, quotas, size), audit, run.  Connections call it, and any other front door may: all
    that it needs is the command, when that arrived, and a connection before its first request.  ``commands`` is the
    short way of plain sends: one decision on overload for all sends of a read, and the other steps in ``account_of``
    and ``counts``.

The invariant
    - A code without a row, or without a method, is refused, also for administrators.
    - A connection remembers no account: each request is checked, one-way requests and unknown codes too.
    - Nothing is done for a request that is denied; it is counted, logged and audited, except for questions for a name
      server that name no account: a client that does not know yet whether it asks a broker sends them so.
    - The name server asks no one for an account: its administration is for this machine, and brokers register from
      there or from the addresses of ``brokers_from``, at every port.  If administration has a separate listener,
      all other ports refuse it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeAlias

from triomq.broker.access import Access
from triomq.broker.accounts import Accounts
from triomq.broker.addresses import is_in
from triomq.broker.limits.overload import Overload
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import Connection, ConnectionContext, Port
from triomq.broker.processors.plain_requests import PlainRequests
from triomq.broker.work import Answer
from triomq.protocol.acl.accounts import check, passes_as_send
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import RefusedError, TriomqError
from triomq.protocol.requests.catalogue import CATALOGUE, IN_ONE_STEP, PULL, ROUTE, Request
from triomq.protocol.requests.topics import BrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import Frame
from triomq.protocol.wire.signing import ACCESS_KEY
from triomq.storage.append import Entry
from triomq.storage.reading.cold_read import Work

#: Answers a request, now, later (``None``), or with work of several steps; must not await.
Method: TypeAlias = Callable[[Connection, RemotingCommand], Answer | Work[Answer]]

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_BROKER_PORT: Final = Port.BROKER  # the look-up of a member takes 0.4 us
_NAMESRV_PORT: Final = Port.NAMESRV
_RECORD_BYTES: Final = 128  # of a record beside body and properties, about


def methods_of(families: Iterable[object], *, is_slave: bool = False) -> dict[int, tuple[Request, Method]]:
    """Return the methods that are named as request codes, such as ``send_message``, with their rows, by code.

    A slave has a refusal in place of those that only its master serves.  So a master checks nothing for each request.
    """
    served: dict[int, tuple[Request, Method]] = {}
    for family in families:
        for code, request in CATALOGUE.items():
            method = getattr(family, request.code.name.lower(), None)
            if method is not None:
                served[code] = request, _refusal(request) if is_slave and request.kind.at_slave is not None else method
    return served


def _refusal(request: Request) -> Method:
    """Return the method with which a slave refuses a request that only its master serves."""
    code = request.kind.at_slave or ResponseCode.SYSTEM_ERROR

    def refuse(_connection: Connection, _command: RemotingCommand) -> Answer:
        raise RefusedError(f"this broker is a slave: {request.code.name} is for its master", code)

    return refuse


@dataclass(eq=False)
class Pipeline:
    """Serves the requests of all ports of a server.

    Attributes:
        context: what the connections share.
        routes: the brokers that registered here.
        access: who may do what.
        served: the row and the method of each code.
        plain_requests: serves plain sends and decisions together; ``None``: a name server.
        overload: refuses late sends; ``None``: likewise.
    """

    context: ConnectionContext
    routes: RouteTable
    served: dict[int, tuple[Request, Method]]
    access: Access
    plain_requests: PlainRequests | None = None
    overload: Overload | None = None

    def __post_init__(self) -> None:
        access = self.access
        self._config, self._worker = self.context.config, self.context.worker
        self._accounts, self._quotas, self._audit = access.accounts, access.quotas, access.audit
        self._is_guarded = access.accounts is not None or access.quotas is not None

    def commands(
        self, connection: Connection, frames: Iterator[Frame], arrived_at: float = inf
    ) -> Iterator[RemotingCommand]:
        """Yield the requests of a step that must be served by themselves; serve plain ones, or refuse late sends.

        Raises:
            ProtocolError: a frame cannot be read; those before it are served.
        """
        if self.plain_requests is None or self.overload is None or connection.port is _NAMESRV_PORT:
            yield from map(RemotingCommand.decode, frames)
            return
        now, checks = self._worker.step_began, self if self._is_guarded else None
        waited_ms = self.overload.waited_ms(connection, now, arrived_at)
        while True:
            if waited_ms:
                command = self.overload.refuse_plain(connection, frames, now, waited_ms)
            else:
                command = self.plain_requests.serve(connection, frames, checks)
            if command is None:
                return
            yield command

    def serve(self, connection: Connection, command: RemotingCommand, arrived_at: float = inf) -> Answer:
        """Serve a request and return its answer, ``None`` if it has none or the answer is sent later.

        Args:
            connection: where it came from, and where a later answer goes.
            command: the request.
            arrived_at: a time by the worker's clock, s: it arrived then, or later.  By default it has not waited.

        Raises:
            RefusedError: the request is not served; the text says why.
            TriomqError: it cannot be read, or serving it failed.
        """
        found, port = self.served.get(command.code), connection.port
        if found is None or (port is not _BROKER_PORT and not _is_served_at(port, found[0])):
            account = self._check_account(connection, command, None)  # it needs an account, but no right
            if self._audit is not None and account is not None:
                self._audit.login(connection, command, account)
            row, remark = CATALOGUE.get(command.code), f" request type {command.code} not supported"
            if row is not None and row.refused:
                remark += f": {row.refused}"
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        request, method = found
        if self._is_guarded or request.is_restricted:
            self._check_place(connection, command, request)
            account = self._check_account(connection, command, request)
            self._check_limits(connection, command, request, account, arrived_at)
            if self._audit is not None:
                if account is not None:
                    self._audit.login(connection, command, account)
                if request.is_administration:
                    self._audit.note("administration", connection, command, account)
        answer = method(connection, command)
        if answer is None or isinstance(answer, RemotingCommand):
            return answer
        return self._worker.answer(connection, command, answer, only_reads=request.kind.is_question)

    # --- place ------------------------------------------------------------------------------------------

    def _check_place(self, connection: Connection, command: RemotingCommand, request: Request) -> None:
        kind, reason = request.kind, ""
        if kind.is_from_broker:
            reason = self._misplaced_registration(connection, command)
        elif connection.port is Port.ADMIN:
            return
        elif request.is_administration and self._config.admin_listen is not None:
            if not (kind.is_for_slaves and is_in(connection.peer_ip, self._config.brokers_from)):
                reason = "is administration, which this server takes only at its --admin-listen"
        elif kind.changes_name_server and (connection.port is _NAMESRV_PORT or self._accounts is None):
            # Tools delete the route of each topic that they deleted; here it may be gone already.
            is_idle = command.code == RequestCode.DELETE_TOPIC_IN_NAMESRV and not self.routes.is_registered(
                command.ext_fields.get("topic", "")
            )
            if not connection.is_local and not is_idle:
                here = "on its machine, or " if self._config.local_peers else ""
                reason = f"changes the name server: allowed {here}at its --admin-listen"
        if reason:
            self.access.refuse_place(connection, command, reason)

    def _misplaced_registration(self, connection: Connection, command: RemotingCommand) -> str:
        """Return why a broker may not send this from its address; "": it may."""
        if connection.is_local:
            return ""
        if not is_in(connection.peer_ip, self._config.brokers_from):
            return f"is for brokers, and {connection.peer_ip} is not in --brokers-from"
        if command.code == RequestCode.UNREGISTER_BROKER:
            owner = self.routes.owner_of(BrokerRequestHeader.decode(command.ext_fields))
            if owner is not None and owner.peer_ip != connection.peer_ip:
                return f"ends a registration from {owner.peer_ip}, which only that address may"
        return ""

    # --- account ----------------------------------------------------------------------------------------

    def _check_account(self, connection: Connection, command: RemotingCommand, request: Request | None) -> str | None:
        """Return the account that signed a request.

        "": the address needs none.  ``None``: the port asks for none.  Without a row no right is checked.
        """
        if self._accounts is None or connection.port is _NAMESRV_PORT:
            return None
        if connection.port is Port.ADMIN and request is not None and request.kind is ROUTE:
            return None  # the listener is a name server, too: clients must not have to sign these
        command.account = self.access.check(self._accounts, connection, command, request)
        return command.account

    # --- limits -----------------------------------------------------------------------------------------

    def _check_limits(
        self, connection: Connection, command: RemotingCommand, request: Request, account: str | None, arrived_at: float
    ) -> None:
        if self.overload is not None and request.kind.is_shed:
            self.overload.check(connection, self._worker.clock(), arrived_at)
        if self._quotas is not None and connection.port is not _NAMESRV_PORT:
            self._quotas.join(connection, account or "")
            assert connection.usage is not None
            if request.kind.stores:
                connection.usage.send(command.content_bytes)
            elif request.kind.reads:
                connection.usage.read()
        limit, size = request.max_body_bytes, len(command.body)
        limit = self._config.max_body_bytes if limit == IN_ONE_STEP else limit
        if limit and size > limit:
            raise RefusedError(f"the body of request {command.code} has {size} bytes, the limit is {limit}")

    # --- plain requests ---------------------------------------------------------------------------------

    def account_of(self, connection: Connection, fields: dict[str, Any], body: bytes) -> str | None:
        """Return the account of a request with this JSON header; "": none is needed.

        ``None``: its rights do not admit it; :meth:`serve` reports why not.
        """
        try:
            account = "" if self._accounts is None else self._signer(self._accounts, connection, fields, body)
            if self._quotas is not None:
                self._quotas.join(connection, account)
        except (TriomqError, KeyError, ValueError, TypeError):
            return None
        return account

    def _signer(self, accounts: Accounts, connection: Connection, fields: dict[str, Any], body: bytes) -> str:
        if fields["code"] == _SEND and passes_as_send(accounts.rules, fields["extFields"], body):
            key: str = fields["extFields"][ACCESS_KEY]
            if self._audit is None or key in connection.logins:
                return key
        command = RemotingCommand.from_json(fields, body)
        account = check(accounts.rules, CATALOGUE[command.code], command, connection.peer_ip)
        key = "" if account is None else account.access_key
        if self._audit is not None:
            self._audit.login(connection, command, key)
        return key

    def counts(self, connection: Connection, entry: Entry) -> bool:
        """Whether a plain send is within its quotas, and count it; :meth:`serve` reports why not."""
        if connection.usage is None:
            return True
        try:
            connection.usage.send(_RECORD_BYTES + len(entry.body) + len(entry.properties))
        except RefusedError:
            return False
        return True


def _is_served_at(port: Port, request: Request) -> bool:
    """Whether a port serves a request; the VIP port (listen port - 2) serves all but pulls, as in RocketMQ."""
    if port is Port.NAMESRV:
        return request.kind.is_for_name_server
    return port is not Port.VIP or request.kind is not PULL
