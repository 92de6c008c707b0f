"""How a slave asks its master for anything but the log: at the port for requests, with an account if it has some.

Source: store.md 9.5; BrokerOuterAPI.java.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial

import trio

from triomq.broker.accounts import Accounts
from triomq.broker.addresses import Address
from triomq.broker.namesrv.route_table import Master
from triomq.broker.network.sessions import CONNECT_S, Session, Stream, connect, reason_of
from triomq.broker.services.registration import Registration
from triomq.protocol.errors import ConfigError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.signing import Credentials


class UnreachableError(Exception):
    """The master does not answer, or its connection ended or must end; the text is the reason."""


class MasterPort:
    """Connects to the master, and signs requests.

    Attributes:
        registration: knows the master's address.
    """

    def __init__(self, registration: Registration, accounts: Accounts | None) -> None:
        """With accounts the requests are signed as the first administrator: the master must have it, too."""
        self.registration = registration
        self._accounts = accounts

    async def connect(self, master: Master) -> Stream:
        """Return a connection to a master.

        Raises:
            UnreachableError: it cannot be made.
        """
        reason = ""
        for place in places_of(master):
            try:
                with trio.fail_after(CONNECT_S):
                    stream, _ = await connect(Address.parse(place), self.registration.tls)
            except (OSError, ConfigError, trio.TooSlowError, trio.BrokenResourceError) as exc:
                reason = reason or reason_of(exc)
            else:
                return stream
        raise UnreachableError(reason)

    async def ask(self, session: Session, code: int, fields: Mapping[str, str] | None = None) -> RemotingCommand:
        """Send a request and return the response; the caller holds the lock of the session.

        Raises:
            trio.BrokenResourceError, trio.TooSlowError: the master cannot be reached any more.
        """
        found = {} if self._accounts is None else self._accounts.rules.accounts
        administrator = next((account for account in found.values() if account.is_admin), None)
        if administrator is not None:
            fields = Credentials(administrator.access_key, administrator.secret_key).sign(fields or {})
        return await session.ask(code, fields)


async def converse(stream: Stream, work: Callable[[Session], Awaitable[None]]) -> str:
    """Do work that asks the master on a connection, until either ends; return why."""
    async with stream, trio.open_nursery() as nursery:
        session = Session("the master", stream, nursery)
        nursery.start_soon(session.read)
        nursery.start_soon(session.attempt, partial(work, session))
    return session.reason


def places_of(master: Master | None) -> Iterator[str]:
    """Yield where to reach a master: its address, and, as that may be for clients elsewhere, the host for slaves."""
    if master is None:
        return
    yield master.address
    (host, _, _), (ha_host, _, _) = (address.rpartition(":") for address in (master.address, master.ha_address))
    if ha_host and ha_host != host:
        yield ha_host + master.address.removeprefix(host)
