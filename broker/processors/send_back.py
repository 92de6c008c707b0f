"""CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not process is retried later, or becomes a dead letter.

Source: behaviour.md A.7, store.md 8.5; AbstractSendMessageProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.limits.refused import remark_of
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import Delay, SendProcessor, answer_stored, ensure_dead_letter_topic, retry_limit
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.codes import Permission, ResponseCode
from triomq.protocol.errors import MessageIllegalError, RefusedError, StoreError
from triomq.protocol.names import retry_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import append_property, get_property, set_property
from triomq.protocol.record.record import decode_record, tags_code_of
from triomq.protocol.requests.messages import ConsumerSendMsgBackRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.reading.cold_read import Work

_FIRST_LEVEL: Final = 3  # 10 s
_UNIT_SUB: Final = 2  # topic sysFlag of retry topics in unit mode
_RETRY_TOPIC: Final = b"RETRY_TOPIC"
_ORIGIN_ID: Final = b"ORIGIN_MESSAGE_ID"


@dataclass(frozen=True, slots=True, eq=False)
class SendBackProcessor:
    """Stores messages again that consumers returned."""

    sends: SendProcessor

    def consumer_send_msg_back(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand | None]:
        """Store a message again: for the group's retry topic after a delay, or in its dead-letter topic.

        With durability sync the answer waits for the disk, unlike in RocketMQ: the consumer drops the message then.
        """
        header = ConsumerSendMsgBackRequestHeader.decode(command.ext_fields)
        sends = self.sends
        group = sends.group_of_retries(header.group)
        if group.retry_queue_nums <= 0:  # the group wants no retries
            return command.reply()
        (record,) = yield from sends.store.reader.look_up((header.offset,))
        if record is None:
            raise RefusedError(f"look message by offset failed, {header.offset}")
        queue = self._retry_queue(header, group)
        message = decode_record(record)
        level = header.delay_level or _FIRST_LEVEL + message.reconsume_times
        if level < 0 or message.reconsume_times >= retry_limit(group, header.max_reconsume_times, command.version):
            queue, level = sends.store.queue(ensure_dead_letter_topic(sends.topics, header.group), 0), 0
        self._store_copy(header.group, message, queue, level)
        return answer_stored(sends.group_commit, connection, command, command.reply())

    def _retry_queue(self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig) -> ConsumeQueue:
        """Return a queue of the group's retry topic, which is created if necessary."""
        sys_flag = _UNIT_SUB if header.unit_mode else 0
        topics = self.sends.topics
        topic = topics.ensure(retry_topic(header.group), group.retry_queue_nums, sys_flag)
        if not topic.perm & Permission.WRITE:
            raise RefusedError(f"the topic[{topic.topic_name}] is not writable", ResponseCode.NO_PERMISSION)
        # RocketMQ uses the group's number only, but consumers read only queues that the topic has.
        queues = min(group.retry_queue_nums, max(topic.write_queue_nums, 1))
        return self.sends.store.queue(topic.topic_name, topics.random.randrange(queues))

    def _store_copy(self, group: str, message: MessageExt, queue: ConsumeQueue, level: int) -> None:
        """Store the message in its new place, after the delay of ``level``; level 0: at once.

        Raises:
            RefusedError: the store refuses it; the code is SYSTEM_ERROR for every reason.
        """
        properties = message.encoded_properties
        first_topic = get_property(properties, _RETRY_TOPIC)
        if first_topic is None:
            first_topic = message.topic.encode()
            properties = append_property(properties, _RETRY_TOPIC, first_topic)
        if get_property(properties, _ORIGIN_ID) is None:
            properties = append_property(properties, _ORIGIN_ID, message.offset_message_id.encode())
        properties = set_property(properties, b"WAIT", b"false")
        properties = set_property(properties, b"DELAY", b"%d" % level)
        copy = entry(
            queue,
            message.stored_body,
            properties,
            tags_code=tags_code_of(properties),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.encoded_born_host,
            store_host=message.encoded_store_host,
            reconsume_times=message.reconsume_times + 1,
        )
        try:
            self.sends.put(copy, Delay(level))
        except (MessageIllegalError, StoreError) as exc:
            raise RefusedError(remark_of(exc)) from exc
        counted_for = first_topic.decode("utf-8", "replace")
        if self.sends.topics.get(counted_for) is not None:  # the message may contain any name, each time another
            self.sends.statistics.send_back(group, counted_for)
