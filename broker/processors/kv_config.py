"""PUT, GET, DELETE_KV_CONFIG (100 to 102) and GET_KVLIST_BY_NAMESPACE (219): the name server's key-value table.

Source: behaviour.md A.17; wire.md 8.
"""

import logging
from dataclasses import dataclass
from typing import Final

from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.topics import KvConfigRequestHeader, KvNamespaceRequestHeader, PutKvConfigRequestHeader
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.processors.kv_config")


@dataclass(frozen=True, slots=True, eq=False)
class KvConfigProcessors:
    """Tools keep settings of theirs here, and the queues of topics that are in order across brokers."""

    table: KvTable

    def put(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Add or replace a value."""
        header = PutKvConfigRequestHeader.decode(command.ext_fields)
        self.table.put(header.namespace, header.key, header.value)
        LOGGER.info("key-value set namespace=%s key=%s peer=%s", header.namespace, header.key, connection.peer)
        return command.reply()

    def get(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with a value."""
        header = KvConfigRequestHeader.decode(command.ext_fields)
        value = self.table.get(header.namespace, header.key)
        if value is None:
            raise _not_found(f"{header.namespace} Key: {header.key}")
        return command.reply(ext_fields={"value": value})

    def delete(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Remove a value; that there is none is no error, as in RocketMQ."""
        header = KvConfigRequestHeader.decode(command.ext_fields)
        self.table.delete(header.namespace, header.key)
        LOGGER.info("key-value deleted namespace=%s key=%s peer=%s", header.namespace, header.key, connection.peer)
        return command.reply()

    def get_namespace(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all entries of a namespace."""
        header = KvNamespaceRequestHeader.decode(command.ext_fields)
        entries = self.table.namespace(header.namespace)
        if entries is None:
            raise _not_found(header.namespace)
        return command.reply(body=KVTable(entries).encode())


def _not_found(what: str) -> RefusedError:
    return RefusedError(f"No config item, Namespace: {what}", ResponseCode.QUERY_NOT_FOUND)
