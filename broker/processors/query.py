"""Looking stored messages up: by key (12), by place (33), and the units of a consume queue (321).

Source: behaviour.md A.15, A.16; store.md 4.6; QueryMessageProcessor.java, AdminBrokerProcessor.java.
"""

from typing import TYPE_CHECKING, Final

from triomq.broker.network.refusal import RequestRefusedError
from triomq.broker.pulls.lookups import in_steps
from triomq.protocol.bodies.statistics import ConsumeQueueData, QueryConsumeQueueResponseBody
from triomq.protocol.codes import ResponseCode
from triomq.protocol.requests.admin_requests import QueryConsumeQueueRequestHeader
from triomq.protocol.requests.requests import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from triomq.protocol.units import PhysicalOffset
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Lookup

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.storage.index.message_index import IndexMatches
    from triomq.storage.message_store import MessageStore

_UNIQUE_KEY_MATCHES: Final = 32  # defaultQueryMaxNum
_HEAD_BYTES: Final = 64 * 1024  # of the largest frame, for its header
_MAX_UNITS: Final = 10_000


@in_steps
def query_message(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with the newest messages of a topic that have a key, as far as hashes tell; clients compare the key."""
    header = QueryMessageRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    most = _UNIQUE_KEY_MATCHES if header.unique_key_query else header.max_num
    matches = yield from broker.store.index.search(
        header.topic, header.key, most, header.begin_timestamp, header.end_timestamp
    )
    body = yield from _records(broker.store, matches, broker.config.max_frame_bytes - _HEAD_BYTES)
    fields = QueryMessageResponseHeader(matches.last_update_timestamp, PhysicalOffset(matches.last_update_offset))
    if not body:
        remark = "can not find message, maybe time range not correct"
        return command.reply(ResponseCode.QUERY_NOT_FOUND, fields.encode(), remark=remark)
    return command.reply(ext_fields=fields.encode(), body=body)


def _records(store: "MessageStore", matches: "IndexMatches", max_bytes: int) -> Lookup[bytes]:
    """Join the records that are still there; of more than a frame holds the newest."""
    found: list[memoryview] = []
    size = 0
    records = yield from store.reader.look_up(matches.offsets)
    for record in reversed(records):
        if record is not None:
            size += len(record)
            if size > max_bytes:
                break
            found.append(record)
    return b"".join(reversed(found))


@in_steps
def view_message_by_id(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with the record at a commit log offset, which the client took from an offset message id."""
    header = ViewMessageRequestHeader.decode(command.ext_fields)
    (record,) = yield from connection.broker.store.reader.look_up((header.offset,))
    if record is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
    return command.reply(body=record)


@in_steps
def query_consume_queue(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Answer with units of a queue; with a group also with its subscription, and which units that lets through."""
    header = QueryConsumeQueueRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    topic, queue_id, index = header.topic, header.queue_id, header.index
    queue = broker.store.queues.find(topic, queue_id)
    if queue is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    begin, end = (
        broker.store.reader.min_offset_in_queue(topic, queue_id),
        broker.store.reader.max_offset_in_queue(topic, queue_id),
    )
    if not begin <= index < end:
        return command.reply(remark=f"Index {index} of {queue_id}@{topic} is not exist!")
    answer = QueryConsumeQueueResponseBody(max_queue_index=end, min_queue_index=begin)
    tag_filter = None
    if header.consumer_group is not None:
        group = broker.consumer_groups.get(header.consumer_group)
        subscription = group.subscriptions.get(topic) if group is not None else None
        if subscription is None:
            answer.filter_data = f"{header.consumer_group}@{topic} is not online!"
        else:
            answer.subscription_data, tag_filter = subscription.data, subscription.tag_filter
    count = min(header.count, _MAX_UNITS)
    yield from broker.store.cold_reads.load_units(queue, index, count)
    answer.queue_data = [
        ConsumeQueueData(
            physic_offset=unit.physical_offset,
            physic_size=unit.size,
            tags_code=unit.tags_code,
            eval=tag_filter is not None and tag_filter.matches_code(unit.tags_code),
        )
        for unit in broker.store.reader.queue_units(topic, queue_id, index, count)
    ]
    return command.reply(body=answer.encode())
