"""Requests to the name server, alone or as a part of a broker: routes, registrations, key-value table and settings.

Source: behaviour.md A.17; wire.md 8, 9.4, 9.5, 9.7; DefaultRequestProcessor.java of the name server.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from triomq.broker.access import Access
from triomq.broker.addresses import Address
from triomq.broker.namesrv.kv_table import KvTable, NameServerSettings
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import Connection, Port
from triomq.broker.work import Answer
from triomq.protocol.bodies.route import DataVersion, KVTable, TopicList, read_registration, registration_crc
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.java import properties_text, read_properties
from triomq.protocol.names import ORDER_NAMESPACE
from triomq.protocol.requests import topics
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Work

LOGGER: Final = logging.getLogger("triomq.broker.processors.namesrv")

_UNIT: Final = 1  # bits of a topic's system flag: it belongs to a unit of a multi-site system
_UNIT_SUBSCRIPTION: Final = 2  # consumers of a unit subscribe to it


@dataclass(frozen=True, slots=True, eq=False)
class NameServerProcessors:
    """Answers clients and tools that look for topics and brokers, and registers brokers."""

    table: RouteTable
    key_values: KvTable
    settings: NameServerSettings
    access: Access
    ha_address_at: Callable[[str], str] = lambda _host: ""  # of this process's broker, from a host that reaches it

    # --- routes -----------------------------------------------------------------------------------------

    def get_routeinfo_by_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with queues and brokers of a topic, in standard JSON, which clients of all versions read."""
        header = topics.GetRouteInfoRequestHeader.decode(command.ext_fields)
        route = self.table.route(header.topic, connection.advertised)
        if route is None:
            raise RefusedError(
                f"No topic route info in name server for the topic: {header.topic}\n"
                "Create it, or send to it while the broker creates topics by itself (autoCreateTopicEnable).",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        if self.settings.order_messages:
            route.order_topic_conf = self.key_values.get(ORDER_NAMESPACE, header.topic)
        return command.reply(body=route.encode())

    def get_broker_cluster_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all clusters and brokers."""
        return command.reply(body=self.table.cluster_info(connection.advertised).encode())

    def get_all_topic_list_from_nameserver(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all topics, system topics included."""
        return command.reply(body=TopicList(self.table.topics()).encode())

    def get_topics_by_cluster(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the topics of a cluster; an unknown one has none."""
        header = topics.ClusterRequestHeader.decode(command.ext_fields)
        return command.reply(body=TopicList(self.table.topics(header.cluster)).encode())

    def get_system_topic_list_from_ns(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the names of clusters and brokers, which are topics too, and a broker to ask for the others."""
        cluster = self.table.cluster_info(connection.advertised)
        names = [name for cluster, brokers in cluster.cluster_addr_table.items() for name in (cluster, *brokers)]
        addresses = (address for data in cluster.broker_addr_table.values() for address in data.broker_addrs.values())
        return command.reply(body=TopicList(names, broker_addr=next(addresses, None)).encode())

    def get_unit_topic_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the topics that belong to a unit."""
        return self._flagged(command, lambda flag: bool(flag & _UNIT))

    def get_has_unit_sub_topic_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the topics that consumers of a unit subscribe to."""
        return self._flagged(command, lambda flag: bool(flag & _UNIT_SUBSCRIPTION))

    def get_has_unit_sub_ununit_topic_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the topics that consumers of a unit subscribe to and that belong to none."""
        return self._flagged(command, lambda flag: flag & (_UNIT | _UNIT_SUBSCRIPTION) == _UNIT_SUBSCRIPTION)

    def _flagged(self, command: RemotingCommand, wanted: Callable[[int], bool]) -> RemotingCommand:
        return command.reply(body=TopicList(self.table.topics(wanted=wanted)).encode())

    def delete_topic_in_namesrv(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Delete the route of a topic, which a tool has deleted in the brokers before."""
        header = topics.TopicRequestHeader.decode(command.ext_fields)
        self.table.delete_topic(header.topic, header.cluster_name)
        LOGGER.info("topic deleted topic=%s cluster=%s peer=%s", header.topic, header.cluster_name, connection.peer)
        return command.reply()

    # --- brokers ----------------------------------------------------------------------------------------

    def register_broker(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Take a broker's address and topics; answer a slave with its master, and all with the order topics."""
        header = topics.RegisterBrokerRequestHeader.decode(command.ext_fields)
        if header.body_crc32 and header.body_crc32 != registration_crc(command.body):
            raise RefusedError("crc32 not match")
        sent = yield from read_registration(command.body, compressed=header.compressed)
        if connection.closed:  # nothing would end the lease
            return None
        master = self.table.register(header, sent, connection)
        fields = {}
        if master is not None:
            address, ha_address = master
            if not address:  # the broker of this process
                address = connection.advertised
                ha_address = self.ha_address_at(Address.parse(address).host)
            fields = {"masterAddr": address, "haServerAddr": ha_address}
        order = self.key_values.namespace(ORDER_NAMESPACE)
        return command.reply(ext_fields=fields, body=b"" if order is None else KVTable(order).encode())

    def unregister_broker(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Forget a broker's address."""
        self.table.unregister(topics.BrokerRequestHeader.decode(command.ext_fields))
        return command.reply()

    def query_data_version(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer whether a broker must register its topics again."""
        sent = DataVersion.decode(command.body)
        known = self.table.version_of(topics.BrokerRequestHeader.decode(command.ext_fields), sent)
        changed = "false" if known == sent else "true"
        return command.reply(ext_fields={"changed": changed}, body=b"" if known is None else known.encode())

    def wipe_write_perm_of_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Let clients send no more to a broker, as before it is stopped."""
        return command.reply(ext_fields={"wipeTopicCount": self._set_writable(connection, command, is_writable=False)})

    def add_write_perm_of_broker(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Let clients send to a broker again."""
        return command.reply(ext_fields={"addTopicCount": self._set_writable(connection, command, is_writable=True)})

    def _set_writable(self, connection: Connection, command: RemotingCommand, *, is_writable: bool) -> str:
        name = topics.BrokerNameRequestHeader.decode(command.ext_fields).broker_name
        count = self.table.set_writable(name, is_writable=is_writable)
        LOGGER.warning(
            "write permission set broker=%s writable=%s topics=%d peer=%s", name, is_writable, count, connection.peer
        )
        return str(count)

    # --- key-value table --------------------------------------------------------------------------------

    def put_kv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Add or replace a value."""
        header = topics.PutKvConfigRequestHeader.decode(command.ext_fields)
        self.key_values.put(header.namespace, header.key, header.value)
        LOGGER.info("key-value set namespace=%s key=%s peer=%s", header.namespace, header.key, connection.peer)
        return command.reply()

    def get_kv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with a value."""
        header = topics.KvConfigRequestHeader.decode(command.ext_fields)
        self._check_reader(connection, command, header.namespace)
        value = self.key_values.get(header.namespace, header.key)
        if value is None:
            raise _not_found(f"{header.namespace} Key: {header.key}")
        return command.reply(ext_fields={"value": value})

    def delete_kv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Remove a value; a missing one is no error, as in RocketMQ."""
        header = topics.KvConfigRequestHeader.decode(command.ext_fields)
        self.key_values.delete(header.namespace, header.key)
        LOGGER.info("key-value deleted namespace=%s key=%s peer=%s", header.namespace, header.key, connection.peer)
        return command.reply()

    def get_kvlist_by_namespace(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all entries of a namespace."""
        header = topics.KvNamespaceRequestHeader.decode(command.ext_fields)
        self._check_reader(connection, command, header.namespace)
        entries = self.key_values.namespace(header.namespace)
        if entries is None:
            raise _not_found(header.namespace)
        return command.reply(body=KVTable(entries).encode())

    def _check_reader(self, connection: Connection, command: RemotingCommand, namespace: str) -> None:
        """Check that a peer administers the name server, or reads the order topics, which routes show, too.

        Raises:
            RefusedError: it does not.
        """
        if namespace != ORDER_NAMESPACE and not self._is_administrator(connection):
            reason = "reads the key-value table: allowed on the name server's machine, or at its --admin-listen"
            self.access.refuse_place(connection, command, reason)

    # --- settings ---------------------------------------------------------------------------------------

    def get_namesrv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the settings as Java properties text; only administrators see paths."""
        texts = self.settings.texts(with_paths=self._is_administrator(connection))
        return command.reply(body=properties_text(texts).encode())

    def _is_administrator(self, connection: Connection) -> bool:
        """Whether the peer of a request that needs an administrator is one, although some ports ask for no account."""
        is_signed = self.access.accounts is not None and connection.port is not Port.NAMESRV
        return is_signed or connection.is_local or connection.port is Port.ADMIN

    def update_namesrv_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Change settings at once."""
        try:
            wanted = read_properties(bytes(command.body).decode())
        except UnicodeDecodeError as exc:
            raise RefusedError(str(exc)) from None
        self.settings.change(wanted, connection.peer)
        return command.reply()


def _not_found(place: str) -> RefusedError:
    return RefusedError(f"No config item, Namespace: {place}", ResponseCode.QUERY_NOT_FOUND)
