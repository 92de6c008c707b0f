"""The state of a consumer group: members, owners of queues, problems.

Works with any broker: lag and members come from its tables, the rest from the members (request 307).  Our broker adds
what only a broker knows: locks, the time of the last commit, how long a queue has been stalled.

Source: behaviour.md A.15, B.17; users.md 7 to 9.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Final, NamedTuple

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.pull import PullRequest
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.requests import Requests
from triomq.client.cluster.route import masters_of_route
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import (
    ConsumerIdList,
    ConsumerRunningInfo,
    MessageModel,
    ProcessQueueInfo,
    SubscriptionData,
)
from triomq.protocol.bodies.group_health import (
    STALL_AFTER_S,
    GroupReport,
    Stall,
    StallCause,
    SubscriptionDifference,
    duplicates,
    explain_stall,
    subscription_differences,
)
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.bodies.statistics import ConsumerConnection, ConsumeStats
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    REMOTE_ERRORS,
    ConsumerNotOnlineError,
    SubscriptionParseError,
    TopicNotExistError,
)
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, TAG, TagFilter
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp
from triomq.protocol.names import RETRY_PREFIX
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, GetConsumerRunningInfoRequestHeader
from triomq.protocol.requests.offsets import GetConsumeStatsRequestHeader

#: Limit for the answer of a member; brokers give up after 10 s.
_ANSWER_S: Final = 5.0
#: Messages of a queue, the newest, in which a filter is looked for; pulls for that; messages of which tags are named.
_FILTERED: Final = 10_000
_FILTER_PULLS: Final = 16
_TAGGED: Final = 32
_MAX_TAGS: Final = 10
_ALL: Final = TagFilter.parse(None)


class GroupLag(NamedTuple):
    """The position of a group in one queue.

    Attributes:
        queue: the queue.
        broker_offset: offset of the queue's next message.
        consumer_offset: offset that the group consumes next.
        lag: number of messages between the two.
        last_timestamp: store time (ms) of the last consumed message, 0 if none.
        lock_owner: client id with the lock of the queue; this and the following are ``None`` on Apache's brokers.
        progress_timestamp: when (ms) the offset last changed, 0 if not since the broker started.
        stalled_timestamp: since when (ms) messages have waited without progress, 0 if the queue is not stalled.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    lag: int
    last_timestamp: int
    lock_owner: str | None = None
    progress_timestamp: int | None = None
    stalled_timestamp: int | None = None


class QueueState(NamedTuple):
    """One queue of a group.

    Attributes:
        position: the group's position.
        owners: client ids of the members that hold the queue: normally one; when broadcasting, all.
        lock_owner: client id with the lock, if the broker or a member reports it.
        progress_ms: time of the last progress, ``None`` if unknown.
        stall: why waiting messages are not consumed; ``None``: they are, or none wait.
    """

    position: GroupLag
    owners: tuple[str, ...]
    lock_owner: str | None
    progress_ms: int | None
    stall: Stall | None


class IdleFilter(NamedTuple):
    """A tag expression that selects none of the newest messages of its topic.

    Attributes:
        topic: the topic.
        expression: the tag expression.
        messages: how many messages were examined; at least one.
        tags: tags of the newest of them, the most frequent first.
        similar: the tags that resemble a wanted one.
    """

    topic: str
    expression: str
    messages: int
    tags: tuple[str, ...]
    similar: tuple[str, ...]

    def __str__(self) -> str:
        """Return the finding as text."""
        similar = f"; similar: {', '.join(self.similar)}" if self.similar else ""
        return (
            f"the filter {self.expression!r} selected 0 of the newest {self.messages} messages of topic {self.topic}; "
            f"tags there: {', '.join(self.tags) or 'none'}{similar}"
        )


class GroupState(NamedTuple):
    """A group at one moment.

    Attributes:
        group: name of the group.
        members: connections and subscriptions; ``None``: no member is online.
        queues: sorted.
        duplicate_client_ids: ids of more than one connection; each member needs its own.
        subscription_differences: topics with different subscriptions of members, so that messages are missed.
        idle_filters: subscriptions that select nothing.
    """

    group: str
    members: ConsumerConnection | None
    queues: tuple[QueueState, ...]
    duplicate_client_ids: tuple[str, ...]
    subscription_differences: tuple[SubscriptionDifference, ...]
    idle_filters: tuple[IdleFilter, ...] = ()

    def missing_topics(self, topics: Collection[str]) -> list[str]:
        """Return the topics to which members subscribe and that are not among ``topics``, sorted.

        Retry topics do not count: they come with the first member.
        """
        subscribed = set() if self.members is None else set(self.members.subscription_table)
        subscribed |= {difference.topic for difference in self.subscription_differences}
        return sorted(topic for topic in subscribed.difference(topics) if not topic.startswith(RETRY_PREFIX))


async def read_lags(requests: Requests, brokers: Iterable[str], group: str, topic: str | None = None) -> list[GroupLag]:
    """Return the positions of a group in the queues (of a topic) of these brokers, sorted."""
    code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(group, topic)
    answers = await requests.ask_each(brokers, code, header, without=(TopicNotExistError,))
    return sorted(lag for answer in answers for lag in _lags_of(ConsumeStats.decode(answer.body)))


def _lags_of(stats: ConsumeStats) -> Iterator[GroupLag]:
    """Yield the positions in a broker's answer."""
    for queue, found in stats.offset_table.items():
        yield GroupLag(
            queue,
            found.broker_offset,
            found.consumer_offset,
            max(0, found.broker_offset - found.consumer_offset),
            found.last_timestamp,
            found.lock_owner,
            found.progress_timestamp,
            found.stalled_timestamp,
        )


async def read_members(requests: Requests, brokers: Iterable[str], group: str) -> ConsumerConnection | None:
    """Return the members that these brokers report, each once; ``None``: no member is online."""
    code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(group)
    answers = await requests.ask_each(brokers, code, header, without=(ConsumerNotOnlineError,))
    if not answers:
        return None
    merged, *others = [ConsumerConnection.decode(answer.body) for answer in answers]
    for found in others:
        known = {connection.client_id for connection in merged.connection_set}
        merged.connection_set += [one for one in found.connection_set if one.client_id not in known]
        merged.subscription_table |= found.subscription_table
    return merged


async def read_group_state(
    instance: ClientInstance,
    brokers: Sequence[str],
    group: str,
    topic: str | None = None,
    *,
    config: SubscriptionGroupConfig | None,
) -> GroupState:
    """Read progress and members of a group at these brokers; ask the members for their state; compare.

    Args:
        instance: whose connections to use.
        brokers: addresses of masters.
        group: its name.
        topic: only its queues.
        config: the group's settings.
    """
    requests = instance.requests
    lags = await read_lags(requests, brokers, group, topic)
    members = await read_members(requests, brokers, group)
    if topic is None and members is not None:  # brokers return only topics with offsets
        listed = {row.queue.topic for row in lags}
        others = sorted(members.subscription_table.keys() - listed)
        lags += chain(*await in_parallel(lambda other: read_lags(requests, brokers, group, other), others))
    is_enabled = config is None or config.consume_enable
    state = await _compare(instance, brokers, group, sorted(lags), members, is_enabled)
    subscriptions = {} if members is None else members.subscription_table
    wanted = [each for name, each in sorted(subscriptions.items()) if topic in (None, name)]
    idle = [await _idle_filter(instance, each) for each in wanted if _is_selective(each)]
    return state._replace(idle_filters=tuple(filter(None, idle)))


def _is_selective(subscription: SubscriptionData) -> bool:
    """Whether a subscription names tags."""
    return subscription.expression_type == TAG and subscription.sub_string not in ("", SUBSCRIBE_ALL)


async def _idle_filter(instance: ClientInstance, subscription: SubscriptionData) -> IdleFilter | None:
    """Look for one message that a subscription selects; return what there is instead, ``None`` if there is one."""
    requests, topic = QueueRequests(instance, TOOLS_GROUP), subscription.topic
    examined, tags = 0, Counter[str]()
    try:
        wanted = TagFilter.parse(subscription.sub_string)
        for broker_name in masters_of_route(await instance.routes.topic_route(topic)):
            for queue, found in (await requests.topic_offsets(topic, broker_name)).items():
                queue = queue._replace(topic=topic)  # without its namespace
                begin = max(found.min_offset, found.max_offset - _FILTERED)
                if await _is_selected(requests, queue, begin, found.max_offset, wanted):
                    return None
                examined += found.max_offset - begin
                newest = PullRequest(QueueOffset(max(begin, found.max_offset - _TAGGED)), _TAGGED, message_filter=_ALL)
                messages = (await requests.pull(queue, newest)).messages if found.max_offset > begin else ()
                tags.update(message.tags for message in messages if message.tags)
    except (*REMOTE_ERRORS, SubscriptionParseError):  # the topic may be missing, which is a finding, too
        return None
    names = [tag for tag, _ in tags.most_common()]
    similar = {near: None for tag in wanted.tags for near in get_close_matches(tag, names, n=3, cutoff=0.6)}
    shown = tuple(names[:_MAX_TAGS])
    return IdleFilter(topic, wanted.expression, examined, shown, tuple(similar)) if examined else None


async def _is_selected(requests: QueueRequests, queue: MessageQueue, begin: int, end: int, wanted: TagFilter) -> bool:
    """Whether a filter selects a message of a queue from ``begin`` to ``end``; it does if that takes too many pulls."""
    for _ in range(_FILTER_PULLS):
        if begin >= end:
            return False
        answer = await requests.pull(queue, PullRequest(QueueOffset(begin), 1, message_filter=wanted))
        if answer.messages or answer.next_begin_offset <= begin:
            return True
        begin = answer.next_begin_offset
    return True


async def _compare(
    instance: ClientInstance,
    brokers: Sequence[str],
    group: str,
    lags: Sequence[GroupLag],
    members: ConsumerConnection | None,
    consume_enabled: bool,
) -> GroupState:
    """Ask the members for their state, through the first broker that reaches them, and compare."""
    client_ids = [] if members is None else [connection.client_id for connection in members.connection_set]
    infos = await _running_infos(instance, brokers, group, set(client_ids))
    report = GroupReport(infos, wall_clock_ms(), consume_enabled=consume_enabled)
    is_shared = members is None or members.message_model is MessageModel.CLUSTERING

    async def compare(lag: GroupLag) -> QueueState:
        owners = report.owners(lag.queue)
        lock_owner = lag.lock_owner or _locked_by(report, owners)
        consumed_ms = max((held.last_consume_timestamp for _, held in owners), default=0)
        stall = await _stall(instance, group, report, lag, lock_owner) if lag.lag and is_shared else None
        progress_ms = lag.progress_timestamp or consumed_ms or None
        return QueueState(lag, tuple(client_id for client_id, _ in owners), lock_owner, progress_ms, stall)

    queues = await in_parallel(compare, lags)
    doubled = duplicates(client_ids)
    return GroupState(group, members, tuple(queues), doubled, _differences(members, infos, doubled))


def _locked_by(report: GroupReport, owners: Iterable[tuple[str, ProcessQueueInfo]]) -> str | None:
    """Return the member that reports the lock; Java's concurrent consumers report it without having one."""
    return next((name for name, held in owners if held.locked and report.is_orderly(name)), None)


async def _running_infos(
    instance: ClientInstance, brokers: Sequence[str], group: str, client_ids: Collection[str]
) -> dict[str, ConsumerRunningInfo | None]:
    infos = await in_parallel(lambda client_id: _running_info(instance, brokers, group, client_id), client_ids)
    return dict(zip(client_ids, infos, strict=True))


async def _running_info(
    instance: ClientInstance, brokers: Sequence[str], group: str, client_id: str
) -> ConsumerRunningInfo | None:
    """Return the state of a member, ``None`` if it does not answer."""
    code, header = RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader(group, client_id)
    with trio.move_on_after(_ANSWER_S):
        for address in brokers:
            try:
                response = await instance.requests.ask(address, code, header, timeout_s=_ANSWER_S)
                return ConsumerRunningInfo.decode(response.body)
            except REMOTE_ERRORS:  # not connected there, or no answer
                continue
    return None


async def _stall(
    instance: ClientInstance, group: str, report: GroupReport, lag: GroupLag, lock_owner: str | None
) -> Stall | None:
    """Return why a queue with messages makes no progress, ``None`` if it does."""
    stall = explain_stall(report, lag.queue, lock_owner)
    if stall.cause is StallCause.NO_MEMBER:
        return stall
    if lag.stalled_timestamp is not None:  # the broker detects stalls
        return stall if lag.stalled_timestamp else None
    if _makes_progress(report, lag.queue):
        return None
    long_ago = Timestamp(round(report.now_ms - STALL_AFTER_S * 1000))
    try:
        await instance.routes.topic_route(lag.queue.topic)
        waits_long = await QueueRequests(instance, group).search_offset(lag.queue, long_ago) >= lag.consumer_offset
    except REMOTE_ERRORS:
        return None
    return stall if waits_long else None


def _makes_progress(report: GroupReport, queue: MessageQueue) -> bool:
    """Whether an owner reports that it recently handled messages of the queue with success."""
    for client_id, held in report.owners(queue):
        is_recent = report.now_ms - held.last_consume_timestamp <= STALL_AFTER_S * 1000
        if is_recent and not (report.is_orderly(client_id) and report.failures_per_s(client_id, queue.topic)):
            return True
    return False


def _differences(
    members: ConsumerConnection | None,
    infos: Mapping[str, ConsumerRunningInfo | None],
    doubled: Collection[str],
) -> tuple[SubscriptionDifference, ...]:
    """Compare the broker's subscriptions of each connection, or those that the members report."""
    named = []
    for connection in [] if members is None else members.connection_set:
        info = infos.get(connection.client_id)
        subscriptions = connection.subscription_set
        if subscriptions is None and info is not None:
            subscriptions = info.subscription_set
        if subscriptions is not None:
            is_doubled = connection.client_id in doubled
            name = f"{connection.client_id} at {connection.client_addr}" if is_doubled else connection.client_id
            named.append((name, subscriptions))
    return subscription_differences(named)


async def read_member_ids(requests: Requests, masters: Iterable[str], group: str) -> list[str]:
    """Return the client ids of a group's members at these brokers, sorted as the members sort them."""

    async def read(address: str) -> Collection[str]:
        command = requests.command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader(group))
        response = await requests.invoke(address, command)
        if response.code != ResponseCode.SUCCESS:  # the group has none
            return ()
        return ConsumerIdList.decode(response.body).consumer_id_list

    return sorted(set(chain(*await in_parallel(read, masters))))
