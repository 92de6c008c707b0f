"""Requests to brokers and name servers: numbered, signed, and encoded in the format that the peer reads.

One name server is used as long as it answers, then the next.  Name servers have no accounts, and a signature does not
cover the code: signed, a question about a topic could be sent to a broker again as the deletion of the topic.  So
requests to name servers are signed only if the peer refuses them without an account, as brokers do at the listener
for administration.

Source: wire.md 1.4 and 11, behaviour.md B.1.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

import trio

from triomq.client.cluster.route import BrokerTable, dialled_address
from triomq.client.config import ClientConfig, TlsConfig
from triomq.client.connection.connection import ClientConnection, RequestHandler
from triomq.client.connection.pool import ConnectionObserver, ConnectionTable
from triomq.client.connection.tls import client_context
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import HeartbeatData
from triomq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from triomq.protocol.errors import (
    BrokerResponseError,
    ClientClosedError,
    ClientError,
    ConnectError,
    NameServerError,
    TriomqError,
)
from triomq.protocol.namespace import Namespace
from triomq.protocol.requests.catalogue import CATALOGUE, ROUTE
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.header_formats import agreed_format, offer
from triomq.protocol.wire.headers import Header, Resource
from triomq.protocol.wire.signing import SIGNATURE, names_no_account

_MAX_OPAQUE: Final = 2**31 - 1
_ONEWAY: Final = int(CommandFlag.ONEWAY)


LOGGER: Final = logging.getLogger("triomq.client.cluster.requests")

_NO_NAME_SERVER: Final = " (is it a name server of RocketMQ?)"


class NameServers:
    """The given name servers, and the address of the one in use."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self.current = addresses[0]


class Requests:
    """Sends the requests of one instance; opened by it.

    Attributes:
        config: time limits, header format, account.
        name_servers: those given, and the one in use.
        connections: by address; only while it is open.
        lock_connections: further connections, for queue locks alone.  Nothing is ever left unread on them, so the
            kernel closes them with a plain FIN when the process dies, upon which the broker frees the locks.
        namespace: translates names in headers, and in the JSON bodies of requests about topics and groups.
        is_open: whether requests are allowed.
    """

    def __init__(self, config: ClientConfig, name_servers: NameServers, brokers: BrokerTable) -> None:
        """Take the settings.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        self.config = config
        self.namespace = Namespace(config.namespace)
        self.name_servers = name_servers
        self._brokers = brokers
        self._opaques = count()
        self.connections: ConnectionTable
        self.lock_connections: ConnectionTable
        self.is_open = False
        self._closed = False
        self._client_id = ""
        tls = TlsConfig() if config.tls is True else config.tls
        self._tls = client_context(tls) if tls else None

    def open(
        self, client_id: str, nursery: trio.Nursery, on_request: RequestHandler, observer: ConnectionObserver
    ) -> None:
        """Allow requests; connections live in the nursery."""
        self._client_id = client_id
        make = partial(ConnectionTable, self.config, nursery, on_request, self._probe, self._dial_target, self._tls)
        self.connections, self.lock_connections = make(observer), make(ConnectionObserver())
        self.is_open = True

    def refuse(self) -> None:
        """Refuse new requests; those in flight continue."""
        self.is_open = False
        self._closed = True

    def close(self) -> None:
        """Close all connections."""
        self.connections.close()
        self.lock_connections.close()

    def check_open(self) -> ConnectionTable:
        """Return the connections.

        Raises:
            ClientClosedError: the instance is not entered, or was left.
        """
        if not self.is_open:
            state = "closed" if self._closed else "not entered: use async with"
            raise ClientClosedError(f"the client instance is {state}")
        return self.connections

    def next_opaque(self) -> int:
        """Return the number of the next request, 0 to 2**31 - 1 in turn: one counter for all connections."""
        return next(self._opaques) & _MAX_OPAQUE

    def command(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Make a request; its opaque and header format are set when it is sent."""
        fields = {} if header is None else header.encode()
        if self.namespace:
            fields = self.namespace.wrap_fields(fields)
            if CATALOGUE[code].in_body is Resource.GROUP:
                body = self.namespace.wrap_json(body)
        return RemotingCommand(code, ext_fields=fields, body=body)

    async def invoke(
        self,
        address: str,
        command: RemotingCommand,
        timeout_s: float | None = None,
        connections: ConnectionTable | None = None,
    ) -> RemotingCommand:
        """Send a request and return the answer, whatever its code; connect first if need be.

        Args:
            address: of a broker as its route has it, or of a name server.
            command: the request; its opaque and its header format are set here.
            timeout_s: for everything; ``None``: ``config.api_timeout_s``.
            connections: those to use; ``None``: :attr:`connections`.

        Raises:
            ConnectError: no connection.
            ConnectionLostError: the connection ended before the answer came.
            RequestTimeoutError: no answer in time.
            ClientClosedError: the instance is not entered, or was left.
        """
        deadline = trio.current_time() + (self.config.api_timeout_s if timeout_s is None else timeout_s)
        table = self.check_open() if connections is None else connections
        connection = table.get(address) or await table.connect(address, deadline)
        is_about_names = bool(self.namespace and (command.ext_fields or command.body))  # else all names are listed
        frame = self._encode(command, connection)  # sets the opaque
        response = await connection.request(command.opaque, frame, deadline)
        if self.config.credentials and SIGNATURE not in command.ext_fields and names_no_account(response.remark):
            connection.has_accounts = True
            frame = self._encode(command, connection, signs=True)
            response = await connection.request(command.opaque, frame, deadline)
        if is_about_names and response.body[:1] == b"{":  # records begin with their size
            response.body = self.namespace.unwrap_json(bytes(response.body))
        return response

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        connections: ConnectionTable | None = None,
    ) -> RemotingCommand:
        """Make and send a request whose only good answer is SUCCESS; see :meth:`invoke`.

        Raises:
            BrokerResponseError: the answer has another code.
        """
        command = self.command(code, header, body)
        return raise_for_code(await self.invoke(address, command, timeout_s, connections), address)

    async def ask_each(
        self,
        addresses: Iterable[str],
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        without: tuple[type[TriomqError], ...] = (),
    ) -> list[RemotingCommand]:
        """Send a request to brokers in parallel, see :meth:`ask`; return the answers without errors of some kinds."""

        async def ask(address: str) -> RemotingCommand | None:
            with suppress(*without):
                return await self.ask(address, code, header, body)
            return None

        return [answer for answer in await in_parallel(ask, addresses) if answer is not None]

    async def invoke_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        """Ask the name server in use; if it fails, all others in turn.

        Raises:
            NameServerError: none answered; the text names each with its reason.
        """
        servers, reasons, fields = self.name_servers, list[str](), command.ext_fields
        for _ in servers.addresses:
            asked, command.ext_fields = servers.current, fields  # without a signature for the one before
            try:
                return await self.invoke(asked, command)
            except ClientClosedError:
                raise
            except ClientError as exc:
                reasons.append(f"{exc}{'' if isinstance(exc, ConnectError) else _NO_NAME_SERVER}")
                if asked == servers.current:  # else another task has moved on already
                    following = servers.addresses.index(asked) + 1
                    servers.current = servers.addresses[following % len(servers.addresses)]
                    if len(reasons) < len(servers.addresses):  # else the error below says it
                        LOGGER.warning("name server failed address=%s next=%s error=%s", asked, servers.current, exc)
        raise NameServerError(f"no name server answered: {'; '.join(reasons)}")

    async def ask_namesrv(self, code: int) -> RemotingCommand:
        """Like :meth:`invoke_namesrv`, for a request without arguments whose only good answer is SUCCESS.

        Raises:
            BrokerResponseError: the answer has another code.
        """
        return raise_for_code(await self.invoke_namesrv(self.command(code)), self.name_servers.current)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that has no answer; return when the write buffer took it.

        Raises:
            ConnectError: no connection.
            ConnectionLostError: it ended while this waited for room in the write buffer.
            RequestTimeoutError: the write buffer stayed full.
        """
        deadline = trio.current_time() + self.config.api_timeout_s
        connection = await self.check_open().connect(address, deadline)
        command.flag |= _ONEWAY
        await connection.send(self._encode(command, connection), deadline)

    async def heartbeat(self, address: str, body: bytes) -> int:
        """Send a heartbeat to a broker, agree with it on the header format and return its version number.

        Raises:
            ConnectError, ConnectionLostError, RequestTimeoutError, ClientClosedError: as :meth:`invoke`.
            BrokerResponseError: the broker refused.
        """
        wanted = self.config.header_format
        deadline = trio.current_time() + self.config.api_timeout_s
        connection = await self.check_open().connect(address, deadline)
        connection.is_broker |= address in self._brokers.addresses()
        command = self.command(RequestCode.HEART_BEAT, body=body)
        command.ext_fields = offer(wanted)
        frame = self._encode(command, connection)
        response = raise_for_code(await connection.request(command.opaque, frame, deadline), address)
        if address not in self.name_servers.addresses:  # else a proxy may read the headers before a broker does
            connection.header_format = agreed_format(wanted, response.ext_fields)
        return response.version

    def _encode(self, command: RemotingCommand, connection: ClientConnection, *, signs: bool = False) -> bytes:
        command.opaque = self.next_opaque()
        command.serialize_type = connection.header_format
        if (credentials := self.config.credentials) is not None and (signs or _is_signed(command.code, connection)):
            command.ext_fields = credentials.sign(command.ext_fields, command.body)
        return command.encode()

    def _probe(self, connection: ClientConnection) -> None:
        """Post a heartbeat without groups, which every broker answers at once; name servers never hold requests."""
        if connection.address not in self.name_servers.addresses or connection.address in self._brokers.addresses():
            command = self.command(RequestCode.HEART_BEAT, body=HeartbeatData(self._client_id).encode())
            connection.post(self._encode(command, connection))

    def _dial_target(self, address: str) -> tuple[str, str]:
        """Return the address to dial, and a hint for the error if that fails."""
        name, _ = self._brokers.addresses().get(address, ("", 0))
        name_server = self.name_servers.current
        if address in self.name_servers.addresses and not name:
            return address, "it was given as name server: is it running, and is the address right?"
        who = f"broker {name!r}" if name else "a broker"
        if self.config.advertise == "as-dialled":
            return dialled_address(address, name_server), (
                f"{who} advertises {address} through name server {name_server}, whose host was dialled "
                'instead because of advertise="as-dialled"'
            )
        source = f"{who} advertises this address through name server {name_server}; "
        if not name:  # it may have been given by hand
            source = f"is a broker running there? If name server {name_server} has this address of one: "
        return address, (
            f"{source}if it cannot be reached from here, start the broker with another one "
            "(triomq: --advertise HOST, Apache: brokerIP1), or "
            'use advertise="as-dialled" (of ClientConfig and in Spark; --as-dialled on the command line) to dial the '
            "name server's host"
        )


def _is_signed(code: int, connection: ClientConnection) -> bool:
    """Whether a request is signed at the first attempt; only a proxy needs an account for questions about routes."""
    kind = CATALOGUE[code].kind
    return not kind.is_for_name_server or (connection.has_accounts and kind is not ROUTE)


def raise_for_code(response: RemotingCommand, address: str) -> RemotingCommand:
    """Return a response whose code is SUCCESS.

    Raises:
        BrokerResponseError: it has another code; ``address`` says whose answer it is.
    """
    if response.code != ResponseCode.SUCCESS:
        raise BrokerResponseError.from_response(response.code, response.remark, address, response.ext_fields)
    return response
