"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): the hot path of producers.

Source: behaviour.md A.3, A.7; SendMessageProcessor.java.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Final, NamedTuple, TypeAlias

from triomq.broker.delayed.delivery import with_real_place
from triomq.broker.delayed.levels import Schedule
from triomq.broker.delayed.timer import Timer
from triomq.broker.network.connection import Connection
from triomq.broker.services.group_commit import GroupCommit
from triomq.broker.shared import BrokerPart
from triomq.broker.transactions.undecided import Undecided
from triomq.broker.work import Answer
from triomq.protocol.bodies.route import SubscriptionGroupConfig, TopicFilterType
from triomq.protocol.codes import (
    HIDDEN_BIT,
    TRANSACTION_MASK,
    VERSION_MAX_RECONSUME,
    MessageSysFlag,
    RequestCode,
    ResponseCode,
)
from triomq.protocol.errors import MessageIllegalError, RefusedError
from triomq.protocol.names import FORBIDDEN_TOPICS, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX, dead_letter_topic
from triomq.protocol.record.batch import decode_batch
from triomq.protocol.record.message_id import RecallHandle, offset_message_id
from triomq.protocol.record.properties import (
    MAX_PROPERTIES_BYTES,
    PropertyName,
    append_property,
    get_property,
    remove_property,
    set_property,
)
from triomq.protocol.record.record import tags_code_of
from triomq.protocol.requests.messages import SendMessageRequestHeader, SendMessageRequestHeaderV2
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import Entry, entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.delays import requested_level, requested_time, without_request

SendHeader: TypeAlias = SendMessageRequestHeader | SendMessageRequestHeaderV2

#: The answer names each message of a batch, with 57 bytes at most, in a header of 1 MiB.
_MAX_BATCH: Final = 16_384
_LONG_NAMES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_CLUSTER: Final = b"CLUSTER"
_WAIT: Final = b"WAIT"
_DELAY: Final = b"DELAY"
_UNIQUE_KEY: Final = PropertyName.UNIQUE_KEY.encode()
_DELETES: Final = PropertyName.TIMER_DELETE_UNIQUE_KEY.encode()


class Delay(NamedTuple):
    """How long a message waits: for a delay level, until a time (ms), for a decision, or else not at all."""

    level: int = 0
    due_ms: int = 0
    is_half: bool = False


AT_ONCE: Final = Delay()
_HALF: Final = Delay(is_half=True)


@dataclass(slots=True, eq=False)
class SendProcessor(BrokerPart):
    """Stores messages."""

    schedule: Schedule
    timer: Timer
    undecided: Undecided
    group_commit: GroupCommit | None

    def send_message(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Store one message or a batch: code 10 with the long names, 310 and 320 with the one-letter names."""
        began = perf_counter()
        header = read_header(command)
        fields, wants_flush = self.store_message(connection, command, header)
        if self.group_commit is None:
            self.statistics.sends.observe(perf_counter() - began)
        return self.answer(connection, command, command.reply(ext_fields=fields), wants_flush=wants_flush)

    send_message_v2 = send_batch_message = send_message

    def answer(
        self, connection: Connection, command: RemotingCommand, response: RemotingCommand, *, wants_flush: bool = True
    ) -> Answer:
        """Return the response to a request that stored messages; ``None`` if it is sent after the flush."""
        if self.group_commit is not None:
            if wants_flush and not command.is_oneway:
                self.group_commit.defer(connection, response.encode())
                return None
            self.group_commit.wake()
        return response

    def store_message(
        self, connection: Connection, command: RemotingCommand, header: SendHeader
    ) -> tuple[dict[str, str], bool]:
        """Check a message or a batch, and store it; return the fields of the answer, and whether it waits for the disk.

        Raises:
            RefusedError, MessageIllegalError, StoreError: it is not stored.
        """
        topic = header.topic
        if topic in FORBIDDEN_TOPICS:
            raise RefusedError(f"the topic[{topic}] is forbidden for clients", ResponseCode.NO_PERMISSION)
        config = self.topics.get(topic) or self.topics.create_by_sending(
            topic, header.default_topic, header.default_topic_queue_nums
        )
        if config is None:
            raise RefusedError(f"topic[{topic}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST)
        # The topic's write permission is not checked, as in RocketMQ: clients avoid such queues because of the route.
        queue_id = header.queue_id
        if queue_id < 0:
            if config.write_queue_nums <= 0:
                raise RefusedError(f"topic[{topic}] has no queue to write to", ResponseCode.NO_PERMISSION)
            queue_id = self.topics.random.randrange(config.write_queue_nums)
        elif queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise RefusedError(f"request queueId[{queue_id}] is illegal")
        queue = self.store.queue(topic, queue_id)
        if config.topic_filter_type is TopicFilterType.MULTI_TAG:
            header.sys_flag |= MessageSysFlag.MULTI_TAGS
        if header.batch:
            return self._store_batch(connection, command, header, queue)
        message, delay, wants_flush = self.prepare(connection, header, queue, bytes(command.body), command.version)
        physical_offset, queue_offset = self.put(message, delay)
        msg_id = offset_message_id(connection.store_host, physical_offset)
        fields = response_fields(self.config.region, msg_id, str(queue.queue_id), str(queue_offset))
        if delay.due_ms:
            self._add_recall_handle(fields, topic, message.properties, delay.due_ms)
        return fields, wants_flush

    def prepare(
        self, connection: Connection, header: SendHeader, queue: ConsumeQueue, body: bytes, version: int
    ) -> tuple[Entry, Delay, bool]:
        """Return a message as it will be stored, how long it waits, and whether the sender waits for a flush.

        Args:
            connection, header, queue, body: of the message; the header may be changed.
            version: the client's.

        Raises:
            MessageIllegalError, RefusedError: it is not accepted.
        """
        properties = (header.properties or "").encode()
        wait: bytes | None = None
        if b"WAIT\x01" in properties:
            wait = get_property(properties, _WAIT)
            properties = remove_property(properties, _WAIT)
        delay = AT_ONCE
        if b"DELAY\x01" in properties or b"TRAN_MSG\x01" in properties or b"TIMER_DEL" in properties:
            delay = self._delay(properties, header)
        if header.topic.startswith(RETRY_PREFIX):
            group = self.group_of_retries(header.topic.removeprefix(RETRY_PREFIX))
            if (header.reconsume_times or 0) >= retry_limit(group, header.max_reconsume_times, version):
                queue = self.dead_letter_queue(group.group_name)
                properties = set_property(properties, _DELAY, b"0")
                delay = AT_ONCE
        properties = append_property(properties, _CLUSTER, self.config.cluster_name.encode())
        if delay is not AT_ONCE:
            if wait is not None:
                properties = append_property(properties, _WAIT, wait)
            if delay.level:
                properties = without_request(properties)
            if delay.is_half:
                properties = with_real_place(properties, queue)
                header.sys_flag &= ~TRANSACTION_MASK
        return _entry(connection, header, queue, body, properties, header.flag), delay, wait != b"false"

    def _add_recall_handle(self, fields: dict[str, str], topic: str, properties: bytes, due_ms: int) -> None:
        """Add the handle that recalls a message that waits for a time, if it has an id."""
        message_id = get_property(properties, _UNIQUE_KEY)
        if message_id is not None and not topic.startswith(RETRY_PREFIX) and get_property(properties, _DELETES) is None:
            handle = RecallHandle(topic, self.config.broker_name, due_ms, message_id.decode())
            fields["recallHandle"] = handle.encode()

    def put(self, message: Entry, delay: Delay) -> tuple[int, int]:
        """Store a message where it waits, or in its queue; return its physical offset and its queue offset.

        Raises:
            MessageIllegalError, StoreError: it is not stored.
        """
        if delay.level:
            return self.schedule.put(delay.level, message)
        if delay.is_half:
            self.topics.ensure(HALF_TOPIC, 1)
            self.topics.ensure(OP_HALF_TOPIC, 1)  # tools read it
            return self.undecided.put(message)
        if delay.due_ms:
            return self.timer.put(delay.due_ms, message)
        (place,) = self.store.append([message])
        self.statistics.put(message.queue.topic, 1, len(message.body))
        return place

    def _store_batch(
        self, connection: Connection, command: RemotingCommand, header: SendHeader, queue: ConsumeQueue
    ) -> tuple[dict[str, str], bool]:
        common = (header.properties or "").encode()
        if header.sys_flag & TRANSACTION_MASK:
            raise MessageIllegalError("a batch cannot be part of a transaction")
        if get_property(common, _DELAY) is not None or without_request(common) != common:
            raise MessageIllegalError("a batch cannot be delayed")
        max_bytes = self.store.config.max_message_size_bytes
        if len(command.body) > max_bytes:
            raise MessageIllegalError(f"batch of {len(command.body)} bytes is above maxMessageSize {max_bytes}")
        wants_flush = get_property(common, _WAIT) != b"false"
        # A 5.x producer names the batch as a whole; each message keeps its own name (wire.md 10.7).
        common = append_property(remove_property(common, b"UNIQ_KEY"), _CLUSTER, self.config.cluster_name.encode())
        batch = decode_batch(command.body)
        if not 0 < len(batch) <= _MAX_BATCH:
            raise MessageIllegalError(f"a batch of {len(batch)} messages: it may hold 1 to {_MAX_BATCH}")
        entries = [
            _entry(connection, header, queue, body, _batch_properties(own, common), flag) for flag, body, own in batch
        ]
        places = self.store.append(entries)
        self.statistics.put(queue.topic, len(entries), len(command.body))
        ids = ",".join(offset_message_id(connection.store_host, physical_offset) for physical_offset, _ in places)
        return response_fields(self.config.region, ids, str(queue.queue_id), str(places[0][1])), wants_flush

    def _delay(self, properties: bytes, header: SendHeader) -> Delay:
        """Return the delay of a message; a delay level takes precedence over a time.

        Raises:
            MessageIllegalError: level or time is not a number, the time is too far away, the message is part of a
                transaction and delayed, or it takes another one back that is due.
        """
        level = requested_level(properties)
        # Clients before 4.6.1 leave this property on messages that they send to a retry topic.
        is_retry = level > 0 and (header.reconsume_times or 0) > 0
        if get_property(properties, b"TRAN_MSG") == b"true" and not is_retry:
            if level or without_request(properties) != properties:
                raise MessageIllegalError("a message cannot be both part of a transaction and delayed")
            return _HALF
        if header.sys_flag & HIDDEN_BIT:
            return AT_ONCE
        if level:
            return Delay(level)
        now_ms = self.store.now_ms()
        due_ms = requested_time(properties, now_ms)
        if due_ms is None:
            return AT_ONCE
        if due_ms <= now_ms and get_property(properties, _DELETES) is not None:
            raise MessageIllegalError("the message to be deleted (TIMER_DEL_UNIQKEY) is due already")
        self.timer.check(due_ms, now_ms)
        return Delay(due_ms=due_ms) if due_ms > now_ms else AT_ONCE

    def group_of_retries(self, name: str) -> SubscriptionGroupConfig:
        """Return the settings of a group whose messages are retried.

        Raises:
            RefusedError: the group does not exist and may not be created.
        """
        group = self.groups.settings.get_or_create(name)
        if group is None:
            raise RefusedError(f"subscription group not exist, {name}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return group

    def dead_letter_queue(self, group: str) -> ConsumeQueue:
        """Return the queue of a group's dead letters, whose topic is created if it does not exist.

        Raises:
            IllegalNameError: the group's name is too long to be part of a topic's.
        """
        return self.store.queue(self.topics.ensure(dead_letter_topic(group), 1).topic_name, 0)


def read_header(command: RemotingCommand) -> SendHeader:
    """Return the header of a send or a reply, with the long or the one-letter names."""
    if command.code in _LONG_NAMES:
        return SendMessageRequestHeader.decode(command.ext_fields)
    return SendMessageRequestHeaderV2.decode(command.ext_fields)


def _entry(
    connection: Connection, header: SendHeader, queue: ConsumeQueue, body: bytes, properties: bytes, flag: int
) -> Entry:
    return entry(
        queue,
        body,
        properties,
        tags_code=tags_code_of(properties),
        flag=flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=connection.peer_host,
        store_host=connection.store_host,
        reconsume_times=0 if header.batch else header.reconsume_times or 0,
    )


def _batch_properties(own: bytes, common: bytes) -> bytes:
    """Return the properties of a message in a batch, joined with those of the batch."""
    if b"TIMER_DEL" in own and without_request(own) != own:
        raise MessageIllegalError("a message of a batch cannot be delayed")
    separator = b"" if not own or own.endswith(b"\x02") else b"\x02"
    properties = own + separator + common
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageIllegalError(f"properties of {len(properties)} bytes are above {MAX_PROPERTIES_BYTES}")
    return properties


def response_fields(region: str, msg_id: str, queue_id: str, queue_offset: str) -> dict[str, str]:
    """Return the fields of the response to a send."""
    return {"MSG_REGION": region, "TRACE_ON": "true", "msgId": msg_id, "queueId": queue_id, "queueOffset": queue_offset}


def retry_limit(group: SubscriptionGroupConfig, requested: int | None, version: int) -> int:
    """Return the number of retries of a message: as the client requests, if its version may, or the group's."""
    return requested if requested is not None and version >= VERSION_MAX_RECONSUME else group.retry_max_times
