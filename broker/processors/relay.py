"""What tools ask of consumers through the broker: reset offsets (222), offsets (223), running info (307), direct
consumption (309).

Source: behaviour.md A.15 and C.4 (22), wire.md 6, 7; AdminBrokerProcessor.java, Broker2Client.java.
"""

import logging
from typing import TYPE_CHECKING, Final

from triomq.broker.network.client_requests import NoAnswer
from triomq.broker.network.refusal import RequestRefusedError
from triomq.broker.pulls.lookups import in_steps
from triomq.protocol.bodies.client import GetConsumerStatusBody, ResetOffsetBody
from triomq.protocol.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message_id import parse_offset_message_id
from triomq.protocol.requests.requests import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.reading.cold_read import Lookup

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.broker.server import Broker

LOGGER: Final = logging.getLogger("triomq.broker.relay")

_TIMEOUT_S: Final = 10.0
_STATUS_TIMEOUT_S: Final = 5.0
_END_OF_QUEUE: Final = -1
_ONEWAY: Final = int(CommandFlag.ONEWAY)


@in_steps
def reset_consumer_offset(connection: "Connection", command: RemotingCommand) -> Lookup[RemotingCommand]:
    """Tell all members of a group where to go on in a topic; answer with these offsets.

    The broker's own offsets change when the members commit.  Without force nothing moves forward.
    """
    header = ResetOffsetRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    body = ResetOffsetBody((yield from _reset_targets(broker, header)))
    group = broker.consumer_groups.get(header.group)
    if group is None:
        raise RequestRefusedError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}",
        )
    LOGGER.info("offset reset group=%s topic=%s timestamp=%d", header.group, header.topic, header.timestamp)
    content = body.encode_for_cpp() if command.language == LanguageCode.CPP else body.encode()
    fields = ResetOffsetRequestHeader(header.topic, header.group, header.timestamp, is_force=False).encode()
    for member in group.members:
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        member.send(RemotingCommand(code, broker.next_opaque(), _ONEWAY, fields, content))
    return command.reply(body=body.encode())


def _reset_targets(broker: "Broker", header: ResetOffsetRequestHeader) -> Lookup[dict[MessageQueue, int]]:
    config = broker.topics.get(header.topic)
    if config is None:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    store, targets = broker.store, {}
    for queue_id in range(config.write_queue_nums):
        current = broker.offsets.query(header.group, header.topic, queue_id)
        if current is None:
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        if header.timestamp == _END_OF_QUEUE:
            target = store.reader.max_offset_in_queue(header.topic, queue_id)
        else:
            target = yield from store.reader.offset_by_time(header.topic, queue_id, header.timestamp)
        target = max(target, 0)
        queue = MessageQueue(header.topic, broker.config.broker_name, queue_id)
        targets[queue] = target if header.is_force else min(target, current)
    return targets


def get_consumer_status(connection: "Connection", command: RemotingCommand) -> RemotingCommand | None:
    """Ask the members of a group, or one of them, for their offsets in memory; answer when each did or could not."""
    header = GetConsumerStatusRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    group = broker.consumer_groups.get(header.group)
    if group is None:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
        )
    if header.client_addr:
        members = {header.client_addr: _member(broker, header.group, header.client_addr)}
    else:
        members = {member.client_id: member_connection for member_connection, member in group.members.items()}

    def done(answers: dict[str, RemotingCommand | NoAnswer]) -> None:
        body = GetConsumerStatusBody()
        for client_id, answer in answers.items():
            if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
                try:
                    body.consumer_table[client_id] = GetConsumerStatusBody.decode(answer.body).message_queue_table
                except ProtocolError as exc:
                    LOGGER.warning("consumer status unreadable client_id=%s error=%s", client_id, exc)
        connection.send(command.reply(body=body.encode()))

    fields = GetConsumerStatusRequestHeader(header.topic, header.group).encode()
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    broker.client_requests.ask_all(members, code, fields, _STATUS_TIMEOUT_S, done)
    return None


def get_consumer_running_info(connection: "Connection", command: RemotingCommand) -> RemotingCommand | None:
    """Let a member answer what it does."""
    header = GetConsumerRunningInfoRequestHeader.decode(command.ext_fields)
    _forward(connection, command, header.consumer_group, header.client_id, command.ext_fields, b"")
    return None


@in_steps
def consume_message_directly(connection: "Connection", command: RemotingCommand) -> Lookup[None]:
    """Let a member handle one stored message, which its offset message id names; the member answers."""
    header = ConsumeMessageDirectlyRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    record = None
    if header.msg_id:
        (record,) = yield from broker.store.reader.look_up((parse_offset_message_id(header.msg_id)[2],))
    if record is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"no message with id {header.msg_id}")
    fields = {**command.ext_fields, "brokerName": broker.config.broker_name}
    _forward(connection, command, header.consumer_group, header.client_id or "", fields, record)


def _forward(
    connection: "Connection",
    command: RemotingCommand,
    group: str,
    client_id: str,
    fields: dict[str, str],
    body: bytes | memoryview,
) -> None:
    """Send the request on to a member; its answer becomes ours as it is."""
    broker = connection.broker

    def done(answer: RemotingCommand | NoAnswer) -> None:
        if isinstance(answer, RemotingCommand):
            reply = command.reply(answer.code, answer.ext_fields, answer.body, answer.remark)
        elif answer is NoAnswer.TIMEOUT:
            remark = f"consumer <{group}> <{client_id}> Timeout: no answer within {_TIMEOUT_S:.0f} s"
            reply = broker.refuse(connection, command, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        else:
            remark = f"invoke consumer <{group}> <{client_id}> Exception: {answer.value}"
            reply = broker.refuse(connection, command, ResponseCode.SYSTEM_ERROR, remark)
        connection.send(reply)

    member = _member(broker, group, client_id)
    broker.client_requests.ask(member, command.code, fields, body, _TIMEOUT_S, done)


def _member(broker: "Broker", group: str, client_id: str) -> "Connection":
    member = broker.consumer_groups.connection_of(group, client_id)
    if member is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    return member
