"""Administration of topics, on brokers of all versions.

Source: wire.md 7; AdminBrokerProcessor.java.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.client.admin.base import BaseAdmin
from triomq.client.cluster.route import masters_of_route, read_route
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.route import TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.bodies.statistics import TopicOffset, TopicStatsTable
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ClientError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    NameServerError,
    NoRouteError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    TopicNotExistError,
)
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import AUTO_CREATE_TOPIC, validate_topic
from triomq.protocol.requests.offsets import OffsetResponseHeader, QueueRequestHeader
from triomq.protocol.requests.topics import CreateTopicRequestHeader, GetRouteInfoRequestHeader, TopicRequestHeader

#: Attribute with the kind of messages that brokers of RocketMQ 5 accept.  Source: TopicAttributes.java.
MESSAGE_TYPE: Final = "message.type"
_QUEUES: Final = 4  # of a new topic
_ROUTE_WAIT_S: Final = 5.0
_ROUTE_POLL_S: Final = 0.1
_ROUTE_REQUEST_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What to change of a topic; ``None`` stays as it is.

    Attributes:
        read_queues: queues that consumers read.
        write_queues: queues that producers send to.
        perm: bits of ``Permission``.
        order: whether it is an order topic; only brokers of RocketMQ 5 keep that.
        message_type: ``NORMAL``, ``FIFO``, ``DELAY``, ``TRANSACTION`` or ``MIXED``; only for brokers of RocketMQ 5.

    Raises:
        ConfigError: a number of queues is not above 0.
    """

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    message_type: str | None = None

    def __post_init__(self) -> None:
        for count in (self.read_queues, self.write_queues):
            if count is not None and count <= 0:
                raise ConfigError(f"queues: {count} must be above 0")

    def applied_to(self, config: TopicConfig) -> TopicConfig:
        """Return a configuration with these changes."""
        attributes = config.attributes
        if self.message_type is not None:
            attributes = {**(attributes or {}), MESSAGE_TYPE: self.message_type}
        return replace(
            config,
            read_queue_nums=self.read_queues or config.read_queue_nums,
            write_queue_nums=self.write_queues or config.write_queue_nums,
            perm=config.perm if self.perm is None else self.perm,
            order=config.order if self.order is None else self.order,
            attributes=attributes,
        )


class TopicChange(NamedTuple):
    """The configuration of a topic on one broker, before and after a change.

    A broker leaves out settings that it does not know, so ``after`` is its answer after the change.  ``hidden`` is the
    number of messages in queues that consumers no longer read.
    """

    broker_name: str
    before: TopicConfig
    after: TopicConfig
    hidden: int = 0


class TopicAdmin(BaseAdmin):
    """Reads and changes topics."""

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
        missing = {}
        for name, address in (await self._masters(cluster)).items():
            try:
                config = await self._read(address, topic)
            except TopicNotExistError:
                missing[name] = address
                continue
            wanted = replace(settings, order=None).applied_to(config)  # brokers of RocketMQ 4.9 do not keep the order
            if wanted != config:
                raise ConfigError(
                    f"topic {topic} exists on the broker at {address} with other settings ({_described(config)}; "
                    f"wanted: {_described(wanted)}): it is left as it is; change it with topic update, "
                    "Admin.update_topic"
                )
        if missing and not dry_run:
            header = _header(topic, settings.applied_to(TopicConfig(topic, _QUEUES, _QUEUES)), settings)
            await self._requests.ask_each(missing.values(), RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            numbers = header.read_queue_nums, header.write_queue_nums
            await self._wait_for_route(topic, dict.fromkeys(missing, numbers))
        return list(missing.values())

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on all masters and name servers; messages stay in the commit log until they expire.

        Raises:
            NameServerError: a name server did not confirm, so clients may still find the topic there.
        """
        header = TopicRequestHeader(topic)
        await self._ask_masters(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        failed = []
        for name_server in self._requests.name_servers.addresses:
            try:
                await self._requests.ask(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
            except ClientError as exc:
                failed.append(f"{name_server}: {exc}")
        if failed:
            raise NameServerError(f"topic {topic!r} deleted, but not on these name servers: {'; '.join(failed)}")

    async def topic_config(self, topic: str, broker_name: str | None = None) -> TopicConfig:
        """Return the configuration of a topic on a broker: the named one, or the first by name.

        Raises:
            NoRouteError: no broker, or not the named one, has the topic.
        """
        masters = await self._masters_of(topic, broker_name)
        return await self._read(masters[min(masters)], topic)

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

        async def plan(name: str) -> TopicChange:
            config = await self._read(masters[name], topic)
            after = settings.applied_to(config)
            unread = range(after.read_queue_nums, config.read_queue_nums)
            hidden = sum(await in_parallel(partial(self._count, masters[name], topic), unread))
            return TopicChange(name, config, after, hidden)

        changes = await in_parallel(plan, masters)
        hidden = sum(change.hidden for change in changes)
        if hidden and not force and not dry_run:
            brokers = ", ".join(f"{change.broker_name} {change.hidden}" for change in changes if change.hidden)
            raise ConfigError(
                f"topic {topic}: fewer read queues hide messages from consumers: {hidden} ({brokers}); lower the write "
                "queues first and wait until all groups have consumed the others, or force it (--force, force=True)"
            )
        changed = {}
        for index, (name, before, after, _) in enumerate(changes):
            if after != before and not dry_run:
                header = _header(topic, after, settings)
                await self._requests.ask(masters[name], RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                after = await self._read(masters[name], topic)
                changes[index] = changes[index]._replace(after=after)
                changed[name] = after.read_queue_nums, after.write_queue_nums
        await self._wait_for_route(topic, changed)
        return changes

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return minimum and maximum offset and the time of the last message of each queue, sorted by queue."""
        found: dict[MessageQueue, TopicOffset] = {}
        masters, header = masters_of_route(await self.topic_route(topic)).values(), TopicRequestHeader(topic)
        for response in await self._requests.ask_each(masters, RequestCode.GET_TOPIC_STATS_INFO, header):
            found.update(TopicStatsTable.decode(response.body).offset_table)
        return dict(sorted(found.items()))

    async def _masters_of(self, topic: str, broker_name: str | None) -> dict[str, str]:
        """Return the addresses of a topic's masters by broker name; with a name only that one."""
        masters = masters_of_route(await self.topic_route(topic))
        found = {name: address for name, address in masters.items() if broker_name in (None, name)}
        if not found:
            name = "" if broker_name is None else f" {broker_name!r}"
            raise NoRouteError(f"topic {topic!r} has no master{name}; its brokers: {', '.join(masters) or 'none'}")
        return found

    async def _read(self, address: str, topic: str) -> TopicConfig:
        """Return the configuration of a topic on the broker at ``address``."""
        try:
            answer = await self._requests.ask(address, RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic))
            return TopicConfig.decode(answer.body)
        except RequestCodeNotSupportedError:  # 4.x: no request for a single topic
            answer = await self._requests.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = TopicConfigSerializeWrapper.decode(answer.body).topic_config_table
        config = table.get(self._requests.namespace.wrap(topic))
        if config is None:
            raise TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), f"no topic {topic} in its table", address)
        return config

    async def _count(self, address: str, topic: str, queue_id: int) -> int:
        """Return the number of messages in a queue; statistics of topics leave out queues that are not written."""
        header = QueueRequestHeader(topic, queue_id)
        codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        answers = [await self._requests.ask(address, code, header) for code in codes]
        first, end = (OffsetResponseHeader.decode(answer.ext_fields).offset for answer in answers)
        return end - first

    async def _wait_for_route(self, topic: str, queues: Mapping[str, tuple[int, int]]) -> None:
        """Return when all name servers that answer have the route; brokers register there before they answer.

        Args:
            topic: name of the topic.
            queues: numbers of read and of write queues, by broker name.

        Raises:
            NameServerError: a name server does not have it in time.
        """
        deadline = trio.current_time() + _ROUTE_WAIT_S
        for name_server in self._requests.name_servers.addresses if queues else ():
            while not await self._is_routed(name_server, topic, queues.items()):
                if trio.current_time() >= deadline:
                    raise NameServerError(
                        f"topic {topic!r} is set on its brokers, but name server {name_server} has no such route after "
                        f"{_ROUTE_WAIT_S:g} s: is each of these brokers registered there? {', '.join(queues)}"
                    )
                await trio.sleep(_ROUTE_POLL_S)

    async def _is_routed(self, name_server: str, topic: str, queues: Set[tuple[str, tuple[int, int]]]) -> bool:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        try:
            answer = await self._requests.ask(name_server, code, header, timeout_s=_ROUTE_REQUEST_S)
        except (ConnectError, ConnectionLostError, RequestTimeoutError):
            return True  # no client learns from it now
        except TopicNotExistError:
            return False
        routed = read_route(answer.body).queue_datas
        return queues <= {(each.broker_name, (each.read_queue_nums, each.write_queue_nums)) for each in routed}


def _described(config: TopicConfig) -> str:
    return f"{config.read_queue_nums} read and {config.write_queue_nums} write queues, perm {config.perm}"


def _header(topic: str, config: TopicConfig, settings: TopicSettings) -> CreateTopicRequestHeader:
    """Return the header of the request, which replaces everything but the attributes."""
    return CreateTopicRequestHeader(
        topic,
        AUTO_CREATE_TOPIC,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_filter_type.name,
        config.topic_sys_flag,
        order=config.order,
        attributes=settings.message_type and f"+{MESSAGE_TYPE}={settings.message_type}",
    )
