"""Request code to processor: the literal tables of the three kinds of port.

A code in none of them is answered REQUEST_CODE_NOT_SUPPORTED.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from triomq.broker.network.connection import Connection, Processor, Requests
from triomq.broker.network.listeners import Ports
from triomq.broker.network.shedding import Shedding
from triomq.broker.processors.acl import AclProcessors
from triomq.broker.processors.admin import GroupProcessors, StoreProcessors, TopicProcessors
from triomq.broker.processors.admin_runtime import RuntimeProcessor
from triomq.broker.processors.admin_settings import SettingsProcessor
from triomq.broker.processors.admin_stats import StatisticsProcessors
from triomq.broker.processors.client import ClientProcessors
from triomq.broker.processors.guard import Guard, Port
from triomq.broker.processors.offset import OffsetProcessors
from triomq.broker.processors.plain_requests import PlainRequests
from triomq.broker.processors.pull import PullProcessor
from triomq.broker.processors.query import QueryProcessors
from triomq.broker.processors.recall import RecallProcessor
from triomq.broker.processors.relay import RelayProcessors
from triomq.broker.processors.reply import ReplyProcessors
from triomq.broker.processors.send import SendProcessor
from triomq.broker.processors.send_back import SendBackProcessor
from triomq.broker.processors.transaction import TransactionProcessors
from triomq.broker.work import Worker
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.requests.catalogue import CATALOGUE, IN_ONE_STEP
from triomq.protocol.wire.command import RemotingCommand


@dataclass(frozen=True, slots=True)
class Processors:
    """One object for each family of requests, and the processors of the name server."""

    namesrv: Mapping[int, Processor]
    plain_requests: PlainRequests
    sends: SendProcessor
    send_backs: SendBackProcessor
    replies: ReplyProcessors
    transactions: TransactionProcessors
    recalls: RecallProcessor
    pulls: PullProcessor
    offsets: OffsetProcessors
    queries: QueryProcessors
    clients: ClientProcessors
    topics: TopicProcessors
    groups: GroupProcessors
    store: StoreProcessors
    settings: SettingsProcessor
    runtime: RuntimeProcessor
    figures: StatisticsProcessors
    relay: RelayProcessors
    acl: AclProcessors | None


def tables(processors: Processors, worker: Worker, max_body_bytes: int, guard: Guard, shedding: Shedding) -> Ports:
    """Return the tables; the VIP port (listen port - 2) serves everything but pulls, as in RocketMQ.

    Args:
        processors: what serves the requests.
        worker: runs those that may take several steps.
        max_body_bytes: limit for bodies that are read in one step.
        guard: checks all requests.
        shedding: refuses sends.
    """
    namesrv = processors.namesrv
    acl = {} if processors.acl is None else processors.acl.processors
    # The broker's ports serve the requests to name servers, too, so that one address is enough for a client.
    vip: dict[int, Processor] = {**namesrv, **_clients(processors, worker), **_tools(processors, worker)}
    vip.update(acl)
    for code in vip:
        if limit_bytes := CATALOGUE[code].max_body_bytes:
            vip[code] = _limited(vip[code], max_body_bytes if limit_bytes == IN_ONE_STEP else limit_bytes)
    pulls: dict[int, Processor] = {
        RequestCode.PULL_MESSAGE: processors.pulls.pull_message,
        RequestCode.LITE_PULL_MESSAGE: processors.pulls.pull_message,
    }
    serve_plain_requests = processors.plain_requests.serve
    fast = Requests(vip, serve_plain_requests, shedding=shedding)
    broker = fast._replace(processors={**vip, **pulls})
    return Ports(
        guard.guarded(broker, Port.BROKER),
        guard.guarded(fast, Port.BROKER),
        guard.guarded(Requests(namesrv, is_namesrv=True), Port.NAMESRV),
        guard.guarded(broker, Port.ADMIN),
    )


def _limited(process: Processor, max_body_bytes: int) -> Processor:
    def processor(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        if len(command.body) > max_body_bytes:
            raise RefusedError(
                f"the body of request {command.code} has {len(command.body)} bytes, the limit is {max_body_bytes}"
            )
        return process(connection, command)

    return processor


def _clients(p: Processors, worker: Worker) -> dict[int, Processor]:
    work, reads = worker.processor, partial(worker.processor, only_reads=True)
    return {
        RequestCode.SEND_MESSAGE: p.sends.send_message,
        RequestCode.SEND_MESSAGE_V2: p.sends.send_message_v2,
        RequestCode.SEND_BATCH_MESSAGE: p.sends.send_message_v2,
        RequestCode.SEND_REPLY_MESSAGE: p.replies.send_reply,
        RequestCode.SEND_REPLY_MESSAGE_V2: p.replies.send_reply_v2,
        RequestCode.RECALL_MESSAGE: p.recalls.recall_message,
        RequestCode.END_TRANSACTION: work(p.transactions.end_transaction),
        RequestCode.CONSUMER_SEND_MSG_BACK: work(p.send_backs.send_message_back),
        RequestCode.QUERY_CONSUMER_OFFSET: reads(p.offsets.query_consumer_offset),
        RequestCode.UPDATE_CONSUMER_OFFSET: p.offsets.update_consumer_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: reads(p.offsets.search_offset_by_timestamp),
        RequestCode.QUERY_CORRECTION_OFFSET: reads(p.offsets.query_correction_offset),
        RequestCode.CLONE_GROUP_OFFSET: work(p.offsets.clone_group_offset),
        RequestCode.GET_MAX_OFFSET: p.offsets.get_max_offset,
        RequestCode.GET_MIN_OFFSET: p.offsets.get_min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: reads(p.offsets.get_earliest_store_time),
        RequestCode.QUERY_MESSAGE: reads(p.queries.query_message),
        RequestCode.VIEW_MESSAGE_BY_ID: reads(p.queries.view_message_by_id),
        RequestCode.QUERY_CONSUME_QUEUE: reads(p.queries.query_consume_queue),
        RequestCode.HEART_BEAT: p.clients.heart_beat,
        RequestCode.UNREGISTER_CLIENT: p.clients.unregister_client,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: p.clients.get_consumer_list_by_group,
        RequestCode.CHECK_CLIENT_CONFIG: p.clients.check_client_config,
        RequestCode.LOCK_BATCH_MQ: work(p.clients.lock_batch_mq),
        RequestCode.UNLOCK_BATCH_MQ: work(p.clients.unlock_batch_mq),
    }


def _tools(p: Processors, worker: Worker) -> dict[int, Processor]:
    work, reads = worker.processor, partial(worker.processor, only_reads=True)
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: p.topics.update_and_create_topic,
        RequestCode.DELETE_TOPIC_IN_BROKER: work(p.topics.delete_topic),
        RequestCode.GET_ALL_TOPIC_CONFIG: reads(p.topics.get_all_topic_config),
        RequestCode.GET_TOPIC_CONFIG: p.topics.get_topic_config,
        RequestCode.UPDATE_BROKER_CONFIG: p.settings.update_broker_config,
        RequestCode.GET_BROKER_CONFIG: p.settings.get_broker_config,
        RequestCode.GET_BROKER_RUNTIME_INFO: reads(p.runtime.get_broker_runtime_info),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: p.groups.update_and_create_subscription_group,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: reads(p.groups.get_all_subscription_group_config),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: p.groups.get_subscription_group_config,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: work(p.groups.delete_subscription_group),
        RequestCode.GET_TOPIC_STATS_INFO: reads(p.figures.get_topic_stats_info),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: p.figures.get_consumer_connection_list,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: p.figures.get_producer_connection_list,
        RequestCode.GET_ALL_PRODUCER_INFO: p.figures.get_all_producer_info,
        RequestCode.GET_CONSUME_STATS: reads(p.figures.get_consume_stats),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: reads(p.figures.query_topic_consume_by_who),
        RequestCode.QUERY_CONSUME_TIME_SPAN: reads(p.figures.query_consume_time_span),
        RequestCode.VIEW_BROKER_STATS_DATA: p.figures.view_broker_stats_data,
        RequestCode.GET_BROKER_CONSUME_STATS: reads(p.figures.get_broker_consume_stats),
        RequestCode.DELETE_EXPIRED_COMMITLOG: p.store.delete_expired_commit_log,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: p.store.clean_queues,
        RequestCode.CLEAN_UNUSED_TOPIC: p.store.clean_queues,
        RequestCode.GET_ALL_CONSUMER_OFFSET: reads(p.store.get_all_consumer_offset),
        RequestCode.GET_ALL_DELAY_OFFSET: p.store.get_all_delay_offset,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: work(p.relay.reset_consumer_offset),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: p.relay.get_consumer_status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: p.relay.get_consumer_running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: work(p.relay.consume_message_directly),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: work(p.transactions.resume_check),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: p.topics.get_system_topic_list,
    }
