"""Administration of consumer groups: settings, progress, members, offsets.

Online members keep offsets in memory and would overwrite others.  So a reset of offsets goes through the broker, which
asks them to continue elsewhere (request 222); they do so about 10 s later, after running handlers.  Without online
members the offsets are stored directly.

Source: wire.md 7 and 8, behaviour.md A.15, B.17.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from triomq.client.admin.base import BaseAdmin
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.route import master_address
from triomq.client.consumer.config import Start, StartPolicy, StartPosition
from triomq.client.consumer.offsets.first_offsets import first_stored_at
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import ConsumerIdList
from triomq.protocol.bodies.route import SubscriptionGroupConfig, SubscriptionGroupWrapper
from triomq.protocol.bodies.statistics import ConsumerConnection, ConsumeStats
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import BrokerResponseError, ConfigError, ConsumerNotOnlineError, TopicNotExistError
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import validate_group
from triomq.protocol.requests.groups import ConsumerGroupRequestHeader, DeleteSubscriptionGroupRequestHeader
from triomq.protocol.requests.offsets import GetConsumeStatsRequestHeader, ResetOffsetRequestHeader

_BEGIN: Final = 0
_END: Final = -1  # means the end of the queue in request 222


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


class OffsetChange(NamedTuple):
    """One queue; ``before`` is ``None`` if the group had no offset there."""

    queue: MessageQueue
    before: int | None
    after: int


class OffsetReset(NamedTuple):
    """What was or would be done.

    Attributes:
        changes: all queues of the topic, sorted, including unchanged ones.
        is_online: the group has members, which continue there within about 10 s.
    """

    changes: tuple[OffsetChange, ...]
    is_online: bool


class GroupAdmin(BaseAdmin):
    """Reads and changes consumer groups."""

    async def groups(self) -> list[str]:
        """Return the names of all consumer groups with settings on a broker, sorted; with their namespaces."""
        return sorted(await self.group_configs())

    async def group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all consumer groups; if several brokers have a group, those of the last by name."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for response in await self._ask_masters(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            found |= SubscriptionGroupWrapper.decode(response.body).subscription_group_table
        return found

    async def create_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create or change a consumer group on all masters (of a cluster).

        Raises:
            IllegalNameError: the name is not valid, or longer than 120 characters with the namespace.
        """
        name = self._requests.namespace.wrap(config.group_name)
        validate_group(name, with_retry_topic=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._ask_masters(code, body=config.encode(), cluster=cluster)

    async def delete_group(self, group: str, *, remove_offsets: bool = True) -> None:
        """Delete a consumer group on all masters, by default with its offsets."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets, remove_offsets)
        await self._ask_masters(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_lag(self, group: str, topic: str | None = None) -> list[GroupLag]:
        """Return the progress of a group in each queue (of a topic), sorted; empty if it never committed an offset."""
        return await self._lags((await self._masters()).values(), group, topic)

    async def group_members(self, group: str) -> ConsumerConnection:
        """Return the connections of a consumer group to all brokers, and their subscriptions.

        Raises:
            ConsumerNotOnlineError: the group has no member online.
        """
        members = await self._members((await self._masters()).values(), group)
        if members is None:
            raise ConsumerNotOnlineError(int(ResponseCode.CONSUMER_NOT_ONLINE), f"group {group!r} has no member online")
        return members

    async def group_member_ids(self, group: str) -> list[str]:
        """Return the client ids of the members of a consumer group, sorted as its members sort them."""
        code, header = RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader(group)
        masters = (await self._masters()).values()
        answers = await self._requests.ask_each(masters, code, header, without=(BrokerResponseError,))  # it has none
        return sorted({name for answer in answers for name in ConsumerIdList.decode(answer.body).consumer_id_list})

    async def reset_offsets(self, group: str, topic: str, to: Start, *, dry_run: bool = False) -> OffsetReset:
        """Set the offsets of a group in a topic; members that are online follow within about 10 s.

        Args:
            group: name of the group.
            topic: name of the topic.
            to: ``"earliest"``, ``"latest"``, or the store time of the first message wanted.
            dry_run: only return what would change.

        Raises:
            ConfigError: ``to`` is something else.
            NoRouteError: the topic does not exist.
        """
        validate_group(group)
        policy = StartPolicy.parse(to)
        if policy.queue_offset is not None:
            raise ConfigError(f"to: {to!r} must be 'earliest', 'latest' or a datetime")
        is_online = bool(await self.group_member_ids(group))
        queues = await self._entered().routes.subscribe_queues(topic)
        requests = QueueRequests(self._entered(), group)
        known: dict[str, frozenset[int]] = {}

        async def plan(queue: MessageQueue) -> OffsetChange:
            before = await requests.committed(queue)
            if before == 0:  # brokers before 5.0 also answer 0 without a stored offset
                if queue.broker_name not in known:
                    known[queue.broker_name] = await requests.stored_queue_ids(queue)
                if queue.queue_id not in known[queue.broker_name]:
                    before = None
            return OffsetChange(queue, before, await _target(requests, queue, policy, is_online=is_online))

        changes = tuple(sorted(await in_parallel(plan, queues)))
        if not dry_run:
            for broker_name, there in groupby(changes, lambda change: change.queue.broker_name):
                await self._reset(requests, group, broker_name, list(there), policy)
        return OffsetReset(changes, is_online)

    async def _reset(
        self, requests: QueueRequests, group: str, broker_name: str, changes: list[OffsetChange], policy: StartPolicy
    ) -> None:
        """Reset the offsets at one broker, through the members or directly."""

        async def commit(change: OffsetChange) -> None:
            await requests.commit(change.queue, QueueOffset(change.after))

        # Brokers reject the reset of a topic in which an offset is missing.
        await in_parallel(commit, (change for change in changes if change.before is None))
        address = master_address(self._entered().brokers, broker_name)
        place = _BEGIN if policy.position is StartPosition.EARLIEST else _END
        timestamp = place if policy.timestamp is None else policy.timestamp
        header = ResetOffsetRequestHeader(changes[0].queue.topic, group, timestamp, is_force=True)
        try:  # brokers 5.x also store the new offsets
            await self._requests.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except ConsumerNotOnlineError:
            await in_parallel(commit, changes)

    async def _lags(self, masters: Iterable[str], group: str, topic: str | None = None) -> list[GroupLag]:
        """Return the positions of a group in the queues (of a topic) of these brokers, sorted."""
        code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(group, topic)
        answers = await self._requests.ask_each(masters, code, header, without=(TopicNotExistError,))
        return sorted(
            GroupLag(
                queue,
                found.broker_offset,
                found.consumer_offset,
                found.lag,
                found.last_timestamp,
                found.lock_owner,
                found.progress_timestamp,
                found.stalled_timestamp,
            )
            for answer in answers
            for queue, found in ConsumeStats.decode(answer.body).offset_table.items()
        )

    async def _members(self, masters: Iterable[str], group: str) -> ConsumerConnection | None:
        """Return the members that these brokers report, each once; ``None``: no member is online."""
        code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupRequestHeader(group)
        answers = await self._requests.ask_each(masters, code, header, without=(ConsumerNotOnlineError,))
        if not answers:
            return None
        merged, *others = [ConsumerConnection.decode(answer.body) for answer in answers]
        for found in others:
            known = {connection.client_id for connection in merged.connection_set}
            merged.connection_set += [one for one in found.connection_set if one.client_id not in known]
            merged.subscription_table |= found.subscription_table
        return merged


async def _target(requests: QueueRequests, queue: MessageQueue, policy: StartPolicy, *, is_online: bool) -> QueueOffset:
    if policy.timestamp is not None:
        if not is_online:  # the broker's own search may find any message of the millisecond
            return await first_stored_at(requests, queue, policy.timestamp)
        return await requests.search_offset(queue, policy.timestamp)
    if policy.position is StartPosition.EARLIEST:
        return await requests.min_offset(queue)
    return await requests.max_offset(queue)
