"""Queries of stored messages: by key (12), by commit log offset (33), the units of a consume queue (321).

Offsets of groups and queues: 14, 15, 29 to 32, 308, 314.

Source: behaviour.md A.13, A.15, A.16; store.md 4.6; ConsumerManageProcessor.java, AdminBrokerProcessor.java,
QueryMessageProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.groups.groups import check_changeable
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import SendProcessor
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer, encode
from triomq.protocol.bodies import statistics as bodies
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.filters.filter_types import TagFilter
from triomq.protocol.message_queue import PhysicalOffset, QueueOffset
from triomq.protocol.names import validate_group
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests import messages, offsets
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.index.index_file import NO_OFFSET
from triomq.storage.index.message_index import MAX_MATCHES
from triomq.storage.reading.cold_read import PAUSE, Work

_UNIQUE_KEY_MATCHES: Final = 32  # defaultQueryMaxNum
_HEAD_BYTES: Final = 64 * 1024  # of the largest frame, for its header
_MAX_UNITS: Final = 10_000
_MAX_SEARCHES: Final = 100  # of 64 messages each
_BEHIND: Final = 2**63 - 1
_NO_PROGRESS: Final = 0, PhysicalOffset(0)  # of the index, where nothing is found


@dataclass(slots=True, eq=False)
class QueryProcessors(BrokerPart):
    """Finds stored messages; serves the offsets of groups and queues."""

    sends: SendProcessor

    def query_message(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the newest messages of a topic that have a key.

        Unlike in RocketMQ, those of a deleted topic of the same name are left out, and those of which only the hash of
        topic and key is equal: they may be of a topic that the account must not read, and would displace the wanted
        messages.  Even the progress of the index would reveal that they exist.
        """
        header = messages.QueryMessageRequestHeader.decode(command.ext_fields)
        limit = min(_UNIQUE_KEY_MATCHES if header.unique_key_query else header.max_num, MAX_MATCHES)
        times = header.begin_timestamp, header.end_timestamp
        records: list[memoryview] = []
        begin = self.store.deleted.end_of(header.topic)
        before, indexed_to = NO_OFFSET, _NO_PROGRESS
        for _ in range(_MAX_SEARCHES):
            matches = yield from self.store.index.search(header.topic, header.key, limit, *times, before)
            if before == NO_OFFSET:
                indexed_to = matches.last_update_timestamp, PhysicalOffset(matches.last_update_offset)
            existing = [offset for offset in matches.offsets if offset >= begin]
            found = yield from self.store.reader.look_up(existing)
            records = [*(record for record in found if record is not None and _has_key(record, header)), *records]
            if len(matches.offsets) < limit or len(records) >= limit:
                break
            before = matches.offsets[0]
        newest: list[memoryview] = []
        room = self.config.max_frame_bytes - _HEAD_BYTES
        for record in reversed(records[-limit:]):
            room -= len(record)
            if room < 0:  # a frame cannot hold the older ones
                break
            newest.append(record)
        body = b"".join(reversed(newest))
        if not body:
            fields = messages.QueryMessageResponseHeader(*_NO_PROGRESS).encode()
            remark = "can not find message, maybe time range not correct"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, fields, remark=remark)
        return command.reply(ext_fields=messages.QueryMessageResponseHeader(*indexed_to).encode(), body=body)

    def view_message_by_id(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Answer with the record at a commit log offset, which the client took from an offset message id."""
        header = messages.ViewMessageRequestHeader.decode(command.ext_fields)
        (record,) = yield from self.store.reader.look_up((header.offset,))
        if record is None:
            raise RefusedError(f"can not find message by the offset, {header.offset}")
        response = command.reply(body=record)
        if self.store.reader.is_durable(header.offset):
            return response
        return self.sends.answer(connection, command, response)

    def query_consume_queue(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with units of a queue; for a group also with its subscription, and which units match it."""
        header = offsets.QueryConsumeQueueRequestHeader.decode(command.ext_fields)
        topic, queue_id, index = header.topic, header.queue_id, header.index
        queue = self.store.queues.find(topic, queue_id)
        if queue is None:
            raise RefusedError(f"{queue_id}@{topic} is not exist!")
        reader = self.store.reader
        begin, end = reader.min_offset_in_queue(topic, queue_id), reader.max_offset_in_queue(topic, queue_id)
        if not begin <= index < end:
            return command.reply(remark=f"Index {index} of {queue_id}@{topic} is not exist!")
        answer = bodies.QueryConsumeQueueResponseBody(max_queue_index=end, min_queue_index=begin)
        message_filter = None
        if header.consumer_group is not None:
            group = self.groups.consumers.get(header.consumer_group)
            subscription = group.subscriptions.get(topic) if group is not None else None
            if subscription is None:
                answer.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                answer.subscription_data, message_filter = subscription.data.with_tags(), subscription.message_filter
        count = min(header.count, _MAX_UNITS)
        yield from self.store.cold_reads.load_units(queue, index, count)
        answer.queue_data = [
            bodies.ConsumeQueueData(
                physic_offset=unit.physical_offset,
                physic_size=unit.size,
                tags_code=unit.tags_code,
                eval=isinstance(message_filter, TagFilter) and message_filter.matches_code(unit.tags_code),
            )
            for unit in reader.queue_units(topic, queue_id, index, count)
        ]
        return command.reply(body=answer.encode())

    # --- offsets of groups ------------------------------------------------------------------------------

    def query_consumer_offset(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the group's stored offset, or with 0 for a group that is new on a young queue.

        Clients apply their consume-from-where policy only after QUERY_NOT_FOUND, so on a queue whose first message is
        still in memory every new group begins at 0, whatever its policy.
        """
        header = offsets.QueryConsumerOffsetRequestHeader.decode(command.ext_fields)
        self.groups.former.begin(connection, header.consumer_group, header.topic, header.queue_id)
        queue_offset = self.groups.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if queue_offset is not None:
            return _offset(command, queue_offset)
        if header.set_zero_if_not_found is False:  # 5.x callers that do not want the 0 below
            raise RefusedError("Not found, do not set to zero", ResponseCode.QUERY_NOT_FOUND)
        store, place = self.store, (header.topic, header.queue_id)
        is_old = store.reader.min_offset_in_queue(*place) > 0
        if not is_old:  # it is, too, if message 0 is probably no longer in memory
            if (queue := store.queues.find(*place)) is not None:
                yield from store.cold_reads.load_units(queue, 0)
            units = store.reader.queue_units(*place, 0, 1)
            in_memory_from = store.commit_log.max_offset - store.config.in_memory_bytes
            is_old = bool(units) and units[0].physical_offset < in_memory_from
        if is_old:
            raise RefusedError(
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first", ResponseCode.QUERY_NOT_FOUND
            )
        return _offset(command, 0)

    def update_consumer_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Store the offset that a group commits, even a lower one.

        RocketMQ 4.9 stores whatever it is sent.  An unknown topic is refused, as in 5.x: a late commit must not restore
        the offsets of a deleted topic, which would hide messages of a new topic with its name.  So is an offset of a
        topic that was deleted and created again, see ``former_offsets``, and an unknown queue.
        An unknown group is created, as by a heartbeat: tools set offsets of groups that do not consume yet, and readers
        without a group of live members commit, too.  With an offset below 0 some clients say that they have none yet:
        nothing is stored.
        """
        header = offsets.UpdateConsumerOffsetRequestHeader.decode(command.ext_fields)
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        if (config := self.topics.get(topic)) is None:
            raise RefusedError(f"Topic {topic} not exist!", ResponseCode.TOPIC_NOT_EXIST)
        validate_group(group)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queues and self.store.queues.find(topic, queue_id) is None:  # it may have had more
            raise RefusedError(f"queueId[{queue_id}] is illegal: topic {topic} has {queues} queues")
        if not self.groups.is_known(group) and not self.groups.settings.get_or_create(group):
            raise RefusedError(f"Group {group} not exist!", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        first = self.store.reader.min_offset_in_queue(topic, queue_id)
        if self.groups.former.refuses_commit(connection, header, first):
            raise RefusedError(
                f"offset {header.commit_offset} is of a topic {topic} that was deleted: pull queue {queue_id} again "
                "from its first message",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        if header.commit_offset >= 0:
            self.groups.commit(group, topic, queue_id, header.commit_offset)
        return command.reply()

    def query_correction_offset(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the lowest offset of all groups but some in each queue of a topic, which no message precedes.

        It is the largest number where the group to compare is behind all others.  RocketMQ 4.9 mixes up topic and
        group, and loses the offsets of the groups that are left out.
        """
        header = offsets.QueryCorrectionOffsetHeader.decode(command.ext_fields)
        groups = yield from self.groups.offsets.of_topic(header.topic)
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group, committed in groups.items():
            if group in left_out:
                continue
            for queue_id, queue_offset in committed.items():
                if queue_offset >= self.store.reader.min_offset_in_queue(header.topic, queue_id):
                    lowest[queue_id] = min(queue_offset, lowest.get(queue_id, queue_offset))
                yield PAUSE
        for queue_id, queue_offset in groups.get(header.compare_group or "", {}).items():
            if queue_id in lowest and lowest[queue_id] > queue_offset:
                lowest[queue_id] = _BEHIND
            yield PAUSE
        return command.reply(body=(yield from encode(bodies.QueryCorrectionOffsetBody(lowest))))

    def clone_group_offset(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Copy the offsets of one group to another, in one topic or in all topics.

        Topics that a live source group no longer subscribes to are skipped, unless the request says that it is offline.
        Unlike in RocketMQ, which then does nothing and reports success, no topic means all topics, and a group that is
        unknown is an error (behaviour.md C.4, 22).  A known one may have its offsets on other brokers.
        """
        header = offsets.CloneGroupOffsetRequestHeader.decode(command.ext_fields)
        check_changeable(header.dest_group)
        if not self.groups.is_known(header.dest_group):
            self.groups.settings.check_new(header.dest_group)
        live = None if header.offline else self.groups.consumers.get(header.src_group)
        found = yield from self.groups.offsets.of_group(header.src_group)
        topics = [
            topic
            for topic in ([header.topic] if header.topic else found)
            if topic in found and self.topics.get(topic) is not None and (live is None or topic in live.subscriptions)
        ]
        if not found and self.groups.settings.get(header.src_group) is None:
            raise RefusedError(f"nothing to clone: there is no group {header.src_group}")
        if topics and not self.groups.is_known(header.dest_group):
            self.groups.settings.put(SubscriptionGroupConfig(group_name=header.dest_group))
        for topic in topics:
            for queue_id, queue_offset in found[topic].items():
                self.groups.commit(header.dest_group, topic, queue_id, queue_offset)
                yield PAUSE
        return command.reply()

    def search_offset_by_timestamp(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the offset of the message whose store time is nearest to a time; 0 for an unknown queue."""
        header = offsets.SearchOffsetRequestHeader.decode(command.ext_fields)
        return _offset(
            command, (yield from self.store.reader.offset_by_time(header.topic, header.queue_id, header.timestamp))
        )

    def get_max_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the offset that the queue's next message gets; 0 for an unknown queue."""
        header = offsets.QueueRequestHeader.decode(command.ext_fields)
        return _offset(command, self.store.reader.max_offset_in_queue(header.topic, header.queue_id))

    def get_min_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the offset of the queue's oldest message; 0 for an unknown queue."""
        header = offsets.QueueRequestHeader.decode(command.ext_fields)
        return _offset(command, self.store.reader.min_offset_in_queue(header.topic, header.queue_id))

    def get_earliest_msg_storetime(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the store time of the queue's oldest message, ms; -1 if it is empty."""
        header = offsets.QueueRequestHeader.decode(command.ext_fields)
        timestamp = yield from self.store.reader.earliest_store_time(header.topic, header.queue_id)
        return command.reply(ext_fields=offsets.TimestampResponseHeader(timestamp).encode())


def _has_key(record: memoryview, header: messages.QueryMessageRequestHeader) -> bool:
    """Compare topic and key as clients do; Go's administration asks for unique ids as for keys."""
    message = decode_record(record)
    if message.topic != header.topic:
        return False
    return header.key == message.unique_id or (not header.unique_key_query and header.key in message.keys)


def _offset(command: RemotingCommand, queue_offset: int) -> RemotingCommand:
    return command.reply(ext_fields=offsets.OffsetResponseHeader(QueueOffset(queue_offset)).encode())
