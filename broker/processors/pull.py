"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): the hot path of consumers.

Source: behaviour.md A.9, A.10; PullMessageProcessor.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import Connection
from triomq.broker.pulls.pull_answers import PullAnswers
from triomq.broker.pulls.pull_hold import Pull
from triomq.broker.topics import TopicTable
from triomq.broker.work import Worker
from triomq.protocol.bodies.client import MessageModel
from triomq.protocol.codes import CommandFlag, Permission, PullSysFlag, ResponseCode
from triomq.protocol.errors import RefusedError, SubscriptionParseError
from triomq.protocol.filters.filter_types import MessageFilter
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import ColdRange, Work
from triomq.storage.reading.store_reader import scan_for

_READ: Final = int(Permission.READ)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)


@dataclass(frozen=True, slots=True, eq=False)
class PullProcessor:
    """Checks pulls, and has them answered when their messages are in memory."""

    store: MessageStore
    topics: TopicTable
    groups: Groups
    worker: Worker
    answers: PullAnswers

    def pull_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Answer with messages, hold the request until some arrive, or report why none match."""
        header = PullMessageRequestHeader.decode(command.ext_fields)
        message_filter = self._check(connection, header)
        store = self.store
        queue = store.queue(header.topic, header.queue_id)
        if self.groups.former.refuses_pull(connection, header, queue.min_offset):
            self.answers.move_to_first(Pull(connection, command, header, message_filter, queue, header.queue_offset))
            return None
        if header.sys_flag & _COMMIT_OFFSET and header.commit_offset >= 0:
            self.groups.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if command.flag & _ONEWAY:  # the peer expects no answer
            return None
        pull = Pull(connection, command, header, message_filter, queue, header.queue_offset)
        scan = scan_for(message_filter, max(header.max_msg_nums, 1), header.max_transfer_bytes)
        place = queue, header.queue_offset, *scan
        cold = store.cold_reads
        if ranges := cold.find(*place):
            work = self._answer_when_read(ranges, cold.rest(*place), pull)
            return self.worker.answer(connection, command, work)
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
            return self.groups.consumers.parse_filter(header.subscription, header.expression_type)
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
        if isinstance(subscription.message_filter, SubscriptionParseError):
            raise RefusedError(
                "The broker's consumer filter data is not exist!Your expression may be wrong! "
                f"{subscription.message_filter}",
                ResponseCode.FILTER_DATA_NOT_EXIST,
            )
        return subscription.message_filter
