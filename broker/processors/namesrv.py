"""Request code to processor for the name server, alone or as a part of a broker."""

from dataclasses import dataclass

from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.namesrv.settings import NameServerSettings
from triomq.broker.network.connection import Connection, Processor
from triomq.broker.processors.kv_config import KvConfigProcessors
from triomq.broker.processors.registration import RegistrationProcessors
from triomq.broker.processors.route import (
    RouteProcessors,
    has_only_unit_subscription,
    has_unit_subscription,
    is_unit,
)
from triomq.broker.settings import FixedSettingError
from triomq.broker.work import Worker
from triomq.protocol.bodies.properties_text import properties_text, read_properties
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConfigError, RefusedError
from triomq.protocol.wire.command import RemotingCommand


def name_server(
    table: RouteTable, key_values: KvTable, settings: NameServerSettings, worker: Worker
) -> dict[int, Processor]:
    """Return the processors of a name server."""
    brokers = RegistrationProcessors(table, key_values)
    routes = RouteProcessors(table, key_values, settings)
    values = KvConfigProcessors(key_values)
    config = _SettingsProcessor(settings)
    return {
        RequestCode.REGISTER_BROKER: worker.processor(brokers.register),
        RequestCode.UNREGISTER_BROKER: brokers.unregister,
        RequestCode.QUERY_DATA_VERSION: brokers.query_data_version,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.get_route_info,
        RequestCode.GET_BROKER_CLUSTER_INFO: routes.get_cluster_info,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: routes.wipe_write_perm,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: routes.add_write_perm,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: routes.get_topic_list,
        RequestCode.GET_TOPICS_BY_CLUSTER: routes.get_topics_by_cluster,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: routes.get_system_topic_list,
        RequestCode.GET_UNIT_TOPIC_LIST: routes.lister(is_unit),
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: routes.lister(has_unit_subscription),
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: routes.lister(has_only_unit_subscription),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: routes.delete_topic,
        RequestCode.PUT_KV_CONFIG: values.put,
        RequestCode.GET_KV_CONFIG: values.get,
        RequestCode.DELETE_KV_CONFIG: values.delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: values.get_namespace,
        RequestCode.UPDATE_NAMESRV_CONFIG: config.update,
        RequestCode.GET_NAMESRV_CONFIG: config.get,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _SettingsProcessor:
    """Tells and changes the name server's settings as Java properties text."""

    settings: NameServerSettings

    def get(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.reply(body=properties_text(self.settings.texts()).encode())

    def update(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            self.settings.change(read_properties(bytes(command.body).decode()), connection.peer)
        except FixedSettingError as exc:
            raise RefusedError(str(exc), ResponseCode.NO_PERMISSION) from None
        except (ConfigError, UnicodeDecodeError) as exc:
            raise RefusedError(str(exc)) from None
        return command.reply()
