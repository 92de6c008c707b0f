"""The configuration of one topic: read and changed on brokers of all versions.

Source: wire.md 7; AdminBrokerProcessor.java.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.client.cluster.requests import Requests, raise_for_code
from triomq.client.cluster.route import read_route
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.route import TopicConfig, TopicConfigSerializeWrapper
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import (
    ClientError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    NameServerError,
    RequestTimeoutError,
    TopicNotExistError,
)
from triomq.protocol.names import AUTO_CREATE_TOPIC
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


async def create_topic(
    requests: Requests, masters: Mapping[str, str], topic: str, settings: TopicSettings, *, dry_run: bool
) -> list[str]:
    """Create a topic on those of these brokers, given by name, that do not have it; return their addresses.

    First all brokers are asked: nothing changes if one of them has the topic with settings other than those given.
    What is not given is RocketMQ's default in a new topic, and as it is in one that exists.

    Raises:
        ConfigError: a broker has the topic with other settings.
        NameServerError: a name server does not know of the topic in time.
    """
    missing = {}
    for name, address in masters.items():
        try:
            config = await read_topic_config(requests, address, topic)
        except TopicNotExistError:
            missing[name] = address
            continue
        wanted = replace(settings, order=None).applied_to(config)  # brokers of RocketMQ 4.9 do not keep the order
        if wanted != config:
            raise ConfigError(
                f"topic {topic} exists on the broker at {address} with other settings ({_described(config)}; wanted: "
                f"{_described(wanted)}): it is left as it is; change it with topic update, Admin.update_topic"
            )
    if missing and not dry_run:
        header = _header(topic, settings.applied_to(TopicConfig(topic, _QUEUES, _QUEUES)), settings)
        await requests.ask_each(missing.values(), header.code, header)
        await _wait_for_route(
            requests, topic, dict.fromkeys(missing, (header.read_queue_nums, header.write_queue_nums))
        )
    return list(missing.values())


def _described(config: TopicConfig) -> str:
    return f"{config.read_queue_nums} read and {config.write_queue_nums} write queues, perm {config.perm}"


async def change_topic(
    requests: Requests, masters: Mapping[str, str], topic: str, settings: TopicSettings, *, force: bool, dry_run: bool
) -> list[TopicChange]:
    """Change a topic on these brokers, given with their addresses, after reading its configuration from all of them.

    Raises:
        ConfigError: consumers would not read some messages any more, and ``force`` is not set; nothing has changed.
        BrokerResponseError, ClientError: as ``Admin``.
    """

    async def plan(name: str) -> TopicChange:
        config = await read_topic_config(requests, masters[name], topic)
        after = settings.applied_to(config)
        unread = range(after.read_queue_nums, config.read_queue_nums)
        hidden = sum(await in_parallel(partial(_count, requests, masters[name], topic), unread))
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
            await requests.ask(masters[name], RequestCode.UPDATE_AND_CREATE_TOPIC, _header(topic, after, settings))
            after = await read_topic_config(requests, masters[name], topic)
            changes[index] = changes[index]._replace(after=after)
            changed[name] = after.read_queue_nums, after.write_queue_nums
    await _wait_for_route(requests, topic, changed)
    return changes


async def _count(requests: Requests, address: str, topic: str, queue_id: int) -> int:
    """Return the number of messages in a queue; statistics of topics leave out queues that are not written."""
    header = QueueRequestHeader(topic, queue_id)
    codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
    answers = [await requests.ask(address, code, header) for code in codes]
    first, end = (OffsetResponseHeader.decode(answer.ext_fields).offset for answer in answers)
    return end - first


async def _wait_for_route(requests: Requests, topic: str, queues: Mapping[str, tuple[int, int]]) -> None:
    """Return when all name servers that answer have the route; ours and Apache's brokers register before they answer.

    Args:
        requests: sends the requests.
        topic: name of the topic.
        queues: numbers of read and of write queues, by broker name.

    Raises:
        NameServerError: a name server does not have it in time.
    """
    deadline = trio.current_time() + _ROUTE_WAIT_S
    for name_server in requests.name_servers.addresses if queues else ():
        while not await _is_routed(requests, name_server, topic, queues.items()):
            if trio.current_time() >= deadline:
                raise NameServerError(
                    f"topic {topic!r} is set on its brokers, but name server {name_server} has no such route after "
                    f"{_ROUTE_WAIT_S:g} s: is each of these brokers registered there? {', '.join(queues)}"
                )
            await trio.sleep(_ROUTE_POLL_S)


async def _is_routed(
    requests: Requests, name_server: str, topic: str, queues: Set[tuple[str, tuple[int, int]]]
) -> bool:
    command = requests.command(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
    )
    try:
        response = await requests.invoke(name_server, command, _ROUTE_REQUEST_S)
    except (ConnectError, ConnectionLostError, RequestTimeoutError):
        return True  # no client learns from it now
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return False
    route = read_route(raise_for_code(response, name_server).body)
    return queues <= {(data.broker_name, (data.read_queue_nums, data.write_queue_nums)) for data in route.queue_datas}


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


async def delete_topic(requests: Requests, masters: Iterable[str], topic: str) -> None:
    """Delete a topic on these brokers and on all name servers.

    Raises:
        NameServerError: a name server did not confirm.
    """
    header = TopicRequestHeader(topic)
    await requests.ask_each(masters, RequestCode.DELETE_TOPIC_IN_BROKER, header)
    failed = []
    for name_server in requests.name_servers.addresses:
        try:
            await requests.ask(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        except ClientError as exc:
            failed.append(f"{name_server}: {exc}")
    if failed:
        raise NameServerError(f"topic {topic!r} deleted, but not on these name servers: {'; '.join(failed)}")


async def read_topic_config(requests: Requests, address: str, topic: str) -> TopicConfig:
    """Return the configuration of a topic on the broker at ``address``.

    Raises:
        BrokerResponseError, ClientError: as ``Admin``.
    """
    command = requests.command(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic))
    response = await requests.invoke(address, command)
    if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return TopicConfig.decode(raise_for_code(response, address).body)
    response = await requests.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)  # 4.x has no request for a single topic
    table = TopicConfigSerializeWrapper.decode(response.body).topic_config_table
    config = table.get(requests.namespace.wrap(topic))
    if config is None:
        raise TopicNotExistError(int(ResponseCode.TOPIC_NOT_EXIST), f"no topic {topic} in its table", address)
    return config
