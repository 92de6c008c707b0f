"""Which requests count for which quotas, and whose they are."""

from typing import Final

from triomq.broker.limits.rates import Quotas
from triomq.broker.network.connection import Connection, Processor
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.catalogue import CATALOGUE
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import Entry

_RECORD_BYTES: Final = 128  # of a record beside body and properties, about


class QuotaCheck:
    """Checks requests."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas: Final = quotas

    def limited(self, code: int, processor: Processor) -> Processor:
        """Return a processor that is called for requests that may pass; they count for the connection's ``usage``."""

        def reading(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            assert connection.usage is not None
            connection.usage.read()
            return processor(connection, command)

        def sending(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            assert connection.usage is not None
            connection.usage.send(command.content_bytes)
            return processor(connection, command)

        kind = CATALOGUE[code].kind
        if kind.stores:
            return sending
        return reading if kind.reads else processor

    def passes(self, connection: Connection, entry: Entry) -> bool:
        """Whether a plain send passes; its processor reports why it does not.

        One that cannot be stored together with its neighbours is sent alone, and counts twice.
        """
        assert connection.usage is not None
        try:
            connection.usage.send(_RECORD_BYTES + len(entry.body) + len(entry.properties))
        except RefusedError:
            return False
        return True
