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
    """Reads and changes topics, groups and offsets on name servers and brokers.

    ::

        async with Admin(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("Topic", queues=8)

    All methods raise ``NameServerError`` if no name server answers, ``BrokerResponseError`` if a broker rejects the
    request, and another ``ClientError`` if a broker cannot be reached.
    """

    async def topics(self) -> list[str]:
        """Return the names of all topics, including system topics, sorted."""
        return await self._entered().routes.topics()

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return the current route of a topic from the name server.

        Raises:
            NoRouteError: the topic does not exist; the text names similar topics.
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
        """Create or change a topic on all masters.

        Args:
            topic: name of the topic.
            queues: number of read and of write queues on each broker.
            perm: bits of ``Permission``.
            order: keep the order of queues while brokers are away.
            cluster: only on the brokers of this cluster.

        Raises:
            IllegalNameError: the name is not valid.
            ConfigError: ``queues`` is not above 0, or the cluster does not exist.
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
            NameServerError: a name server did not confirm, so clients may still find the topic there.
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
        """Return the configuration of a topic on a broker: the named one, or the first by name.

        Raises:
            NoRouteError: no broker, or not the named one, has the topic.
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
        response = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)  # 4.x has no request for a single topic
        config = TopicConfigSerializeWrapper.decode(response.body).topic_config_table.get(topic)
        if config is None:
            raise TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), f"no topic {topic} in its table", address)
        return config

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return minimum and maximum offset and the time of the last message of each queue, sorted by queue."""
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
        """Return the newest messages of a topic with a key, oldest first; a broker returns at most 64.

        Args:
            topic: name of the topic.
            key: one of the messages' keys.
            max_messages: maximum number of messages.
            begin_ms: earliest store time.
            end_ms: latest store time.
            unique: ``key`` is the id that the producer gave to the message.

        Raises:
            NoRouteError: no broker has the topic.
            ConfigError: ``max_messages`` is not above 0, or ``key`` is empty or contains a space.
        """
        if max_messages <= 0:
            raise ConfigError(f"max_messages: {max_messages} must be above 0")
        if not key or " " in key:
            raise ConfigError(f"key {key!r}: must be neither empty nor contain a space, which separates keys")
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_ms, end_ms, unique)
        return await find_by_key(self._entered(), _masters_of(await self.topic_route(topic)), header)

    async def message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Return one message.

        Args:
            message_id: the offset id, which names the place of the message; with ``topic`` also the producer's id.
            topic: topic in which the producer's id is looked up; the newest message with it is returned.

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
        """Return the offset of the first message of a queue; 0 if the queue is unknown."""
        return await self._queue_offset(RequestCode.GET_MIN_OFFSET, queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the next message of a queue; 0 if the queue is unknown."""
        return await self._queue_offset(RequestCode.GET_MAX_OFFSET, queue)

    async def _queue_offset(self, code: int, queue: MessageQueue) -> QueueOffset:
        instance = self._entered()
        await self.topic_route(queue.topic)
        address = instance.brokers.find(queue.broker_name)
        if address is None:
            raise NoRouteError(f"queue {queue}: its broker is in no known route")
        header = QueueRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        return OffsetResponseHeader.decode((await self._ask(address, code, header)).ext_fields).offset


def _masters_of(route: TopicRouteData) -> dict[str, str]:
    """Return the addresses of masters by broker name, sorted by name."""
    masters = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    return dict(sorted(masters.items()))
