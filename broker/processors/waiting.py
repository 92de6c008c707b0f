"""Stored messages that are stored again or taken back.

Half messages: END_TRANSACTION (37), RESUME_CHECK_HALF_MESSAGE (323).  Delayed ones: RECALL_MESSAGE (370).  Those that a
consumer could not process are retried later, or become dead letters: CONSUMER_SEND_MSG_BACK (36).

Source: behaviour.md A.6, A.7, store.md 8.5, wire.md 5.11; AbstractSendMessageProcessor.java,
EndTransactionProcessor.java; RocketMQ 5.5.0 RecallMessageProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.delayed.delivery import REAL_TOPIC, real_queue
from triomq.broker.limits.refused import remark_of
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import Delay, SendProcessor, retry_limit
from triomq.broker.shared import BrokerPart
from triomq.broker.transactions.undecided import Decision
from triomq.broker.work import Answer
from triomq.protocol.acl.accounts import PUB, SUB, missing_right
from triomq.protocol.codes import MessageSysFlag, Permission, ResponseCode
from triomq.protocol.errors import MessageIllegalError, ProtocolError, RefusedError, StoreError
from triomq.protocol.java import tags_code
from triomq.protocol.names import CHECK_MAX_TOPIC, FORBIDDEN_TOPICS, HALF_TOPIC, retry_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import RECALL_TAG, RecallHandle, delete_key, parse_offset_message_id
from triomq.protocol.record.properties import (
    PropertyName,
    append_property,
    encode_properties,
    get_property,
    set_property,
)
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests import messages
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import copy_of, entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.reading.cold_read import Work

_UNKNOWN: Final = 0
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_NOT_YOURS: Final = "No such transaction, or no permission for its topic"
_NAMES: Final = {_COMMIT: "committed", _ROLLBACK: "rolled back"}
_GROUP: Final = PropertyName.PRODUCER_GROUP.encode()
_RECALL_BODY: Final = b"0"
_FIRST_LEVEL: Final = 3  # 10 s
_UNIT_SUB: Final = 2  # topic sysFlag of retry topics in unit mode
_RETRY_TOPIC: Final = b"RETRY_TOPIC"
_ORIGIN_ID: Final = b"ORIGIN_MESSAGE_ID"


@dataclass(slots=True, eq=False)
class WaitingProcessors(BrokerPart):
    """Ends and resumes transactions, recalls delayed messages, and takes messages back from consumers."""

    sends: SendProcessor

    def end_transaction(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Commit or roll back; a decision that repeats the first one changes nothing and succeeds.

        The half message may not be on the disk yet, as when a check names its new copy: both are flushed before the
        answer.
        """
        header = messages.EndTransactionRequestHeader.decode(command.ext_fields)
        decision = header.commit_or_rollback
        if decision == _UNKNOWN:
            return command.reply()
        if decision not in _NAMES:
            raise RefusedError(f"commitOrRollback {decision} is neither commit (8) nor rollback (12) nor unknown (0)")
        half = self._half(connection, command, header, (yield from self._message(header.commit_log_offset)))
        live = self.sends.undecided.find(half)
        if live is not None:
            queue = real_queue(self.store, half.encoded_properties) if decision == _COMMIT else None
            if queue is not None and self.topics.get(queue.topic) is None:
                raise RefusedError(f"topic[{queue.topic}] of the transaction was deleted", ResponseCode.TOPIC_NOT_EXIST)
            self.sends.undecided.decide(Decision(half, live, decision, queue))
        elif (earlier := self.sends.undecided.decision(half)) != decision:
            raise RefusedError(f"the transaction is settled: it was {_NAMES.get(earlier or 0, 'decided or given up')}")
        return self.sends.answer(connection, command, command.reply())

    def _half(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: messages.EndTransactionRequestHeader,
        half: MessageExt | None,
    ) -> MessageExt:
        """Return the half message that a decision is about, if the account may send to its topic.

        Raises:
            RefusedError: it is another message.  Accounts get one text for all reasons, so that they learn nothing
                about messages of others.
        """
        properties = b"" if half is None else half.encoded_properties
        group, topic = (
            (get_property(properties, name) or b"").decode("utf-8", "replace") for name in (_GROUP, REAL_TOPIC)
        )
        if half is None or half.topic != HALF_TOPIC:
            reason = "Find prepared transaction message failed"
        elif group != header.producer_group:
            reason = "The producer group wrong"
        elif half.queue_offset != header.tran_state_table_offset:
            reason = "The transaction state table offset wrong"
        elif not self.access.may(command.account, topic, PUB):
            reason = missing_right(topic)
        else:
            return half
        if command.account:
            self.access.refuse(connection, command, reason, shown=_NOT_YOURS)
        raise RefusedError(reason)

    def _message(self, physical_offset: int) -> Work[MessageExt | None]:
        (record,) = yield from self.store.reader.look_up((physical_offset,))
        return None if record is None else decode_record(record)

    def resume_check_half_message(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Check an undecided transaction now, or one that was given up again, with its checks counted from 0."""
        header = messages.ResumeCheckHalfMessageRequestHeader.decode(command.ext_fields)
        half = yield from self._message(parse_offset_message_id(header.msg_id)[2])
        live = None if half is None else self.sends.undecided.find(half)
        if half is None or (half.topic != CHECK_MAX_TOPIC and live is None):
            raise RefusedError(f"no undecided transaction has the half message {header.msg_id}")
        if live is not None and live != half.queue_offset:
            half = self.sends.undecided.read(live) or half
        self.sends.undecided.copy(half, 0, 0)
        return self.sends.answer(connection, command, command.reply())

    def recall_message(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Take a message back; whether it was sent, or taken back before, makes no difference."""
        header = messages.RecallMessageRequestHeader.decode(command.ext_fields)
        handle = self._check(header)
        properties = {
            PropertyName.TAGS: RECALL_TAG,
            PropertyName.TIMER_DELETE_UNIQUE_KEY: delete_key(handle.topic, handle.message_id),
            PropertyName.UNIQUE_KEY: handle.message_id,
            PropertyName.TIMER_DELIVER_MILLIS: str(handle.deliver_ms),
            PropertyName.PRODUCER_GROUP: header.producer_group or "",
        }
        message = entry(
            self.store.queue(handle.topic, 0),
            _RECALL_BODY,
            encode_properties(properties),
            tags_code=tags_code(RECALL_TAG),
            born_timestamp=self.store.now_ms(),
            born_host=connection.peer_host,
            store_host=connection.store_host,
        )
        self.sends.put(message, Delay(due_ms=handle.deliver_ms))
        return self.sends.answer(connection, command, command.reply(ext_fields={"msgId": handle.message_id}))

    def _check(self, header: messages.RecallMessageRequestHeader) -> RecallHandle:
        if self.topics.get(header.topic) is None:
            raise RefusedError(f"recall failed, the topic[{header.topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ProtocolError as exc:
            raise RefusedError(str(exc), ResponseCode.ILLEGAL_OPERATION) from None
        if header.topic != handle.topic:
            raise RefusedError("recall failed, topic not match", ResponseCode.ILLEGAL_OPERATION)
        if handle.broker_name != self.config.broker_name:
            raise RefusedError("recall failed, broker service not available", ResponseCode.ILLEGAL_OPERATION)
        now_ms = self.store.now_ms()
        if handle.deliver_ms <= now_ms:
            raise RefusedError("recall failed, timestamp invalid: the message is due", ResponseCode.ILLEGAL_OPERATION)
        try:
            self.sends.timer.check(handle.deliver_ms, now_ms)
        except MessageIllegalError as exc:
            raise RefusedError(f"recall failed, timestamp invalid: {exc}", ResponseCode.ILLEGAL_OPERATION) from None
        return handle

    # --- messages that a consumer could not process -----------------------------------------------------

    def consumer_send_msg_back(self, connection: Connection, command: RemotingCommand) -> Work[Answer]:
        """Store a message again: for the group's retry topic after a delay, or in its dead-letter topic.

        With durability sync the answer waits for the disk, unlike in RocketMQ: the consumer drops the message then.
        """
        header = messages.ConsumerSendMsgBackRequestHeader.decode(command.ext_fields)
        sends = self.sends
        group = sends.group_of_retries(header.group)
        if group.retry_queue_nums <= 0:  # the group wants no retries
            return command.reply()
        message = yield from self._sent_back(connection, command, header.offset)
        name, sys_flag = retry_topic(header.group), _UNIT_SUB if header.unit_mode else 0
        topic = sends.topics.ensure(name, group.retry_queue_nums, sys_flag)
        if not topic.perm & Permission.WRITE:
            raise RefusedError(f"the topic[{name}] is not writable", ResponseCode.NO_PERMISSION)
        # RocketMQ uses the group's number only, but consumers read only queues that the topic has.
        queues = min(group.retry_queue_nums, max(topic.write_queue_nums, 1))
        queue = sends.store.queue(name, sends.topics.random.randrange(queues))
        level = header.delay_level or _FIRST_LEVEL + message.reconsume_times
        if level < 0 or message.reconsume_times >= retry_limit(group, header.max_reconsume_times, command.version):
            queue, level = sends.dead_letter_queue(header.group), 0
        self._store_copy(header.group, message, queue, level)
        return sends.answer(connection, command, command.reply())

    def _sent_back(self, connection: Connection, command: RemotingCommand, offset: int) -> Work[MessageExt]:
        """Return a message that consumers can get, and that the account may read; its copy counts for quotas.

        RocketMQ takes any record.  The error has one text, so that it does not show where the records of others are.
        """
        usage, missing = connection.usage, f"look message by offset failed, {offset}"
        message = yield from self._message(offset)
        if message is None or message.topic in FORBIDDEN_TOPICS or self.topics.get(message.topic) is None:
            raise RefusedError(missing)
        if not (yield from self.store.reader.is_shown(message)):
            raise RefusedError(missing)
        if not self.access.may(command.account, message.topic, SUB):
            self.access.refuse(connection, command, missing_right(message.topic), shown=missing)
        if usage is not None:
            usage.copy(len(message.stored_body) + len(message.encoded_properties), command.content_bytes)
        return message

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
        copy = copy_of(message, queue, properties)
        try:
            again = message.reconsume_times + 1
            self.sends.put(copy._replace(reconsume_times=again, prepared_transaction_offset=0), Delay(level))
        except (MessageIllegalError, StoreError) as exc:
            raise RefusedError(remark_of(exc)) from exc
        counted_for = first_topic.decode("utf-8", "replace")
        if self.topics.get(counted_for) is not None:  # the message may contain any name, each time another
            self.statistics.send_back(group, counted_for)
