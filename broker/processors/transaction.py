"""END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323): what becomes of a half message.

Source: behaviour.md A.6, wire.md 5.11; EndTransactionProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.delayed.delivery import real_queue
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import answer_stored
from triomq.broker.services.flush import GroupCommit
from triomq.broker.topics import TopicTable
from triomq.broker.transactions.undecided import Decision, Undecided
from triomq.protocol.codes import MessageSysFlag, ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.names import CHECK_MAX_TOPIC, HALF_TOPIC
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.properties import PropertyName, get_property
from triomq.protocol.record.record import decode_record
from triomq.protocol.requests.messages import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import Work

_UNKNOWN: Final = 0
_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_NAMES: Final = {_COMMIT: "committed", _ROLLBACK: "rolled back"}
_GROUP: Final = PropertyName.PRODUCER_GROUP.encode()


@dataclass(frozen=True, slots=True, eq=False)
class TransactionProcessors:
    """Settles and resumes transactions."""

    store: MessageStore
    topics: TopicTable
    undecided: Undecided
    group_commit: GroupCommit | None

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
        live = self.undecided.find(half)
        if live is not None:
            queue = self._real_queue(half) if decision == _COMMIT else None
            self.undecided.decide(Decision(half, live, decision, queue))
        elif (earlier := self.undecided.decision(half)) != decision:
            raise RefusedError(f"the transaction is settled: it was {_NAMES.get(earlier or 0, 'decided or given up')}")
        return answer_stored(self.group_commit, connection, command, command.reply())

    def _real_queue(self, half: MessageExt) -> ConsumeQueue:
        queue = real_queue(self.store, half.encoded_properties)
        if self.topics.get(queue.topic) is None:
            raise RefusedError(f"topic[{queue.topic}] of the transaction was deleted", ResponseCode.TOPIC_NOT_EXIST)
        return queue

    def _half(self, physical_offset: int) -> Work[MessageExt | None]:
        (record,) = yield from self.store.reader.look_up((physical_offset,))
        return None if record is None else decode_record(record)

    def resume_check_half_message(
        self, connection: Connection, command: RemotingCommand
    ) -> Work[RemotingCommand | None]:
        """Check an undecided transaction now, or one that was given up again, with its checks counted from 0."""
        header = ResumeCheckHalfMessageRequestHeader.decode(command.ext_fields)
        half = yield from self._half(parse_offset_message_id(header.msg_id)[2])
        live = None if half is None else self.undecided.find(half)
        if half is None or (half.topic != CHECK_MAX_TOPIC and live is None):
            raise RefusedError(f"no undecided transaction has the half message {header.msg_id}")
        if live is not None and live != half.queue_offset:
            half = self.undecided.read(live) or half
        self.undecided.copy(half, 0, 0)
        return answer_stored(self.group_commit, connection, command, command.reply())
