"""Request code to processor: the literal tables of the three kinds of port.

A code that stands in none of them is answered REQUEST_CODE_NOT_SUPPORTED; QUERY_CORRECTION_OFFSET (308) is one: no tool
asks for it, and an Apache broker mixes up its arguments and forgets the offsets of the groups that it names.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from triomq.broker.processors import (
    admin,
    admin_runtime,
    admin_settings,
    admin_stats,
    client,
    lock,
    offset,
    pull,
    query,
    relay,
    route,
    send,
    send_back,
)
from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.command import RemotingCommand

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection

#: Answers one request: returns the response, or ``None`` if there is none, or none yet.  Must not await.
Processor: TypeAlias = "Callable[[Connection, RemotingCommand], RemotingCommand | None]"

NAMESRV_PROCESSORS: Final[Mapping[int, Processor]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route.get_route_info,
    RequestCode.GET_BROKER_CLUSTER_INFO: route.get_cluster_info,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: route.get_topic_list,
    RequestCode.GET_TOPICS_BY_CLUSTER: route.get_topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: route.get_system_topic_list,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: route.delete_topic,
    RequestCode.GET_KV_CONFIG: route.get_kv_config,
    RequestCode.GET_KVLIST_BY_NAMESPACE: route.get_kv_config,
}

#: Everything but pulls, as on RocketMQ's "VIP" port (listen port - 2).
VIP_PROCESSORS: Final[Mapping[int, Processor]] = {
    **NAMESRV_PROCESSORS,  # so that the broker's address alone is enough for a client
    RequestCode.SEND_MESSAGE: send.send_message,
    RequestCode.SEND_MESSAGE_V2: send.send_message_v2,
    RequestCode.SEND_BATCH_MESSAGE: send.send_message_v2,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back.send_message_back,
    RequestCode.QUERY_CONSUMER_OFFSET: offset.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offset.update_consumer_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offset.search_offset_by_timestamp,
    RequestCode.CLONE_GROUP_OFFSET: offset.clone_group_offset,
    RequestCode.GET_MAX_OFFSET: offset.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offset.get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offset.get_earliest_store_time,
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message_by_id,
    RequestCode.QUERY_CONSUME_QUEUE: query.query_consume_queue,
    RequestCode.HEART_BEAT: client.heart_beat,
    RequestCode.UNREGISTER_CLIENT: client.unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: client.get_consumer_list_by_group,
    RequestCode.CHECK_CLIENT_CONFIG: client.check_client_config,
    RequestCode.LOCK_BATCH_MQ: lock.lock_batch_mq,
    RequestCode.UNLOCK_BATCH_MQ: lock.unlock_batch_mq,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.update_and_create_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: admin.get_all_topic_config,
    RequestCode.GET_TOPIC_CONFIG: admin.get_topic_config,
    RequestCode.UPDATE_BROKER_CONFIG: admin.update_broker_config,
    RequestCode.GET_BROKER_CONFIG: admin_settings.get_broker_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: admin_runtime.get_broker_runtime_info,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.update_and_create_subscription_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.get_all_subscription_group_config,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.get_subscription_group_config,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete_subscription_group,
    RequestCode.GET_TOPIC_STATS_INFO: admin_stats.get_topic_stats_info,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: admin_stats.get_consumer_connection_list,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: admin_stats.get_producer_connection_list,
    RequestCode.GET_ALL_PRODUCER_INFO: admin_stats.get_all_producer_info,
    RequestCode.GET_CONSUME_STATS: admin_stats.get_consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin_stats.query_topic_consume_by_who,
    RequestCode.QUERY_CONSUME_TIME_SPAN: admin_stats.query_consume_time_span,
    RequestCode.VIEW_BROKER_STATS_DATA: admin_stats.view_broker_stats_data,
    RequestCode.DELETE_EXPIRED_COMMITLOG: admin.delete_expired_commit_log,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: admin.clean_queues,
    RequestCode.CLEAN_UNUSED_TOPIC: admin.clean_queues,
    RequestCode.GET_ALL_CONSUMER_OFFSET: admin.get_all_consumer_offset,
    RequestCode.GET_ALL_DELAY_OFFSET: admin.get_all_delay_offset,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: relay.reset_consumer_offset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relay.get_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: relay.get_consumer_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: relay.consume_message_directly,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: route.get_system_topic_list,
}

BROKER_PROCESSORS: Final[Mapping[int, Processor]] = {
    **VIP_PROCESSORS,
    RequestCode.PULL_MESSAGE: pull.pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull.pull_message,
}
