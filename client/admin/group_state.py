"""The state of a consumer group: members, owners of queues, problems.

Works with any broker: lag and members come from its tables, the rest from the members (request 307).  Our broker adds
what only a broker knows: locks, the time of the last commit, how long a queue has been stalled.

Source: behaviour.md A.15, B.17; users.md 7 to 9.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

import trio

from triomq.client.admin.groups import GroupAdmin, GroupLag
from triomq.client.cluster.pull import PullRequest
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.route import masters_of_route
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import ConsumerRunningInfo, MessageModel, SubscriptionData
from triomq.protocol.bodies.group_health import (
    STALL_AFTER_S,
    GroupReport,
    SlowHandler,
    Stall,
    StallCause,
    SubscriptionDifference,
    duplicates,
    explain_stall,
    subscription_differences,
)
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.bodies.statistics import Connection, ConsumerConnection
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, SubscriptionParseError
from triomq.protocol.filters.filter_types import SUBSCRIBE_ALL, TAG, TagFilter
from triomq.protocol.message_queue import MessageQueue, QueueOffset, Timestamp
from triomq.protocol.names import RETRY_PREFIX
from triomq.protocol.requests.groups import GetConsumerRunningInfoRequestHeader

#: Limit for the answer of a member; brokers give up after 10 s.
_ANSWER_S: Final = 5.0
#: Messages of a queue, the newest, in which a filter is looked for; pulls for that; messages of which tags are named.
_FILTERED: Final = 10_000
_FILTER_PULLS: Final = 16
_TAGGED: Final = 32
_MAX_TAGS: Final = 10
_ALL: Final = TagFilter.parse(None)


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
        slow_handlers: topics that handlers consume too slowly.
    """

    group: str
    members: ConsumerConnection | None
    queues: tuple[QueueState, ...]
    duplicate_client_ids: tuple[str, ...]
    subscription_differences: tuple[SubscriptionDifference, ...]
    idle_filters: tuple[IdleFilter, ...] = ()
    slow_handlers: tuple[SlowHandler, ...] = ()

    def missing_topics(self, topics: Collection[str]) -> list[str]:
        """Return the topics to which members subscribe and that are not among ``topics``, sorted.

        Retry topics do not count: they come with the first member.
        """
        subscribed = set() if self.members is None else set(self.members.subscription_table)
        subscribed |= {difference.topic for difference in self.subscription_differences}
        return sorted(topic for topic in subscribed.difference(topics) if not topic.startswith(RETRY_PREFIX))


class StateAdmin(GroupAdmin):
    """Examines consumer groups."""

    async def group_state(self, group: str, topic: str | None = None) -> GroupState:
        """Return members, owner of each queue (of a topic), and problems of a group; asks each member for its state."""
        config = (await self.group_configs()).get(self._requests.namespace.wrap(group))
        return await self._state(list((await self._masters()).values()), group, topic, config)

    async def _state(
        self, masters: Sequence[str], group: str, topic: str | None, config: SubscriptionGroupConfig | None
    ) -> GroupState:
        """Read progress and members of a group at these masters; ask the members for their state; compare."""
        lags, members = await self._lags(masters, group, topic), await self._members(masters, group)
        connections = [] if members is None else members.connection_set
        subscriptions = {} if members is None else members.subscription_table
        if topic is None:  # brokers return only topics with offsets
            others = sorted(subscriptions.keys() - {lag.queue.topic for lag in lags})
            lags += chain(*await in_parallel(lambda other: self._lags(masters, group, other), others))
        client_ids = [connection.client_id for connection in connections]
        asked = sorted(set(client_ids))
        answers = await in_parallel(partial(self._running_info, masters, group), asked)
        infos = dict(zip(asked, answers, strict=True))
        report = GroupReport(infos, wall_clock_ms(), consume_enabled=config is None or config.consume_enable)
        is_shared = members is None or members.message_model is MessageModel.CLUSTERING

        async def examine(lag: GroupLag) -> QueueState:
            owners = report.owners(lag.queue)
            # Java's concurrent consumers report a lock without having one.
            locked_by = (name for name, held in owners if held.locked and report.is_orderly(name))
            lock_owner = lag.lock_owner or next(locked_by, None)
            consumed_ms = max((held.last_consume_timestamp for _, held in owners), default=0)
            stall = await self._stall(group, report, lag, lock_owner) if lag.lag and is_shared else None
            progress_ms = lag.progress_timestamp or consumed_ms or None
            return QueueState(lag, tuple(client_id for client_id, _ in owners), lock_owner, progress_ms, stall)

        queues = tuple(await in_parallel(examine, sorted(lags)))
        doubled = duplicates(client_ids)
        differences = _differences(connections, infos, doubled)
        wanted = [each for name, each in sorted(subscriptions.items()) if topic in (None, name)]
        idle = [await self._idle_filter(each) for each in wanted]
        moving = {each.position.queue: each.position.lag for each in queues if each.position.lag and not each.stall}
        slow = report.slow_handlers(moving) if is_shared else ()
        return GroupState(group, members, queues, doubled, differences, tuple(filter(None, idle)), slow)

    async def _running_info(self, masters: Sequence[str], group: str, client_id: str) -> ConsumerRunningInfo | None:
        """Return the state of a member, through the first broker that reaches it; ``None`` if it does not answer."""
        code, header = RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader(group, client_id)
        with trio.move_on_after(_ANSWER_S):
            for address in masters:
                with suppress(*REMOTE_ERRORS):  # not connected there, or no answer
                    response = await self._requests.ask(address, code, header, timeout_s=_ANSWER_S)
                    return ConsumerRunningInfo.decode(response.body)
        return None

    async def _stall(self, group: str, report: GroupReport, lag: GroupLag, lock_owner: str | None) -> Stall | None:
        """Return why a queue with messages makes no progress, ``None`` if it does."""
        stall = explain_stall(report, lag.queue, lock_owner)
        if stall.cause is StallCause.NO_MEMBER:
            return stall
        if lag.stalled_timestamp is not None:  # the broker detects stalls
            return stall if lag.stalled_timestamp else None
        long_ago = Timestamp(round(report.now_ms - STALL_AFTER_S * 1000))
        for client_id, held in report.owners(lag.queue):
            is_failing = report.is_orderly(client_id) and report.failures_per_s(client_id, lag.queue.topic)
            if held.last_consume_timestamp >= long_ago and not is_failing:
                return None
        instance = self._entered()
        try:
            await instance.routes.topic_route(lag.queue.topic)
            waits_long = await QueueRequests(instance, group).search_offset(lag.queue, long_ago) >= lag.consumer_offset
        except REMOTE_ERRORS:
            return None
        return stall if waits_long else None

    async def _idle_filter(self, subscription: SubscriptionData) -> IdleFilter | None:
        """Look for one message that a subscription selects; return what there is instead, ``None`` if there is one."""
        if subscription.expression_type != TAG or subscription.sub_string in ("", SUBSCRIBE_ALL):
            return None
        instance, topic = self._entered(), subscription.topic
        requests = QueueRequests(instance, TOOLS_GROUP)
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
                    newest = QueueOffset(max(begin, found.max_offset - _TAGGED))
                    pull = PullRequest(newest, _TAGGED, message_filter=_ALL)
                    messages = (await requests.pull(queue, pull)).messages if found.max_offset > begin else ()
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


def _differences(
    connections: Iterable[Connection], infos: Mapping[str, ConsumerRunningInfo | None], doubled: Collection[str]
) -> tuple[SubscriptionDifference, ...]:
    """Compare the broker's subscriptions of each connection, or those that the members report."""
    named = []
    for connection in connections:
        info = infos.get(connection.client_id)
        subscriptions = connection.subscription_set
        if subscriptions is None and info is not None:
            subscriptions = info.subscription_set
        if subscriptions is not None:
            is_doubled = connection.client_id in doubled
            name = f"{connection.client_id} at {connection.client_addr}" if is_doubled else connection.client_id
            named.append((name, subscriptions))
    return subscription_differences(named)
