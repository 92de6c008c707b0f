"""Administration: topics, groups, clusters, offsets.

Source: wire.md 7 and 8, behaviour.md A.15.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from triomq.client.answers import check
from triomq.client.config import ClientConfig
from triomq.client.instance import ClientInstance, use_instance
from triomq.client.nursery import OpenOnce
from triomq.client.route import DEFAULT_TOPIC, MASTER_ID
from triomq.protocol.admin_requests import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    TopicRequestHeader,
)
from triomq.protocol.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerIdList,
    ConsumeStats,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.command import RemotingCommand
from triomq.protocol.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    ConsumerNotOnlineError,
    NameServerError,
    NoRouteError,
    TopicNotExistError,
)
from triomq.protocol.headers import Header
from triomq.protocol.message import validate_group, validate_topic
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.requests import ConsumerGroupRequestHeader, OffsetResponseHeader, QueueRequestHeader
from triomq.protocol.units import QueueOffset

READ_WRITE: Final = 6


class GroupLag(NamedTuple):
    """Where a group stands in one queue; ``last_timestamp``: store time (ms) of the last it consumed, 0 if none."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    lag: int
    last_timestamp: int


class Admin(OpenOnce):
    """Asks name servers and brokers for what they know, and changes topics and groups.

    ::

        async with Admin(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("Topic", queues=8)

    All methods raise ``NameServerError`` if no name server answers, ``BrokerResponseError`` if a broker refuses and
    other ``ClientError`` if it cannot be reached.
    """

    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """Take name servers, or an instance to share; nothing happens before it is entered."""
        self._namesrv = namesrv
        self._given_instance = instance
        self._config = config
        self._instance: ClientInstance | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None, None]:
        async with use_instance(self._namesrv, self._config, self._given_instance) as instance:
            self._instance = instance
            try:
                yield
            finally:
                self._instance = None

    async def topics(self) -> list[str]:
        """Return the names of all topics, those of the system included, sorted."""
        return await self._entered().topics()

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return where a topic is, as the name server knows it now.

        Raises:
            NoRouteError: nowhere; the text tells similar topics.
        """
        return await self._entered().topic_route(topic, refresh=True)

    async def create_topic(
        self,
        topic: str,
        queues: int = 4,
        perm: int = READ_WRITE,
        *,
        order: bool = False,
        cluster: str | None = None,
    ) -> None:
        """Create a topic on all masters, or change it.

        Args:
            topic: its name.
            queues: on each broker, for reading and for writing.
            perm: bits of ``Permission``.
            order: keep the order of queues while brokers are away.
            cluster: on the brokers of this cluster only.

        Raises:
            IllegalNameError: the name.
            ConfigError: no queue, or no such cluster.
        """
        validate_topic(topic)
        if queues <= 0:
            raise ConfigError(f"queues: {queues} must be above 0")
        header = CreateTopicRequestHeader(topic, DEFAULT_TOPIC, queues, queues, int(perm), order=order)
        for address in await self._masters(cluster):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on all masters and name servers; messages stay in the commit log until they expire.

        Raises:
            NameServerError: a name server could not be told, so clients may still find the topic there.
        """
        for address in await self._masters():
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic))
        instance = self._entered()
        failed = []
        for name_server in instance.name_servers:
            try:
                await self._ask(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicRequestHeader(topic))
            except ClientError as exc:
                failed.append(f"{name_server}: {exc}")
        if failed:
            raise NameServerError(f"topic {topic!r} deleted, but not on these name servers: {'; '.join(failed)}")

    async def topic_config(self, topic: str, broker_name: str | None = None) -> TopicConfig:
        """Return how a broker keeps a topic: the named one, or the first by name.

        Raises:
            NoRouteError: no broker has it, or not the named one.
        """
        masters = _masters_of(await self.topic_route(topic))
        name = broker_name or min(masters, default="")
        if name not in masters:
            raise NoRouteError(f"topic {topic!r} has no master {name!r}; its brokers: {', '.join(masters) or 'none'}")
        address = masters[name]
        instance = self._entered()
        command = instance.command(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic))
        response = await instance.invoke(address, command)
        if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return TopicConfig.decode(check(response, address).body)
        response = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)  # 4.x tells all of them at once
        config = TopicConfigSerializeWrapper.decode(response.body).topic_config_table.get(topic)
        if config is None:
            raise TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), f"no topic {topic} in its table", address)
        return config

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return first and next offset, and time of the last message, of each queue, sorted by queue."""
        found: dict[MessageQueue, TopicOffset] = {}
        for address in _masters_of(await self.topic_route(topic)).values():
            response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic))
            found.update(TopicStatsTable.decode(response.body).offset_table)
        return dict(sorted(found.items()))

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the first message in a queue; 0 if the queue is unknown."""
        return await self._queue_offset(RequestCode.GET_MIN_OFFSET, queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset that the next message in a queue will get; 0 if the queue is unknown."""
        return await self._queue_offset(RequestCode.GET_MAX_OFFSET, queue)

    async def cluster(self) -> ClusterInfo:
        """Return all brokers by cluster and name."""
        instance = self._entered()
        command = instance.command(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode((await instance.invoke_namesrv_checked(command)).body)

    async def groups(self) -> list[str]:
        """Return the names of all consumer groups that a broker has settings for, sorted."""
        return sorted(await self.group_configs())

    async def group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all consumer groups; of several brokers with one group the last by name."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for address in await self._masters():
            response = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found.update(SubscriptionGroupWrapper.decode(response.body).subscription_group_table)
        return found

    async def create_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create a consumer group on all masters (of a cluster), or change it.

        Raises:
            IllegalNameError: its name.
        """
        validate_group(config.group_name)
        body = config.encode()
        for address in await self._masters(cluster):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, group: str, *, remove_offsets: bool = True) -> None:
        """Delete a consumer group on all masters, with its offsets unless told otherwise."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets, remove_offsets)
        for address in await self._masters():
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_lag(self, group: str, topic: str | None = None) -> list[GroupLag]:
        """Return how far a group is in each queue, sorted by queue; nothing if it never committed an offset.

        Args:
            group: its name.
            topic: this topic only.
        """
        rows = []
        for address in await self._masters():
            header = GetConsumeStatsRequestHeader(group, topic)
            try:
                response = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
            except TopicNotExistError:  # not on this broker
                continue
            for queue, found in ConsumeStats.decode(response.body).offset_table.items():
                lag = max(0, found.broker_offset - found.consumer_offset)
                rows.append(GroupLag(queue, found.broker_offset, found.consumer_offset, lag, found.last_timestamp))
        return sorted(rows)

    async def group_members(self, group: str) -> ConsumerConnection:
        """Return who is connected for a consumer group, to whichever broker, and what they subscribed to.

        Raises:
            ConsumerNotOnlineError: nobody.
        """
        merged: ConsumerConnection | None = None
        for address in await self._masters():
            header = ConsumerGroupRequestHeader(group)
            try:
                response = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except ConsumerNotOnlineError:
                continue
            found = ConsumerConnection.decode(response.body)
            if merged is None:
                merged = found
            else:
                known = {connection.client_id for connection in merged.connection_set}
                merged.connection_set += [one for one in found.connection_set if one.client_id not in known]
                merged.subscription_table |= found.subscription_table
        if merged is None:
            raise ConsumerNotOnlineError(int(ResponseCode.CONSUMER_NOT_ONLINE), f"group {group!r} has no member online")
        return merged

    async def group_member_ids(self, group: str) -> list[str]:
        """Return the client ids of the members of a consumer group, sorted as its members sort them."""
        ids: set[str] = set()
        for address in await self._masters():
            instance = self._entered()
            command = instance.command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequestHeader(group))
            response = await instance.invoke(address, command)
            if response.code == ResponseCode.SUCCESS:  # another code says that there is none
                ids.update(ConsumerIdList.decode(response.body).consumer_id_list)
        return sorted(ids)

    def _entered(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosedError("the admin is not open: use it inside its async with block")
        return self._instance

    async def _ask(self, address: str, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        instance = self._entered()
        return await instance.invoke_checked(address, instance.command(code, header, body))

    async def _masters(self, cluster: str | None = None) -> list[str]:
        """Return the addresses of all masters by broker name, of one cluster if it is named."""
        info = await self.cluster()
        names: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            if cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise ConfigError(f"cluster {cluster!r} is not known to the name server; it knows: {known}")
            names = info.cluster_addr_table[cluster]
        brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
        found = [broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs]
        if not found:
            raise NoRouteError(f"name server {self._entered().name_server} knows no running master broker")
        return found

    async def _queue_offset(self, code: int, queue: MessageQueue) -> QueueOffset:
        instance = self._entered()
        await instance.topic_route(queue.topic)
        address = instance.broker_address(queue.broker_name)
        if address is None:
            raise NoRouteError(f"queue {queue}: no route leads to its broker")
        header = QueueRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        return OffsetResponseHeader.decode((await self._ask(address, code, header)).ext_fields).offset


def _masters_of(route: TopicRouteData) -> dict[str, str]:
    """Return the masters' addresses by broker name, sorted by name."""
    masters = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    return dict(sorted(masters.items()))
