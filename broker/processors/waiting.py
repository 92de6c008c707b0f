"""Messages that wait: END_TRANSACTION (37), RESUME_CHECK_HALF_MESSAGE (323) and RECALL_MESSAGE (370).

Source: behaviour.md A.6, wire.md 5.11; EndTransactionProcessor.java; RocketMQ 5.5.0 RecallMessageProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.delayed.delivery import real_queue
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import Delay, SendProcessor, answer_stored
from triomq.broker.transactions.undecided import Decision
from triomq.protocol.codes import MessageSysFlag, ResponseCode
from triomq.protocol.errors import MessageIllegalError, ProtocolError, RefusedError
from triomq.protocol.java import tags_code
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import RECALL_TAG, RecallHandle, delete_key, parse_offset_message_id
from triomq.protocol.record.properties import PropertyName, encode_properties, get_property
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests.messages import (
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import entry
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.reading.cold_read import Work

_UNKNOWN: Final = 0
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_NAMES: Final = {_COMMIT: "committed", _ROLLBACK: "rolled back"}
_GROUP: Final = PropertyName.PRODUCER_GROUP.encode()
_RECALL_BODY: Final = b"0"


@dataclass(frozen=True, slots=True, eq=False)
class WaitingProcessors:
    """Ends and resumes transactions, and recalls delayed messages."""

    sends: SendProcessor

    def end_transaction(self, connection: Connection, command: RemotingCommand) -> Work[RemotingCommand | None]:
        """Commit or roll back; a decision that repeats the first one changes nothing and succeeds.

        The half message may not be on the disk yet, as when a check names its new copy: both are flushed before the
        answer.
        """
        header = EndTransactionRequestHeader.decode(command.ext_fields)
        decision = header.commit_or_rollback
        if decision == _UNKNOWN:
            return command.reply()
        if decision not in _NAMES:
            raise RefusedError(f"commitOrRollback {decision} is neither commit (8) nor rollback (12) nor unknown (0)")
        half = yield from self._half(header.commit_log_offset)
        if half is None or half.topic != HALF_TOPIC:
            raise RefusedError("Find prepared transaction message failed")
        if (get_property(half.encoded_properties, _GROUP) or b"").decode("utf-8", "replace") != header.producer_group:
            raise RefusedError("The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise RefusedError("The transaction state table offset wrong")
        live = self.sends.undecided.find(half)
        if live is not None:
            queue = self._real_queue(half) if decision == _COMMIT else None
            self.sends.undecided.decide(Decision(half, live, decision, queue))
        elif (earlier := self.sends.undecided.decision(half)) != decision:
            raise RefusedError(f"the transaction is settled: it was {_NAMES.get(earlier or 0, 'decided or given up')}")
        return answer_stored(self.sends.group_commit, connection, command, command.reply())

    def _real_queue(self, half: MessageExt) -> ConsumeQueue:
        queue = real_queue(self.sends.store, half.encoded_properties)
        if self.sends.topics.get(queue.topic) is None:
            raise RefusedError(f"topic[{queue.topic}] of the transaction was deleted", ResponseCode.TOPIC_NOT_EXIST)
        return queue

    def _half(self, physical_offset: int) -> Work[MessageExt | None]:
        (record,) = yield from self.sends.store.reader.look_up((physical_offset,))
        return None if record is None else decode_record(record)

    def resume_check_half_message(
        self, connection: Connection, command: RemotingCommand
    ) -> Work[RemotingCommand | None]:
        """Check an undecided transaction now, or one that was given up again, with its checks counted from 0."""
        header = ResumeCheckHalfMessageRequestHeader.decode(command.ext_fields)
        half = yield from self._half(parse_offset_message_id(header.msg_id)[2])
        live = None if half is None else self.sends.undecided.find(half)
        if half is None or (half.topic != CHECK_MAX_TOPIC and live is None):
            raise RefusedError(f"no undecided transaction has the half message {header.msg_id}")
        if live is not None and live != half.queue_offset:
            half = self.sends.undecided.read(live) or half
        self.sends.undecided.copy(half, 0, 0)
        return answer_stored(self.sends.group_commit, connection, command, command.reply())

    def recall_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Take a message back; whether it was sent, or taken back before, makes no difference."""
        header = RecallMessageRequestHeader.decode(command.ext_fields)
        handle = self._check(header)
        properties = {
            PropertyName.TAGS: RECALL_TAG,
            PropertyName.TIMER_DELETE_UNIQUE_KEY: delete_key(handle.topic, handle.message_id),
            PropertyName.UNIQUE_KEY: handle.message_id,
            PropertyName.TIMER_DELIVER_MILLIS: str(handle.deliver_ms),
            PropertyName.PRODUCER_GROUP: header.producer_group or "",
        }
        message = entry(
            self.sends.store.queue(handle.topic, 0),
            _RECALL_BODY,
            encode_properties(properties),
            tags_code=tags_code(RECALL_TAG),
            born_timestamp=self.sends.store.now_ms(),
            born_host=connection.peer_host,
            store_host=connection.store_host,
        )
        self.sends.put(message, Delay(due_ms=handle.deliver_ms))
        return answer_stored(
            self.sends.group_commit, connection, command, command.reply(ext_fields={"msgId": handle.message_id})
        )

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        if self.sends.topics.get(header.topic) is None:
            raise RefusedError(f"recall failed, the topic[{header.topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ProtocolError as exc:
            raise RefusedError(str(exc), ResponseCode.ILLEGAL_OPERATION) from None
        if header.topic != handle.topic:
            raise RefusedError("recall failed, topic not match", ResponseCode.ILLEGAL_OPERATION)
        if handle.broker_name != self.sends.config.broker_name:
            raise RefusedError("recall failed, broker service not available", ResponseCode.ILLEGAL_OPERATION)
        now_ms = self.sends.store.now_ms()
        if handle.deliver_ms <= now_ms:
            raise RefusedError("recall failed, timestamp invalid: the message is due", ResponseCode.ILLEGAL_OPERATION)
        try:
            self.sends.timer.check(handle.deliver_ms, now_ms)
        except MessageIllegalError as exc:
            raise RefusedError(f"recall failed, timestamp invalid: {exc}", ResponseCode.ILLEGAL_OPERATION) from None
        return handle
