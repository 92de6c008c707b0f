"""The request and the answer of a pull.

Source: wire.md 5.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from triomq.protocol.codes import PullSysFlag, ResponseCode
from triomq.protocol.filters.filter_types import TAG, MessageFilter, filter_type
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import RETRY_PREFIX
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName
from triomq.protocol.requests.messages import PullMessageRequestHeader

_COMMIT: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
_LITE_PULL: Final = int(PullSysFlag.LITE_PULL)


class PullStatus(Enum):
    """How a pull ended.  Source: PullStatus.java."""

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW_MESSAGE = int(ResponseCode.PULL_NOT_FOUND)
    NO_MATCHED_MESSAGE = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    OFFSET_ILLEGAL = int(ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """One pull of a queue.

    Attributes:
        queue_offset: first message wanted.
        max_messages: upper limit; brokers also have one, normally 32.
        sub_version: version of the subscription that the broker must know.
        message_filter: which messages; ``None``: the broker uses the filter of the group's heartbeats.
        commit_offset: the group's progress, stored on the way; slaves do not store it.
        suspend_s: how long the broker may hold a pull that finds no message.
        timeout_s: for the whole request; ``None``: the hold and a margin.
        broker_id: which of the queue's brokers.
        is_lite: whether a lite pull consumer asks.
        max_bytes: most bytes of messages: with it our brokers return more than 32 messages; Apache's ignore it.
    """

    queue_offset: QueueOffset
    max_messages: int
    sub_version: int = 0
    message_filter: MessageFilter | None = None
    commit_offset: QueueOffset | None = None
    suspend_s: float = 0.0
    timeout_s: float | None = None
    broker_id: int = 0
    is_lite: bool = False
    max_bytes: int | None = None

    def header(self, group: str, queue: MessageQueue) -> PullMessageRequestHeader:
        """Return the request's header."""
        message_filter = self.message_filter
        commit_offset = None if self.broker_id else self.commit_offset
        return PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=self.queue_offset,
            max_msg_nums=self.max_messages,
            sys_flag=(0 if commit_offset is None else _COMMIT)
            | (_SUSPEND if self.suspend_s > 0 else 0)
            | (0 if message_filter is None else _SUBSCRIPTION)
            | (_LITE_PULL if self.is_lite else 0),
            commit_offset=commit_offset or QueueOffset(0),
            suspend_timeout_millis=round(self.suspend_s * 1000),
            sub_version=self.sub_version,
            subscription=None if message_filter is None else message_filter.expression,
            expression_type=TAG if message_filter is None else filter_type(message_filter),
            max_transfer_bytes=self.max_bytes,
        )


class PullResult(NamedTuple):
    """The answer to a pull.

    Attributes:
        status: what happened.
        messages: what matched; only with ``FOUND``, and possibly none after the client's own check.
        next_begin_offset: where to pull next; with ``OFFSET_ILLEGAL`` the broker's correction.
        min_offset: first offset of the queue.
        max_offset: end of the queue: the offset its next message will get.
        suggested_broker_id: where to pull next, 0 is the master.
    """

    status: PullStatus
    messages: list[MessageExt]
    next_begin_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    suggested_broker_id: int


class RawPull(NamedTuple):
    """The answer to a pull, its records not decoded.

    Attributes:
        queue_offset: the offset asked for.
        status: what happened.
        body: the records, see ``decode_records``; empty unless ``FOUND``.
        next_begin_offset, min_offset, max_offset, suggested_broker_id: as :class:`PullResult`.
        is_from_slave: a slave found nothing; its master may have more.
    """

    queue_offset: QueueOffset
    status: PullStatus
    body: bytes | memoryview
    next_begin_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    suggested_broker_id: int
    is_from_slave: bool = False


def complete(messages: Sequence[MessageExt], queue: MessageQueue, result: PullResult) -> None:
    """Set the fields of pulled messages that are not in their records; those of a retry topic get their own topic."""
    broker_name, bounds = queue.broker_name, (result.min_offset, result.max_offset)
    for message in messages:
        message.broker_name = broker_name
        message.queue_bounds = bounds
    if queue.topic.startswith(RETRY_PREFIX):
        for message in messages:
            message.topic = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)
