"""Requests of brokers to the name server: REGISTER_BROKER (103), UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322).

Source: behaviour.md A.17; wire.md 8, 9.7; DefaultRequestProcessor.java of the name server.
"""

from dataclasses import dataclass

from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.registration import read_registration, registration_crc
from triomq.protocol.bodies.route import DataVersion, KVTable
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import ORDER_NAMESPACE
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Work


@dataclass(frozen=True, slots=True, eq=False)
class RegistrationProcessors:
    """Lets brokers come and go."""

    table: RouteTable
    key_values: KvTable

    def register(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand | None]:
        """Take a broker's address and topics; answer a slave with its master, and all with the order topics."""
        header = RegisterBrokerRequestHeader.decode(command.ext_fields)
        if header.body_crc32 and header.body_crc32 != registration_crc(command.body):
            raise RefusedError("crc32 not match")
        sent = yield from read_registration(command.body, compressed=header.compressed)
        if connection.closed:  # nothing would end the lease
            return None
        master = self.table.register(header, sent, connection)
        fields = {} if master is None else {"masterAddr": master.address, "haServerAddr": master.ha_address}
        order = self.key_values.namespace(ORDER_NAMESPACE)
        return command.reply(ext_fields=fields, body=b"" if order is None else KVTable(order).encode())

    def unregister(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Forget a broker's address."""
        self.table.unregister(BrokerRequestHeader.decode(command.ext_fields))
        return command.reply()

    def query_data_version(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer whether a broker must register its topics again."""
        sent = DataVersion.decode(command.body)
        known = self.table.version_of(BrokerRequestHeader.decode(command.ext_fields), sent)
        changed = "false" if known == sent else "true"
        return command.reply(ext_fields={"changed": changed}, body=b"" if known is None else known.encode())
