"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): the hot path of consumers.

Source: behaviour.md A.9, A.10; PullMessageProcessor.java.
"""

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from triomq.broker.groups.members import TAG
from triomq.broker.network.refusal import RequestRefusedError, remark_of
from triomq.broker.pulls.pull_hold import HeldPull
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.codes import VERSION, CommandFlag, Permission, PullSysFlag, ResponseCode, SerializeType
from triomq.protocol.filters.tags import TagFilter
from triomq.protocol.requests.requests import PullMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import frame_prefix
from triomq.storage.reading.cold_read import Lookup
from triomq.storage.reading.get_message import GetMessageResult, GetMessageStatus

if TYPE_CHECKING:
    from triomq.broker.network.connection import Connection
    from triomq.storage.consume_queue.consume_queue import ConsumeQueue

LOGGER: Final = logging.getLogger("triomq.broker.pull")

_READ: Final = int(Permission.READ)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)

#: Header of the answer that brings messages: what the general writer makes of the same fields.
FOUND_IN_JSON: Final = (
    b'{"code":0,"extFields":{"maxOffset":"%%d","minOffset":"%%d","nextBeginOffset":"%%d","suggestWhichBrokerId":"0"},'
    b'"flag":1,"language":"PYTHON","opaque":%%d,"version":%d,"remark":"FOUND"}' % VERSION
)

_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY_QUEUE: Final = (GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)


class ReadablePull(NamedTuple):
    """A pull that was checked: only its messages have to be read."""

    connection: "Connection"
    command: RemotingCommand
    header: PullMessageRequestHeader
    codes: frozenset[int] | None  # tag codes wanted; None: all
    queue: "ConsumeQueue"


def pull_message(connection: "Connection", command: RemotingCommand) -> RemotingCommand | None:
    """Answer with messages, hold the request until some arrive, or say why there are none."""
    header = PullMessageRequestHeader.decode(command.ext_fields)
    broker = connection.broker
    codes = _check(connection, header)
    queue = broker.store.queue(header.topic, header.queue_id)
    if header.sys_flag & _COMMIT_OFFSET and header.commit_offset >= 0:
        broker.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    if command.flag & _ONEWAY:  # nobody waits for an answer
        return None
    pull = ReadablePull(connection, command, header, codes, queue)
    place = queue, header.queue_offset, max(header.max_msg_nums, 1), codes, header.max_transfer_bytes
    cold = broker.store.cold_reads
    if ranges := cold.find(*place):
        broker.lookups.wait(connection, command, _when_read(cold.rest(*place), pull), ranges)
    else:
        _answer_pull(pull)
    return None


def _when_read(reading: Lookup[None], pull: ReadablePull) -> Lookup[None]:
    yield from reading
    if not _put_off(pull.connection, pull.command, pull.header, pull.queue, pull.header.queue_offset):
        _answer_pull(pull)


def _answer_pull(pull: ReadablePull) -> None:
    """Answer a pull whose messages are in memory, or let it wait for some to arrive."""
    connection, command, header, codes, queue = pull
    broker = connection.broker
    found = broker.store.reader.get_message(
        queue, header.queue_offset, max(header.max_msg_nums, 1), codes, header.max_transfer_bytes
    )
    code = _code(found, header.queue_offset)
    if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & _SUSPEND and not broker.pull_hold.is_full():
        hold_s = min(max(header.suspend_timeout_millis, 0) / 1000, broker.config.max_hold_s)
        deadline = trio.current_time() + hold_s
        broker.pull_hold.hold(
            HeldPull(connection, command, header, codes, queue, header.queue_offset, deadline)
        )  # fmt: skip
        return
    _answer(connection, command, header, found, code)


def serve_held(pull: HeldPull, *, is_expired: bool) -> None:
    """Answer a pull that waited, or let it wait on if its filter refuses what arrived.

    A failure is the pull's own: the step in which it is served belongs to another connection.
    """
    try:
        _serve_held(pull, is_expired=is_expired)
    except Exception as exc:  # boundary, as in Connection
        LOGGER.exception("held pull failed peer=%s", pull.connection.peer)
        pull.connection.send(
            pull.connection.broker.refuse(
                pull.connection, pull.command, ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {remark_of(exc)}"
            )
        )


def _serve_held(pull: HeldPull, *, is_expired: bool) -> None:
    broker = pull.connection.broker
    header = pull.header
    if _put_off(pull.connection, pull.command, header, pull.queue, pull.queue_offset):
        return
    found = broker.store.reader.get_message(
        pull.queue, pull.queue_offset, max(header.max_msg_nums, 1), pull.codes, header.max_transfer_bytes
    )
    if not is_expired:
        if found.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            broker.pull_hold.hold_again(pull, found.next_begin_offset)
            return
        if found.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
            broker.pull_hold.hold_again(pull, pull.queue_offset)
            return
    code = _code(found, pull.queue_offset)
    if code == ResponseCode.PULL_NOT_FOUND and pull.queue_offset != header.queue_offset:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY  # it looked at messages, and none was for it
    _answer(pull.connection, pull.command, header, found, code)


def _put_off(
    connection: "Connection",
    command: RemotingCommand,
    header: PullMessageRequestHeader,
    queue: "ConsumeQueue",
    queue_offset: int,
) -> bool:
    """Let a peer that does not read its answers pull again; whether it is one.

    A request that waited is not held up by the limit for what is unread, and a peer may have any number of them.
    """
    if connection.unread_bytes <= connection.broker.config.unread_high_bytes:
        return False
    nothing = GetMessageResult(
        GetMessageStatus.NO_MATCHED_MESSAGE, queue_offset, queue.min_offset, queue.max_offset, [], 0, 0
    )
    _answer(connection, command, header, nothing, ResponseCode.PULL_RETRY_IMMEDIATELY)
    return True


def _code(found: GetMessageResult, queue_offset: int) -> ResponseCode:
    if found.status in _EMPTY_QUEUE:
        return ResponseCode.PULL_OFFSET_MOVED if queue_offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[found.status]


def _answer(
    connection: "Connection",
    command: RemotingCommand,
    header: PullMessageRequestHeader,
    found: GetMessageResult,
    code: ResponseCode,
) -> None:
    if code == ResponseCode.SUCCESS:
        connection.broker.statistics.get(header.consumer_group, header.topic, found.message_count, found.size_bytes)
        if command.serialize_type == SerializeType.JSON:
            numbers = (found.max_offset, found.min_offset, found.next_begin_offset, command.opaque)
            prefix = frame_prefix(SerializeType.JSON, FOUND_IN_JSON % numbers, found.size_bytes)
            connection.send_chunks(prefix, found.buffers, found.size_bytes)
            return
    response = RemotingCommand(
        code,
        command.opaque,
        1,
        {
            "maxOffset": str(found.max_offset),
            "minOffset": str(found.min_offset),
            "nextBeginOffset": str(found.next_begin_offset),
            "suggestWhichBrokerId": "0",
        },
        remark=found.status.name,
        serialize_type=command.serialize_type,
    )
    if code == ResponseCode.SUCCESS:
        connection.send_chunks(response.encode_prefix(found.size_bytes), found.buffers, found.size_bytes)
    else:
        connection.send(response)


# --- checks, in RocketMQ's order ----------------------------------------------------------------------------


def _check(connection: "Connection", header: PullMessageRequestHeader) -> frozenset[int] | None:
    """Return the tag codes the pull wants, ``None`` for all.

    Raises:
        RequestRefusedError: group, topic, queue or subscription do not allow the pull.
        SubscriptionParseError: the expression in the request cannot be read.
    """
    broker = connection.broker
    group = broker.subscription_groups.get_or_create(header.consumer_group)
    if group is None:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{header.consumer_group}] does not exist"
        )
    if not group.consume_enable:
        raise RequestRefusedError(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}"
        )
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
    if not topic.perm & _READ:
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise RequestRefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
            f"[{topic.read_queue_nums}] consumer:[{connection.peer}]",
        )
    if header.sys_flag & _SUBSCRIPTION:
        if header.expression_type not in (None, "", TAG):
            raise _no_sql(header.expression_type)
        return TagFilter.parse(header.subscription).codes
    return _subscribed_codes(connection, header, broadcast_enabled=group.consume_broadcast_enable)


def _subscribed_codes(
    connection: "Connection", header: PullMessageRequestHeader, *, broadcast_enabled: bool
) -> frozenset[int] | None:
    """Return the codes of the subscription that the group's heartbeats told."""
    group = connection.broker.consumer_groups.get(header.consumer_group)
    if group is None:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist: send a heartbeat first"
        )
    if not broadcast_enabled and group.message_model is MessageModel.BROADCASTING:
        raise RequestRefusedError(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
        )
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: {header.consumer_group} does not subscribe to {header.topic}",
        )
    if subscription.data.sub_version < header.sub_version:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest: send a heartbeat first"
        )
    if subscription.tag_filter is None:
        raise _no_sql(subscription.data.expression_type)
    return subscription.tag_filter.codes


def _no_sql(expression_type: str | None) -> RequestRefusedError:
    return RequestRefusedError(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type}",
    )
