"""Client ids: which connections use each, and for which account.

Clients choose their ids, and ids are no secrets: members of a group get those of the others.  Replies and requests of
tools are sent to an id, and locks belong to one, so another account must not use it.
"""

from collections.abc import Iterable

from triomq.broker.network.connection import Connection


class ClientIds:
    """The client ids of live connections; a connection uses the id of its newest heartbeat."""

    def __init__(self) -> None:
        self._accounts: dict[str, dict[Connection, str]] = {}  # by client id; the newest heartbeat is the last
        self._id_of: dict[Connection, str] = {}

    def heartbeat(self, connection: Connection, client_id: str, account: str) -> None:
        """Store that a connection uses an id for an account, unless it has been closed meanwhile."""
        self.forget(connection)
        if not connection.closed:
            self._id_of[connection] = client_id
            self._accounts.setdefault(client_id, {})[connection] = account

    def of(self, connection: Connection) -> str | None:
        """Return the id of a connection, ``None`` before its first heartbeat."""
        return self._id_of.get(connection)

    def account_of(self, connection: Connection) -> str:
        """Return the access key that signed the newest heartbeat of a connection; "": none was needed."""
        return self._accounts.get(self._id_of.get(connection, ""), {}).get(connection, "")

    def connections(self, client_id: str) -> Iterable[Connection]:
        """Return the connections of an id, the newest heartbeat first."""
        return reversed(self._accounts.get(client_id, {}))

    def is_of_others(self, connection: Connection, client_id: str, account: str) -> bool:
        """Whether another connection uses the id for another account, or for none."""
        users = self._accounts.get(client_id, {}).items()
        return any(owner != account and user is not connection for user, owner in users)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        client_id = self._id_of.pop(connection, "")
        users = self._accounts.get(client_id, {})
        users.pop(connection, None)
        if not users:
            self._accounts.pop(client_id, None)
