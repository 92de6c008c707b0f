"""RECALL_MESSAGE (370): a delayed message is taken back before it is due.

Source: RocketMQ 5.5.0 RecallMessageProcessor.java.
"""

from dataclasses import dataclass
from typing import Final

from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import Delay, SendProcessor, answer_stored
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import MessageIllegalError, ProtocolError, RefusedError
from triomq.protocol.java import tags_code
from triomq.protocol.record.message_id import RECALL_TAG, RecallHandle, delete_key
from triomq.protocol.record.properties import PropertyName, encode_properties
from triomq.protocol.requests.messages import RecallMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.append import entry

_BODY: Final = b"0"


@dataclass(frozen=True, slots=True, eq=False)
class RecallProcessor:
    """Stores requests to take messages back."""

    sends: SendProcessor

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
            _BODY,
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
