"""Administration: topics, groups, clusters, offsets.

Source: wire.md 7 and 8, behaviour.md A.15.
"""

from typing import Final

from triomq.client.admin.admin_groups import GroupAdmin
from triomq.client.admin.find_messages import END_OF_TIME_MS, find_by_key, find_by_place
from triomq.client.cluster.requests import raise_for_code
from triomq.client.cluster.route import MASTER_ID
from triomq.protocol.bodies.route import TopicConfig, TopicConfigSerializeWrapper, TopicRouteData
from triomq.protocol.bodies.statistics import TopicOffset, TopicStatsTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ClientError, ConfigError, NameServerError, NoRouteError, TopicNotExistError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import AUTO_CREATE_TOPIC, validate_topic
from triomq.protocol.record.message import MessageExt
from triomq.protocol.requests.messages import QueryMessageRequestHeader
from triomq.protocol.requests.offsets import OffsetResponseHeader, QueueRequestHeader
from triomq.protocol.requests.topics import CreateTopicRequestHeader, TopicRequestHeader
from triomq.protocol.units import QueueOffset

READ_WRITE: Final = 6


class Admin(GroupAdmin):
    """Asks name servers and brokers for what they know, and changes topics and groups.

    ::

        async with Admin(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("Topic", queues=8)

    All methods raise ``NameServerError`` if no name server answers, ``BrokerResponseError`` if a broker refuses and
    other ``ClientError`` if it cannot be reached.
    """

    async def topics(self) -> list[str]:
        """Return the names of all topics, those of the system included, sorted."""
        return await self._entered().routes.topics()

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return where a topic is, as the name server knows it now.

        Raises:
            NoRouteError: nowhere; the text tells similar topics.
        """
        return await self._entered().routes.topic_route(topic, refresh=True)

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
        header = CreateTopicRequestHeader(topic, AUTO_CREATE_TOPIC, queues, queues, int(perm), order=order)
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
        for name_server in instance.requests.name_servers.addresses:
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
        command = instance.requests.command(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic))
        response = await instance.requests.invoke(address, command)
        if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return TopicConfig.decode(raise_for_code(response, address).body)
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

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        unique: bool = False,
    ) -> list[MessageExt]:
        """Return the newest messages of a topic with a key, oldest first; brokers look through few dozen at most.

        Args:
            topic: its name.
            key: one of their keys.
            max_messages: how many at most.
            begin_ms: when they were stored at the earliest.
            end_ms: when they were stored at the latest.
            unique: ``key`` is the id that the producer gave to the message.

        Raises:
            NoRouteError: no broker has the topic.
            ConfigError: ``max_messages`` is not above 0, or ``key`` is empty or holds a blank.
        """
        if max_messages <= 0:
            raise ConfigError(f"max_messages: {max_messages} must be above 0")
        if not key or " " in key:
            raise ConfigError(f"key {key!r}: must not be empty nor hold a blank, which separates keys")
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_ms, end_ms, unique)
        return await find_by_key(self._entered(), _masters_of(await self.topic_route(topic)), header)

    async def message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Return one message.

        Args:
            message_id: the offset id, which tells where it is stored; with ``topic`` also the id its producer gave it.
            topic: where to look for the producer's id first; the newest message with it is returned.

        Raises:
            QueryNotFoundError: no message has this id.
            NoRouteError: no broker has the topic.
        """
        if topic is not None:
            found = await self.find_messages(topic, message_id, unique=True)
            if found:
                return found[-1]
        instance = self._entered()
        known = [(name, address) for address, (name, _) in instance.brokers.addresses().items()]
        return await find_by_place(instance, message_id, known)

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the first message in a queue; 0 if the queue is unknown."""
        return await self._queue_offset(RequestCode.GET_MIN_OFFSET, queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset that the next message in a queue will get; 0 if the queue is unknown."""
        return await self._queue_offset(RequestCode.GET_MAX_OFFSET, queue)

    async def _queue_offset(self, code: int, queue: MessageQueue) -> QueueOffset:
        instance = self._entered()
        await self.topic_route(queue.topic)
        address = instance.brokers.find(queue.broker_name)
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
