"""Queries of stored messages: by key (12), by commit log offset (33), and the units of a consume queue (321).

Source: behaviour.md A.15, A.16; store.md 4.6; QueryMessageProcessor.java, AdminBrokerProcessor.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import answer_stored
from triomq.broker.services.flush import GroupCommit
from triomq.protocol.bodies.statistics import ConsumeQueueData, QueryConsumeQueueResponseBody
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import ProtocolError, RefusedError
from triomq.protocol.filters.filter_types import TagFilter
from triomq.protocol.message_queue import PhysicalOffset
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests.messages import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from triomq.protocol.requests.offsets import QueryConsumeQueueRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.index.index_file import NO_OFFSET
from triomq.storage.index.message_index import MAX_MATCHES
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import Work

_UNIQUE_KEY_MATCHES: Final = 32  # defaultQueryMaxNum
_HEAD_BYTES: Final = 64 * 1024  # of the largest frame, for its header
_MAX_UNITS: Final = 10_000
_MAX_SEARCHES: Final = 100  # of 64 messages each


@dataclass(frozen=True, slots=True, eq=False)
class QueryProcessors:
    """Finds stored messages."""

    store: MessageStore
    groups: Groups
    max_frame_bytes: int
    group_commit: GroupCommit | None

    def query_message(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the newest messages of a topic that have a key.

        Unlike in RocketMQ, those of a deleted topic of the same name are left out, and those whose keys only have the
        same hash: too many of them would displace the wanted messages.
        """
        header = QueryMessageRequestHeader.decode(command.ext_fields)
        limit = min(_UNIQUE_KEY_MATCHES if header.unique_key_query else header.max_num, MAX_MATCHES)
        times = header.begin_timestamp, header.end_timestamp
        records: list[memoryview] = []
        before, indexed_to = NO_OFFSET, (0, PhysicalOffset(0))
        for _ in range(_MAX_SEARCHES):
            matches = yield from self.store.index.search(header.topic, header.key, limit, *times, before)
            if before == NO_OFFSET:
                indexed_to = matches.last_update_timestamp, PhysicalOffset(matches.last_update_offset)
            records = [*(yield from self._with_key(matches.offsets, header)), *records]
            if len(matches.offsets) < limit or len(records) >= limit:
                break
            before = matches.offsets[0]
        body = self._join(records[-limit:])
        fields = QueryMessageResponseHeader(*indexed_to)
        if not body:
            remark = "can not find message, maybe time range not correct"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, fields.encode(), remark=remark)
        return command.reply(ext_fields=fields.encode(), body=body)

    def _with_key(self, offsets: Sequence[int], header: QueryMessageRequestHeader) -> Work[list[memoryview]]:
        """Return the records of messages with the wanted key, of those that still exist."""
        begin = self.store.deleted.end_of(header.topic)
        records = yield from self.store.reader.look_up([offset for offset in offsets if offset >= begin])
        return [record for record in records if record is not None and _has_key(record, header)]

    def _join(self, records: Sequence[memoryview]) -> bytes:
        """Join records, or the newest of them if a frame cannot hold all."""
        found: list[memoryview] = []
        size = 0
        for record in reversed(records):
            size += len(record)
            if size > self.max_frame_bytes - _HEAD_BYTES:
                break
            found.append(record)
        return b"".join(reversed(found))

    def view_message_by_id(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand | None]:
        """Answer with the record at a commit log offset, which the client took from an offset message id."""
        header = ViewMessageRequestHeader.decode(command.ext_fields)
        (record,) = yield from self.store.reader.look_up((header.offset,))
        if record is None:
            raise RefusedError(f"can not find message by the offset, {header.offset}")
        response = command.reply(body=record)
        if self.store.reader.is_durable(header.offset):
            return response
        return answer_stored(self.group_commit, connection, command, response)

    def query_consume_queue(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with units of a queue; for a group also with its subscription, and which units match it."""
        header = QueryConsumeQueueRequestHeader.decode(command.ext_fields)
        topic, queue_id, index = header.topic, header.queue_id, header.index
        queue = self.store.queues.find(topic, queue_id)
        if queue is None:
            raise RefusedError(f"{queue_id}@{topic} is not exist!")
        begin, end = (
            self.store.reader.min_offset_in_queue(topic, queue_id),
            self.store.reader.max_offset_in_queue(topic, queue_id),
        )
        if not begin <= index < end:
            return command.reply(remark=f"Index {index} of {queue_id}@{topic} is not exist!")
        answer = QueryConsumeQueueResponseBody(max_queue_index=end, min_queue_index=begin)
        message_filter = None
        if header.consumer_group is not None:
            group = self.groups.consumers.get(header.consumer_group)
            subscription = group.subscriptions.get(topic) if group is not None else None
            if subscription is None:
                answer.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                answer.subscription_data, message_filter = subscription.data, subscription.message_filter
        count = min(header.count, _MAX_UNITS)
        yield from self.store.cold_reads.load_units(queue, index, count)
        answer.queue_data = [
            ConsumeQueueData(
                physic_offset=unit.physical_offset,
                physic_size=unit.size,
                tags_code=unit.tags_code,
                eval=isinstance(message_filter, TagFilter) and message_filter.matches_code(unit.tags_code),
            )
            for unit in self.store.reader.queue_units(topic, queue_id, index, count)
        ]
        return command.reply(body=answer.encode())


def _has_key(record: memoryview, header: QueryMessageRequestHeader) -> bool:
    try:
        message = decode_record(record)
    except ProtocolError:  # clients report it
        return True
    return message.topic == header.topic and (header.key in message.keys or header.key == message.unique_id)
