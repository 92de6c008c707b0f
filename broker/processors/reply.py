"""SEND_REPLY_MESSAGE (324, 325): the answer to a message of RocketMQ's request-reply, pushed to the requester (326).

The reply is stored, too, as Apache's brokers do by default; a requester that is offline does not get it.

Source: behaviour.md A.8, wire.md 5.15 and 6; ReplyMessageProcessor.java.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from triomq.broker.groups.members import ProducerGroups
from triomq.broker.limits.refused import Refusals
from triomq.broker.network.client_requests import ClientRequests, NoAnswer
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import SendHeader, SendProcessor, Stored, answer_stored, response_fields
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import MessageIllegalError, RefusedError, StoreError
from triomq.protocol.host import format_host
from triomq.protocol.record.properties import append_property, get_property
from triomq.protocol.requests.messages import (
    PushReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from triomq.protocol.wire.command import RemotingCommand

LOGGER: Final = logging.getLogger("triomq.broker.processors.reply")

_TIMEOUT_S: Final = 10.0
_NOT_STORED: Final = Stored("0", 0, 0, None, wants_flush=False)


@dataclass(frozen=True, slots=True, eq=False)
class ReplyProcessors:
    """Passes replies on to requesters."""

    sends: SendProcessor
    producers: ProducerGroups
    client_requests: ClientRequests
    refusals: Refusals
    clock_ms: Callable[[], int]

    def send_reply_message(self, connection: Connection, command: RemotingCommand) -> None:
        """Push a reply and store it; code 324 with the long names."""
        self._send(connection, command, SendMessageRequestHeader.decode(command.ext_fields))

    def send_reply_message_v2(self, connection: Connection, command: RemotingCommand) -> None:
        """Push a reply and store it; code 325 with the one-letter names."""
        self._send(connection, command, SendMessageRequestHeaderV2.decode(command.ext_fields))

    def _send(self, connection: Connection, command: RemotingCommand, header: SendHeader) -> None:
        if header.batch:
            raise MessageIllegalError("a reply cannot be a batch")
        try:
            stored = self.sends.store_message(connection, command, header)
        except StoreError as exc:  # the requester can get it nevertheless
            LOGGER.warning("reply not stored topic=%s error=%s", header.topic, exc)
            stored = _NOT_STORED
        client_id = (get_property((header.properties or "").encode(), b"REPLY_TO_CLIENT") or b"").decode()
        if not client_id:
            raise RefusedError("reply message properties[REPLY_TO_CLIENT] is null")
        requester = self.producers.connection_of(client_id)
        if requester is None:
            raise RefusedError(f"push reply message fail, channel of <{client_id}> not found.")

        fields = self._push_header(connection, header).encode()
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        done = partial(self._answer, connection, command, stored, client_id)
        self.client_requests.ask(requester, code, fields, command.body, _TIMEOUT_S, done)
        command.strip()

    def _answer(
        self,
        connection: Connection,
        command: RemotingCommand,
        stored: Stored,
        client_id: str,
        answer: RemotingCommand | NoAnswer,
    ) -> None:
        """Answer the replier once the requester has answered, or will not."""
        response: RemotingCommand | None
        if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
            place = stored.msg_id, str(stored.queue_id), str(stored.queue_offset)
            fields = response_fields(self.sends.config.region, *place)
            response = command.reply(ext_fields=fields)
            response = answer_stored(
                self.sends.group_commit, connection, command, response, wants_flush=stored.wants_flush
            )
        else:
            reason = answer.value if isinstance(answer, NoAnswer) else f"{answer.remark} ({answer.code})"
            remark = f"push reply message to {client_id} fail: {reason}"
            response = self.refusals.response(connection.peer, command, ResponseCode.SYSTEM_ERROR, remark)
        if response is not None and not command.is_oneway:
            connection.send(response)

    def _push_header(self, connection: Connection, header: SendHeader) -> PushReplyMessageRequestHeader:
        now_ms = self.clock_ms()
        properties = append_property((header.properties or "").encode(), b"PUSH_REPLY_TIME", b"%d" % now_ms)
        return PushReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=connection.peer,
            store_host=format_host(connection.store_host),
            store_timestamp=now_ms,
            properties=properties.decode(),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=bool(header.unit_mode),
        )
