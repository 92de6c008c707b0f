"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): the hot path of consumers.

``PullProcessor`` checks a pull.  ``PullAnswers`` reads its messages and answers it: at once, when messages arrive, or
at the deadline.

Source: behaviour.md A.9, A.10; PullMessageProcessor.java.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import trio

from triomq.broker.limits.peers import MemoryBudget
from triomq.broker.limits.refused import remark_of
from triomq.broker.network.connection import Connection
from triomq.broker.processors.pull_hold import AT_ONCE, Pull, PullHold
from triomq.broker.shared import BrokerPart
from triomq.broker.work import Answer
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.codes import CommandFlag, Permission, PullSysFlag, ResponseCode, SerializeType
from triomq.protocol.errors import RefusedError, SubscriptionParseError
from triomq.protocol.filters.filter_types import MessageFilter, SqlFilter
from triomq.protocol.names import is_broker_group
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand, json_template
from triomq.protocol.wire.frame import frame_prefix
from triomq.storage.consume_queue.consume_queue import ConsumeQueue
from triomq.storage.reading.cold_read import PAUSE, ColdRange, Work
from triomq.storage.reading.get_message import GetMessageResult, GetMessageStatus
from triomq.storage.reading.store_reader import scan_for

LOGGER: Final = logging.getLogger("triomq.broker.processors.pull")

_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_CORRECTED: Final = (
    GetMessageStatus.NO_MESSAGE_IN_QUEUE,
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.OFFSET_TOO_SMALL,
)
_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # but from 0 it is not found
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_TAG_PULLS_OF_SQL_PULL: Final = 32  # a message may take some ms to filter
_READ: Final = int(Permission.READ)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)


def _fields(max_offset: str, min_offset: str, next_begin_offset: str, suggested_broker_id: int = 0) -> dict[str, str]:
    return {
        "maxOffset": max_offset,
        "minOffset": min_offset,
        "nextBeginOffset": next_begin_offset,
        "suggestWhichBrokerId": str(suggested_broker_id),
    }


FOUND_IN_JSON: Final = json_template(_fields("%d", "%d", "%d"), remark="FOUND")
"""Header of an answer with messages that suggests the master: maximum, minimum and next offset, and the opaque."""


@dataclass(slots=True, eq=False)
class PullAnswers(BrokerPart):
    """Answers pulls that have passed the checks.

    A slave may be behind its master, so it moves no reader to another offset: the reader is to ask again, the master if
    there is one.
    """

    hold: PullHold
    budget: MemoryBudget

    def answer(self, pull: Pull) -> None:
        """Answer a pull whose messages are in memory, or hold it until some arrive."""
        header = pull.header
        found = self._read(pull)
        code = self._code(found, pull.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & _SUSPEND and not self.hold.is_full():
            hold_s = min(max(header.suspend_timeout_millis, 0) / 1000, self.config.max_hold_s)
            pull.deadline = trio.current_time() + hold_s
            self.hold.hold(pull)
            return
        self._send(pull, found, code)

    def serve_arrivals(self) -> None:
        """Answer the held pulls whose messages arrived in this step."""
        if self.hold.arrived:
            self._serve_ready()

    def _serve_ready(self) -> None:
        pulls = self.hold.take_ready()
        left = AT_ONCE
        for number, pull in enumerate(pulls, 1):
            self._serve_held(pull, is_expired=False)
            left -= _TAG_PULLS_OF_SQL_PULL if isinstance(pull.message_filter, SqlFilter) else 1
            if left <= 0 and number < len(pulls):
                self.hold.put_back(pulls[number:])
                return

    async def run(self) -> None:
        """Answer held pulls at their deadline, and ready pulls that are too many for one step, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_ready_by_turns)
            while True:
                await self.hold.wait_sweep()
                await self.context.worker.run(self._serve_expired())

    async def _serve_ready_by_turns(self) -> None:
        while True:
            await self.hold.wait_ready()
            await self.context.worker.run(self._serve_all_ready())

    def _serve_all_ready(self) -> Work[None]:
        while self.hold.ready:
            self._serve_ready()
            yield PAUSE

    def _serve_expired(self) -> Work[None]:
        while self.hold.is_due(now := trio.current_time()):
            for pull in self.hold.take_expired(now):
                self._serve_held(pull, is_expired=True)
            yield PAUSE

    def _serve_held(self, pull: Pull, *, is_expired: bool) -> None:
        """Answer a held pull, or keep it if its filter rejects the new messages.

        A failure ends this pull only: the step that serves it belongs to another connection.
        """
        try:
            self._answer_held(pull, is_expired=is_expired)
        except Exception as exc:  # boundary, as in Connection
            peer = pull.connection.peer
            LOGGER.exception("held pull failed peer=%s", peer)
            remark = f"{type(exc).__name__}: {remark_of(exc)}"
            pull.connection.send(self.context.refusals.response(peer, pull.command, ResponseCode.SYSTEM_ERROR, remark))

    def _answer_held(self, pull: Pull, *, is_expired: bool) -> None:
        pull.began = perf_counter()
        if self.put_off(pull):
            return
        found = self._read(pull)
        if not is_expired:
            if found.status is GetMessageStatus.NO_MATCHED_MESSAGE and found.next_begin_offset >= found.max_offset:
                self.hold.hold_again(pull, found.next_begin_offset)
                return
            if found.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
                self.hold.hold_again(pull, pull.queue_offset)
                return
        code = self._code(found, pull.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and pull.queue_offset != pull.header.queue_offset:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY  # none of the messages it passed matched
        self._send(pull, found, code)

    def put_off(self, pull: Pull) -> bool:
        """Ask a peer to pull again that does not read its answers, or is above a quota; return whether it was asked.

        Held pulls were accepted below these limits, and one peer may have any number of them.
        """
        connection = pull.connection
        may_read = connection.usage is None or connection.usage.may_read()
        if may_read and self.budget.is_read_by(connection):
            return False
        self._send_nothing(pull, GetMessageStatus.NO_MATCHED_MESSAGE, pull.queue_offset)
        return True

    def move_to_first(self, pull: Pull) -> None:
        """Ask a member to pull the first message of a queue instead."""
        self._send_nothing(pull, GetMessageStatus.OFFSET_OVERFLOW_BADLY, pull.queue.min_offset)

    def _send_nothing(self, pull: Pull, status: GetMessageStatus, next_offset: int) -> None:
        low, high = pull.queue.min_offset, pull.queue.max_offset
        self._send(pull, GetMessageResult(status, next_offset, low, high, [], 0, 0), _CODES[status])

    def end_waiting(self, queue: ConsumeQueue) -> None:
        """Answer the held pulls of a queue as at their deadline: consumers commit their offsets with the next pull."""
        for pull in self.hold.forget_queue(queue):
            self._serve_held(pull, is_expired=True)

    def forget_queue(self, queue: ConsumeQueue, remark: str) -> None:
        """Answer TOPIC_NOT_EXIST to the held pulls of a deleted queue."""
        for pull in self.hold.forget_queue(queue):
            pull.connection.send(pull.command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=remark))

    def _read(self, pull: Pull) -> GetMessageResult:
        header = pull.header
        found = self.store.reader.get_matching(
            pull.queue, pull.queue_offset, max(header.max_msg_nums, 1), pull.message_filter, header.max_transfer_bytes
        )
        if found.status in _CORRECTED and self.config.is_slave:
            return found._replace(next_begin_offset=pull.queue_offset)
        return found

    def _code(self, found: GetMessageResult, queue_offset: int) -> ResponseCode:
        code = _CODES[found.status]
        if code != ResponseCode.PULL_OFFSET_MOVED:
            return code
        if queue_offset == 0 and found.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
            return ResponseCode.PULL_NOT_FOUND
        return ResponseCode.PULL_RETRY_IMMEDIATELY if self.config.is_slave else code

    def _suggested_broker_id(self, pull: Pull, found: GetMessageResult) -> int:
        """Return where to pull next: of a slave if the reader is far behind the end of the log, else 0.

        Source: store.md 7.3.
        """
        ratio = self.config.slave_read_ratio
        group = None if ratio is None else self.groups.settings.get(pull.header.consumer_group)
        if ratio is None or group is None:
            return 0
        unit = pull.queue.unit(found.next_begin_offset - 1) if found.next_begin_offset > pull.queue_offset else None
        far_bytes = self.store.config.physical_memory_bytes * ratio // 100
        if unit is None or self.store.commit_log.max_offset - unit.physical_offset <= far_bytes:
            return group.broker_id
        return group.which_broker_when_consume_slowly

    def _send(self, pull: Pull, found: GetMessageResult, code: ResponseCode) -> None:
        connection, command, header = pull.connection, pull.command, pull.header
        self.statistics.pull(header.consumer_group, header.topic, header.queue_id, found.next_begin_offset)
        suggested = self._suggested_broker_id(pull, found)
        if code == ResponseCode.SUCCESS:
            pull_ms = (perf_counter() - pull.began) * 1000
            self.statistics.get(header.consumer_group, header.topic, found.message_count, found.size_bytes, pull_ms)
            if command.serialize_type == SerializeType.JSON and not suggested:
                numbers = (found.max_offset, found.min_offset, found.next_begin_offset, command.opaque)
                prefix = frame_prefix(SerializeType.JSON, FOUND_IN_JSON % numbers, found.size_bytes)
                connection.send_chunks(prefix, found.buffers, found.size_bytes)
                return
        fields = _fields(str(found.max_offset), str(found.min_offset), str(found.next_begin_offset), suggested)
        response = command.reply(code, fields, remark=found.status.name)
        if code == ResponseCode.SUCCESS:
            connection.send_chunks(response.encode_prefix(found.size_bytes), found.buffers, found.size_bytes)
        else:
            connection.send(response)


@dataclass(slots=True, eq=False)
class PullProcessor(BrokerPart):
    """Checks pulls, and has them answered when their messages are in memory."""

    answers: PullAnswers

    def pull_message(self, connection: Connection, command: RemotingCommand) -> Answer:
        """Answer with messages, hold the request until some arrive, or report why none match."""
        header = PullMessageRequestHeader.decode(command.ext_fields)
        message_filter = self._check(connection, header)
        store = self.store
        queue = store.queue(header.topic, header.queue_id)
        pull = Pull(connection, command, header, message_filter, queue, header.queue_offset)
        if self.groups.former.refuses_pull(connection, header, queue.min_offset):
            self.answers.move_to_first(pull)
            return None
        if (
            header.sys_flag & _COMMIT_OFFSET
            and header.commit_offset >= 0
            and not is_broker_group(header.consumer_group)
        ):
            self.groups.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if command.flag & _ONEWAY:  # the peer expects no answer
            return None
        scan = scan_for(message_filter, max(header.max_msg_nums, 1), header.max_transfer_bytes)
        place = queue, header.queue_offset, *scan
        cold = store.cold_reads
        if ranges := cold.find(*place):
            work = self._answer_when_read(ranges, cold.rest(*place), pull)
            return self.context.worker.answer(connection, command, work)
        self.answers.answer(pull)
        return None

    lite_pull_message = pull_message

    def _answer_when_read(self, ranges: Sequence[ColdRange], reading_rest: Work[None], pull: Pull) -> Work[None]:
        yield ranges
        if not pull.connection.closed:
            yield from reading_rest
        if not (pull.connection.closed or self.answers.put_off(pull)):
            self.answers.answer(pull)

    # --- checks, in RocketMQ's order ------------------------------------------------------------------------

    def _check(self, connection: Connection, header: PullMessageRequestHeader) -> MessageFilter:
        """Return which messages the pull wants.

        Raises:
            RefusedError: group, topic, queue or subscription do not allow the pull.
            SubscriptionParseError: the expression in the request cannot be read.
        """
        group = self.groups.settings.get_or_create(header.consumer_group)
        if group is None:
            raise RefusedError(
                f"subscription group [{header.consumer_group}] does not exist",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not group.consume_enable:
            raise RefusedError(f"subscription group no permission, {header.consumer_group}", ResponseCode.NO_PERMISSION)
        topic = self.topics.get(header.topic)
        if topic is None:
            self.groups.former.topic_missing(connection, header.consumer_group, header.topic)
            raise RefusedError(f"topic[{header.topic}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST)
        if not topic.perm & _READ:
            raise RefusedError(f"the topic[{header.topic}] pulling message is forbidden", ResponseCode.NO_PERMISSION)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RefusedError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{connection.peer}]"
            )
        if header.sys_flag & _SUBSCRIPTION:
            return self.groups.filters.parse(header.subscription, header.expression_type)
        return self._subscribed_filter(header, broadcast_enabled=group.consume_broadcast_enable)

    def _subscribed_filter(self, header: PullMessageRequestHeader, *, broadcast_enabled: bool) -> MessageFilter:
        """Return the filter of the subscription in the group's heartbeats."""
        group = self.groups.consumers.get(header.consumer_group)
        if group is None:
            raise RefusedError(
                "the consumer's group info not exist: send a heartbeat first", ResponseCode.SUBSCRIPTION_NOT_EXIST
            )
        if not broadcast_enabled and group.message_model is MessageModel.BROADCASTING:
            raise RefusedError(
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
                ResponseCode.NO_PERMISSION,
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RefusedError(
                f"the consumer's subscription not exist: {header.consumer_group} does not subscribe to {header.topic}",
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if subscription.data.sub_version < header.sub_version:
            raise RefusedError(
                "the consumer's subscription not latest: send a heartbeat first", ResponseCode.SUBSCRIPTION_NOT_LATEST
            )
        message_filter = subscription.message_filter
        if isinstance(message_filter, SubscriptionParseError):
            raise RefusedError(
                f"The broker's consumer filter data is not exist!Your expression may be wrong! {message_filter}",
                ResponseCode.FILTER_DATA_NOT_EXIST,
            )
        return message_filter
