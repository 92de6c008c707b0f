"""Administration: topics, groups, clusters, offsets, messages, dead letters.

Online members keep offsets in memory and would overwrite others.  So a reset of offsets goes through the broker, which
asks them to continue elsewhere (request 222); they do so about 10 s later, after running handlers.  Without online
members the offsets are stored directly.

Source: wire.md 7 and 8, behaviour.md A.15, B.17.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from triomq.client.admin.diagnosis import Diagnosis, diagnose
from triomq.client.admin.group_state import (
    GroupLag,
    GroupState,
    read_group_state,
    read_lags,
    read_member_ids,
    read_members,
)
from triomq.client.admin.messages import MessageAdmin
from triomq.client.admin.topic_config import (
    TopicChange,
    TopicSettings,
    change_topic,
    create_topic,
    delete_topic,
    read_topic_config,
)
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.queue_requests import QueueRequests
from triomq.client.cluster.route import masters_of_route
from triomq.client.consumer.config import Start, StartPolicy, StartPosition
from triomq.client.consumer.offsets.first_offsets import first_stored_at
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.route import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from triomq.protocol.bodies.statistics import ConsumerConnection, TopicOffset, TopicStatsTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ConfigError,
    ConsumerNotOnlineError,
    NoRouteError,
)
from triomq.protocol.message_queue import MessageQueue, QueueOffset
from triomq.protocol.names import validate_group, validate_topic
from triomq.protocol.requests.groups import DeleteSubscriptionGroupRequestHeader
from triomq.protocol.requests.offsets import ResetOffsetRequestHeader
from triomq.protocol.requests.topics import TopicRequestHeader

_BEGIN: Final = 0
_END: Final = -1  # means the end of the queue in request 222


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


async def plan_reset(
    instance: ClientInstance, group: str, topic: str, to: Start, *, is_online: bool
) -> tuple[OffsetChange, ...]:
    """Return the current and new offsets of a group in a topic; ``is_online``: the broker notifies its members.

    Raises:
        ConfigError: ``to`` is not a known position.
        NoRouteError: the topic does not exist.
    """
    policy = StartPolicy.parse(to)
    if policy.queue_offset is not None:
        raise ConfigError(f"to: {to!r} must be 'earliest', 'latest' or a datetime")
    requests = QueueRequests(instance, group)
    known: dict[str, frozenset[int]] = {}

    async def plan(queue: MessageQueue) -> OffsetChange:
        before = await requests.committed(queue)
        if before == 0:  # brokers before 5.0 also answer 0 without a stored offset
            if queue.broker_name not in known:
                known[queue.broker_name] = await requests.stored_queue_ids(queue)
            if queue.queue_id not in known[queue.broker_name]:
                before = None
        return OffsetChange(queue, before, await _target(requests, queue, policy, is_online=is_online))

    return tuple(sorted(await in_parallel(plan, await instance.routes.subscribe_queues(topic))))


async def _target(requests: QueueRequests, queue: MessageQueue, policy: StartPolicy, *, is_online: bool) -> QueueOffset:
    if policy.timestamp is not None:
        if not is_online:  # the broker's own search may find any message of the millisecond
            return await first_stored_at(requests, queue, policy.timestamp)
        return await requests.search_offset(queue, policy.timestamp)
    if policy.position is StartPosition.EARLIEST:
        return await requests.min_offset(queue)
    return await requests.max_offset(queue)


async def carry_out(instance: ClientInstance, group: str, changes: Sequence[OffsetChange], to: Start) -> None:
    """Reset the offsets, through the members or directly.

    Raises:
        BrokerResponseError: a broker rejects the request.
    """
    by_broker: dict[str, list[OffsetChange]] = {}
    for change in changes:
        by_broker.setdefault(change.queue.broker_name, []).append(change)
    requests = QueueRequests(instance, group)

    async def commit(change: OffsetChange) -> None:
        await requests.commit(change.queue, QueueOffset(change.after))

    for broker_name, there in by_broker.items():
        # Brokers reject the reset of a topic in which an offset is missing.
        await in_parallel(commit, (change for change in there if change.before is None))
        is_online = True
        try:
            await _notify_members(instance, group, broker_name, there[0].queue.topic, to)
        except ConsumerNotOnlineError:
            is_online = False
        if not is_online:
            await in_parallel(commit, there)


async def _notify_members(instance: ClientInstance, group: str, broker_name: str, topic: str, to: Start) -> None:
    """Let the broker notify the members of new offsets; brokers 5.x also store them.

    Raises:
        ConsumerNotOnlineError: the group has no member online.
    """
    address = instance.brokers.find(broker_name, only_this=True)
    if address is None:
        raise NoRouteError(f"no master of broker {broker_name!r} is in a known route")
    policy = StartPolicy.parse(to)
    place = _BEGIN if policy.position is StartPosition.EARLIEST else _END
    timestamp = place if policy.timestamp is None else policy.timestamp
    header = ResetOffsetRequestHeader(topic, group, timestamp, is_force=True)
    await instance.requests.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


class Admin(MessageAdmin):
    """Reads and changes topics, groups and offsets on name servers and brokers.

    ::

        async with Admin(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("Topic", queues=8)

    All methods raise ``NameServerError`` if no name server answers, ``BrokerResponseError`` if a broker rejects the
    request, and another ``ClientError`` if a broker cannot be reached.
    """

    async def diagnose(self) -> Diagnosis:
        """Examine name servers, brokers and consumer groups, and return all problems; see ``triomq doctor``."""
        return await diagnose(self._entered())

    async def topics(self) -> list[str]:
        """Return the names of all topics, including system topics, sorted; with their namespaces."""
        return await self._entered().routes.topics()

    async def create_topic(
        self,
        topic: str,
        queues: int | None = None,
        perm: int | None = None,
        *,
        order: bool | None = None,
        cluster: str | None = None,
        dry_run: bool = False,
    ) -> list[str]:
        """Create a topic on all masters that do not have it, and return their addresses; it is left alone elsewhere.

        Returns when name servers route clients to the new queues.

        Args:
            topic: name of the topic.
            queues: number of read and of write queues on each broker; 4 in a new topic.
            perm: bits of ``Permission``; all may read and write a new topic.
            order: keep the order of queues while brokers are away.
            cluster: only on the brokers of this cluster.
            dry_run: only return where it would be created.

        Raises:
            IllegalNameError: the name is not valid.
            ConfigError: ``queues`` is not above 0, the cluster does not exist, or a broker has the topic with other
                settings than those given; nothing has changed.
            NameServerError: the topic exists, but a name server does not know of it within 5 s.
        """
        validate_topic(topic)
        settings = TopicSettings(read_queues=queues, write_queues=queues, perm=perm, order=order)
        requests, masters = self._entered().requests, await self._named_masters(cluster)
        return await create_topic(requests, masters, topic, settings, dry_run=dry_run)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on all masters and name servers; messages stay in the commit log until they expire.

        Raises:
            NameServerError: a name server did not confirm, so clients may still find the topic there.
        """
        await delete_topic(self._entered().requests, await self._masters(), topic)

    async def topic_config(self, topic: str, broker_name: str | None = None) -> TopicConfig:
        """Return the configuration of a topic on a broker: the named one, or the first by name.

        Raises:
            NoRouteError: no broker, or not the named one, has the topic.
        """
        masters = await self._masters_of(topic, broker_name)
        return await read_topic_config(self._entered().requests, masters[min(masters)], topic)

    async def update_topic(
        self,
        topic: str,
        settings: TopicSettings,
        *,
        broker_name: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[TopicChange]:
        """Change what ``settings`` name of a topic, on all brokers that have it or one; the rest stays as it is there.

        Messages in queues that are no longer read are not consumed: to have fewer queues, lower the number of write
        queues first, and the number of read queues once the others are consumed.

        Args:
            topic: name of the topic.
            settings: the changes.
            broker_name: only on this broker.
            force: lower the number of read queues even if that hides messages.
            dry_run: only return what would change.

        Raises:
            ConfigError: messages would be hidden, and ``force`` is not set; nothing has changed.
            NoRouteError: no broker, or not the named one, has the topic.
            NameServerError: as :meth:`create_topic`.
        """
        masters = await self._masters_of(topic, broker_name)
        return await change_topic(self._entered().requests, masters, topic, settings, force=force, dry_run=dry_run)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return minimum and maximum offset and the time of the last message of each queue, sorted by queue."""
        found: dict[MessageQueue, TopicOffset] = {}
        masters, header = masters_of_route(await self.topic_route(topic)).values(), TopicRequestHeader(topic)
        for response in await self._entered().requests.ask_each(masters, RequestCode.GET_TOPIC_STATS_INFO, header):
            found.update(TopicStatsTable.decode(response.body).offset_table)
        return dict(sorted(found.items()))

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
        name = self._entered().requests.namespace.wrap(config.group_name)
        validate_group(name, with_retry_topic=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._ask_masters(code, body=config.encode(), cluster=cluster)

    async def delete_group(self, group: str, *, remove_offsets: bool = True) -> None:
        """Delete a consumer group on all masters, by default with its offsets."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets, remove_offsets)
        await self._ask_masters(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_lag(self, group: str, topic: str | None = None) -> list[GroupLag]:
        """Return the progress of a group in each queue (of a topic), sorted; empty if it never committed an offset."""
        return await read_lags(self._entered().requests, await self._masters(), group, topic)

    async def group_members(self, group: str) -> ConsumerConnection:
        """Return the connections of a consumer group to all brokers, and their subscriptions.

        Raises:
            ConsumerNotOnlineError: the group has no member online.
        """
        members = await read_members(self._entered().requests, await self._masters(), group)
        if members is None:
            raise ConsumerNotOnlineError(int(ResponseCode.CONSUMER_NOT_ONLINE), f"group {group!r} has no member online")
        return members

    async def group_member_ids(self, group: str) -> list[str]:
        """Return the client ids of the members of a consumer group, sorted as its members sort them."""
        return await read_member_ids(self._entered().requests, await self._masters(), group)

    async def group_state(self, group: str, topic: str | None = None) -> GroupState:
        """Return members, owner of each queue (of a topic), and problems of a group; asks each member for its state."""
        instance, configs = self._entered(), await self.group_configs()
        config = configs.get(instance.requests.namespace.wrap(group))
        return await read_group_state(instance, await self._masters(), group, topic, config=config)

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
        instance = self._entered()
        is_online = bool(await self.group_member_ids(group))
        changes = await plan_reset(instance, group, topic, to, is_online=is_online)
        if not dry_run:
            await carry_out(instance, group, changes, to)
        return OffsetReset(changes, is_online)

    async def _masters_of(self, topic: str, broker_name: str | None) -> dict[str, str]:
        """Return the addresses of a topic's masters by broker name; with a name only that one."""
        masters = masters_of_route(await self.topic_route(topic))
        found = {name: address for name, address in masters.items() if broker_name in (None, name)}
        if not found:
            name = "" if broker_name is None else f" {broker_name!r}"
            raise NoRouteError(f"topic {topic!r} has no master{name}; its brokers: {', '.join(masters) or 'none'}")
        return found
