"""Requests that the broker relays to clients.

Those of tools go to consumers: reset offsets (222), offsets (223), running info (307), direct consumption (309).

SEND_REPLY_MESSAGE (324, 325), the answer to a message of RocketMQ's request-reply, is pushed to the requester (326).
The reply is stored, too, as Apache's brokers do by default; a requester that is offline does not get it.

Source: behaviour.md A.8, A.15 and C.4 (22), wire.md 5.15, 6, 7; AdminBrokerProcessor.java, Broker2Client.java,
ReplyMessageProcessor.java.
"""

import logging
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Final

from triomq.broker.network.client_requests import NoAnswer
from triomq.broker.network.connection import Connection
from triomq.broker.processors.send import SendHeader, SendProcessor, read_header, response_fields
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer
from triomq.protocol.bodies.client import GetConsumerStatusBody, ResetOffsetBody
from triomq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from triomq.protocol.errors import MessageIllegalError, ProtocolError, RefusedError, StoreError
from triomq.protocol.host import format_host
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.record.properties import append_property, get_property
from triomq.protocol.requests import groups, messages, offsets
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Work

LOGGER: Final = logging.getLogger("triomq.broker.processors.relay")

_TIMEOUT_S: Final = 10.0
_STATUS_TIMEOUT_S: Final = 5.0
_MAX_STATUS_BYTES: Final = 128 * 1024  # of a member's offsets: some 2,000 queues, 20 ms
_END_OF_QUEUE: Final = -1


@dataclass(slots=True, eq=False)
class RelayProcessors(BrokerPart):
    """Sends requests of tools to consumers, and replies to requesters."""

    sends: SendProcessor

    def invoke_broker_to_reset_offset(self, _connection: Connection, command: RemotingCommand) -> Work[RemotingCommand]:
        """Tell all members of a group from where to continue in a topic; answer with these offsets.

        The broker's own offsets change when the members commit.  Without force nothing moves forward.
        """
        header = offsets.ResetOffsetRequestHeader.decode(command.ext_fields)
        config = self.topics.get(header.topic)
        if config is None:
            raise RefusedError(f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}")
        reader, targets = self.store.reader, {}
        for queue_id in range(config.write_queue_nums):
            current = self.groups.offsets.query(header.group, header.topic, queue_id)
            if current is None:
                raise RefusedError(f"THe consumer group <{header.group}> not exist")
            if header.timestamp == _END_OF_QUEUE:
                target = reader.max_offset_in_queue(header.topic, queue_id)
            else:
                target = yield from reader.offset_by_time(header.topic, queue_id, header.timestamp)
            target = max(target, 0)
            queue = MessageQueue(header.topic, self.config.broker_name, queue_id)
            targets[queue] = target if header.is_force else min(target, current)
        body = ResetOffsetBody(targets)
        group = self.groups.consumers.get(header.group)
        if group is None:
            raise RefusedError(
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
                ResponseCode.CONSUMER_NOT_ONLINE,
            )
        LOGGER.info("offset reset group=%s topic=%s timestamp=%d", header.group, header.topic, header.timestamp)
        content = body.encode_for_cpp() if command.language == LanguageCode.CPP else body.encode()
        fields = offsets.ResetOffsetRequestHeader(header.topic, header.group, header.timestamp, is_force=False).encode()
        for member in group.members:
            self.context.client_requests.send_oneway(member, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, content)
        return command.reply(body=body.encode())

    def invoke_broker_to_get_consumer_status(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Ask the members of a group, or one of them, for their offsets in memory; answer when all are done."""
        header = offsets.GetConsumerStatusRequestHeader.decode(command.ext_fields)
        group = self.groups.consumers.get(header.group)
        if group is None:
            raise RefusedError(f"No Any Consumer online in the consumer group: [{header.group}]")
        fields = offsets.GetConsumerStatusRequestHeader(header.topic, header.group).encode()
        if header.client_addr:
            members = {header.client_addr: (self._member(header.group, header.client_addr), fields)}
        else:
            members = {member.client_id: (peer, fields) for peer, member in group.members.items()}

        def done(answers: dict[str, dict[MessageQueue, int] | None]) -> None:
            known = {client_id: table for client_id, table in answers.items() if table is not None}
            connection.send(command.reply(body=GetConsumerStatusBody(consumer_table=known).encode()))

        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        self.context.client_requests.ask_all(members, code, _STATUS_TIMEOUT_S, _offsets, done)
        command.strip()
        return None

    def get_consumer_running_info(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Forward the request to a member, which answers with its state."""
        header = groups.GetConsumerRunningInfoRequestHeader.decode(command.ext_fields)
        self._forward(connection, command, header.consumer_group, header.client_id)
        return None

    def consume_message_directly(self, connection: Connection, command: RemotingCommand) -> Work[None]:
        """Have a member process a stored message, named by its offset message id; its result is the answer."""
        header = messages.ConsumeMessageDirectlyRequestHeader.decode(command.ext_fields)
        record = None
        if header.msg_id:
            place = parse_offset_message_id(header.msg_id)[2]
            reader = self.store.reader
            (record,) = yield from reader.look_up((place,))
            if record is not None and not reader.is_durable(place):  # consumers get flushed messages only
                raise RefusedError(f"the message {header.msg_id} is not on the disk yet: try again")
        if record is None:
            raise RefusedError(f"no message with id {header.msg_id}")
        command.ext_fields = {**command.ext_fields, "brokerName": self.config.broker_name}
        self._forward(connection, command, header.consumer_group, header.client_id or "", record)

    def _forward(
        self,
        connection: Connection,
        command: RemotingCommand,
        group: str,
        client_id: str,
        body: bytes | memoryview = b"",
    ) -> None:
        """Forward the request to a member; its answer becomes ours unchanged."""

        def done(answer: RemotingCommand | NoAnswer) -> None:
            if isinstance(answer, RemotingCommand):
                try:
                    self.context.budget.check_reads(connection)
                    reply = command.reply(answer.code, answer.ext_fields, answer.body, answer.remark)
                except RefusedError as exc:
                    reply = self.context.refusals.response_to(connection.peer, command, exc)
            elif answer is NoAnswer.TIMEOUT:
                remark = f"consumer <{group}> <{client_id}> Timeout: no answer within {_TIMEOUT_S:.0f} s"
                reply = self.context.refusals.response(
                    connection.peer, command, ResponseCode.CONSUME_MSG_TIMEOUT, remark
                )
            else:
                remark = f"invoke consumer <{group}> <{client_id}> Exception: {answer.value}"
                reply = self.context.refusals.response(connection.peer, command, ResponseCode.SYSTEM_ERROR, remark)
            connection.send(reply)

        member = self._member(group, client_id)
        self.context.client_requests.ask(member, command.code, command.ext_fields, body, _TIMEOUT_S, done)
        command.strip()

    def _member(self, group: str, client_id: str) -> Connection:
        member = self.groups.consumers.connection_of(group, client_id)
        if member is None:
            raise RefusedError(f"The Consumer <{group}> <{client_id}> not online")
        return member

    # --- replies ----------------------------------------------------------------------------------------

    def send_reply_message(self, connection: Connection, command: RemotingCommand) -> None:
        """Push a reply and store it: code 324 with the long names, 325 with the one-letter names."""
        header = read_header(command)
        if header.batch:
            raise MessageIllegalError("a reply cannot be a batch")
        try:
            fields, wants_flush = self.sends.store_message(connection, command, header)
        except StoreError as exc:  # the requester can get it nevertheless
            LOGGER.warning("reply not stored topic=%s error=%s", header.topic, exc)
            fields, wants_flush = response_fields(self.config.region, "0", "0", "0"), False
        client_id = (get_property((header.properties or "").encode(), b"REPLY_TO_CLIENT") or b"").decode()
        if not client_id:
            raise RefusedError("reply message properties[REPLY_TO_CLIENT] is null")
        requester = self.groups.producers.connection_of(client_id)
        if requester is None:
            raise RefusedError(f"push reply message fail, channel of <{client_id}> not found.")

        def done(answer: RemotingCommand | NoAnswer) -> None:
            """Answer the replier once the requester has answered, or will not."""
            response: Answer
            if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
                response = command.reply(ext_fields=fields)
                response = self.sends.answer(connection, command, response, wants_flush=wants_flush)
            else:
                reason = answer.value if isinstance(answer, NoAnswer) else f"{answer.remark} ({answer.code})"
                remark = f"push reply message to {client_id} fail: {reason}"
                response = self.context.refusals.response(connection.peer, command, ResponseCode.SYSTEM_ERROR, remark)
            if response is not None and not command.is_oneway:
                connection.send(response)

        code, pushed = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, _pushed(connection, header, self.clock_ms())
        self.context.client_requests.ask(requester, code, pushed.encode(), command.body, _TIMEOUT_S, done)
        command.strip()

    send_reply_message_v2 = send_reply_message


def _offsets(answer: RemotingCommand) -> dict[MessageQueue, int] | None:
    """Return a member's offsets, ``None`` if it reports none."""
    if answer.code != ResponseCode.SUCCESS:
        return None
    if len(answer.body) > _MAX_STATUS_BYTES:
        LOGGER.warning("consumer status too long bytes=%d limit=%d", len(answer.body), _MAX_STATUS_BYTES)
        return None
    try:
        return GetConsumerStatusBody.decode(answer.body).message_queue_table
    except ProtocolError as exc:
        LOGGER.warning("consumer status unreadable error=%s", exc)
        return None


def _pushed(connection: Connection, header: SendHeader, now_ms: int) -> messages.PushReplyMessageRequestHeader:
    properties = append_property((header.properties or "").encode(), b"PUSH_REPLY_TIME", b"%d" % now_ms)
    return messages.PushReplyMessageRequestHeader(
        **{field.name: getattr(header, field.name) for field in fields_of(messages.MessageHeader)},
        born_host=connection.peer,
        store_host=format_host(connection.store_host),
        store_timestamp=now_ms,
        properties=properties.decode(),
        reconsume_times=header.reconsume_times or 0,
        unit_mode=bool(header.unit_mode),
    )
