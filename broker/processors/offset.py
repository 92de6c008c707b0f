"""Offsets of groups and queues: 14, 15, 29 to 32, 308, 314.

Source: behaviour.md A.13, A.15, A.16; ConsumerManageProcessor.java, AdminBrokerProcessor.java,
QueryMessageProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import Connection
from triomq.broker.topics import TopicTable
from triomq.broker.work import encode
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.bodies.statistics import QueryCorrectionOffsetBody
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.message_queue import QueueOffset
from triomq.protocol.names import validate_group
from triomq.protocol.requests.offsets import (
    CloneGroupOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import PAUSE, Work

_BEHIND: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class OffsetProcessors:
    """Serves the offsets of groups and queues."""

    store: MessageStore
    topics: TopicTable
    groups: Groups

    def query_consumer_offset(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the group's stored offset, or with 0 for a group that is new on a young queue.

        Clients apply their consume-from-where policy only after QUERY_NOT_FOUND, so on a queue whose first message is
        still in memory every new group begins at 0, whatever its policy.
        """
        header = QueryConsumerOffsetRequestHeader.decode(command.ext_fields)
        self.groups.former.begin(connection, header.consumer_group, header.topic, header.queue_id)
        queue_offset = self.groups.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if queue_offset is not None:
            return _offset(command, queue_offset)
        if header.set_zero_if_not_found is False:  # 5.x callers that do not want the 0 below
            raise RefusedError("Not found, do not set to zero", ResponseCode.QUERY_NOT_FOUND)
        store = self.store
        if store.reader.min_offset_in_queue(header.topic, header.queue_id) > 0 or (
            yield from self._first_is_on_disk(header.topic, header.queue_id)
        ):
            raise RefusedError(
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first", ResponseCode.QUERY_NOT_FOUND
            )
        return _offset(command, 0)

    def _first_is_on_disk(self, topic: str, queue_id: int) -> Work[bool]:
        """Whether message 0 is so old that it is probably no longer in memory."""
        store = self.store
        if (queue := store.queues.find(topic, queue_id)) is not None:
            yield from store.cold_reads.load_units(queue, 0)
        units = store.reader.queue_units(topic, queue_id, 0, 1)
        return bool(units) and units[0].physical_offset < store.commit_log.max_offset - store.config.in_memory_bytes

    def update_consumer_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Store the offset that a group commits, even a lower one.

        RocketMQ 4.9 stores whatever it is sent.  An unknown topic is refused, as in 5.x: a late commit must not restore
        the offsets of a deleted topic, which would hide messages of a new topic with its name.  So is an offset of a
        topic that was deleted and created again, see ``former_offsets``, and an unknown queue.
        An unknown group is created, as by a heartbeat: tools set offsets of groups that do not consume yet, and readers
        without a group of live members commit, too.  With an offset below 0 some clients say that they have none yet:
        nothing is stored.
        """
        header = UpdateConsumerOffsetRequestHeader.decode(command.ext_fields)
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
        header = QueryCorrectionOffsetHeader.decode(command.ext_fields)
        groups = yield from self.groups.offsets.of_topic(header.topic)
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group, offsets in groups.items():
            if group in left_out:
                continue
            for queue_id, queue_offset in offsets.items():
                if queue_offset >= self.store.reader.min_offset_in_queue(header.topic, queue_id):
                    lowest[queue_id] = min(queue_offset, lowest.get(queue_id, queue_offset))
                yield PAUSE
        for queue_id, queue_offset in groups.get(header.compare_group or "", {}).items():
            if queue_id in lowest and lowest[queue_id] > queue_offset:
                lowest[queue_id] = _BEHIND
            yield PAUSE
        return command.reply(body=(yield from encode(QueryCorrectionOffsetBody(lowest))))

    def clone_group_offset(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Copy the offsets of one group to another, in one topic or in all topics.

        Topics that a live source group no longer subscribes to are skipped, unless the request says that it is offline.
        Unlike in RocketMQ, which then does nothing and reports success, no topic means all topics, and a group that is
        unknown is an error (behaviour.md C.4, 22).  A known one may have its offsets on other brokers.
        """
        header = CloneGroupOffsetRequestHeader.decode(command.ext_fields)
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
        header = SearchOffsetRequestHeader.decode(command.ext_fields)
        return _offset(
            command, (yield from self.store.reader.offset_by_time(header.topic, header.queue_id, header.timestamp))
        )

    def get_max_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the offset that the queue's next message gets; 0 for an unknown queue."""
        header = QueueRequestHeader.decode(command.ext_fields)
        return _offset(command, self.store.reader.max_offset_in_queue(header.topic, header.queue_id))

    def get_min_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with the offset of the queue's oldest message; 0 for an unknown queue."""
        header = QueueRequestHeader.decode(command.ext_fields)
        return _offset(command, self.store.reader.min_offset_in_queue(header.topic, header.queue_id))

    def get_earliest_msg_storetime(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Answer with the store time of the queue's oldest message, ms; -1 if it is empty."""
        header = QueueRequestHeader.decode(command.ext_fields)
        timestamp = yield from self.store.reader.earliest_store_time(header.topic, header.queue_id)
        return command.reply(ext_fields=TimestampResponseHeader(timestamp).encode())


def _offset(command: RemotingCommand, queue_offset: int) -> RemotingCommand:
    return command.reply(ext_fields=OffsetResponseHeader(QueueOffset(queue_offset)).encode())
