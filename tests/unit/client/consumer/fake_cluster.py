"""Queues of one broker and the members of groups, in memory: what a consumer's instance would reach by network.

Messages are real records.  Time is trio's, so tests run on a ``MockClock`` without a socket.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import cast

import trio

from tests import records
from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.requests import NameServers, raise_for_code
from triomq.client.cluster.route import Queues, subscribe_queues
from triomq.client.config import ClientConfig
from triomq.client.connection.broker_requests import ConsumerCallbacks
from triomq.protocol.bodies.client import ConsumerIdList, HeartbeatData, LockBatchRequestBody, LockBatchResponseBody
from triomq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import ConnectError, NoRouteError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.namespace import Namespace
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import encode_properties
from triomq.protocol.record.record import decode_record
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.headers import Header

BROKER = "broker-a"
ADDRESS = "127.0.0.1:10911"

Handler = Callable[[RemotingCommand], RemotingCommand | Awaitable[RemotingCommand] | None]


def make_record(
    topic: str,
    queue_id: int,
    queue_offset: int,
    body: bytes = b"body",
    properties: Mapping[str, str] | None = None,
    store_timestamp: int = 0,
    reconsume_times: int = 0,
) -> bytes:
    """Return a stored record; its physical offset is a thousand times its queue offset."""
    return records.make_record(
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=queue_offset * 1000,
        store_timestamp=store_timestamp,
        body=body,
        topic=topic.encode(),
        properties=encode_properties(properties or {}),
        reconsume_times=reconsume_times,
    )


def make_message(queue_offset: int, body: bytes = b"body", topic: str = "T", **properties: str) -> MessageExt:
    """Return a message as a pull brings it."""
    message = decode_record(make_record(topic, 0, queue_offset, body, properties))
    message.broker_name = BROKER
    return message


class FakeCluster:
    """One broker, ``broker-a``.

    Attributes:
        records: stored records by queue; the list index plus ``min_offsets`` is the queue offset.
        committed: (group, queue) to offset.
        locks: (group, queue) to client id; they do not run out.
        requests: all requests so far.
        handlers: request code to a function that answers instead; one that returns ``None`` leaves it to the fake.
        down: every request fails.
        zero_if_none: answer 14 as brokers before 5.0 do for a group without offsets.
    """

    def __init__(self) -> None:
        self.routes: dict[str, TopicRouteData] = {}
        self.records: defaultdict[MessageQueue, list[bytes]] = defaultdict(list)
        self.min_offsets: defaultdict[MessageQueue, int] = defaultdict(int)
        self.committed: dict[tuple[str, MessageQueue], int] = {}
        self.locks: dict[tuple[str, MessageQueue], str] = {}
        self.requests: list[RemotingCommand] = []
        self.handlers: dict[int, Handler] = {}
        self.down = False
        self.zero_if_none = False
        self.version = 407
        self.instances: list[FakeInstance] = []
        self.heartbeats: list[HeartbeatData] = []
        self._arrived: defaultdict[MessageQueue, trio.Event] = defaultdict(trio.Event)

    @cached_property
    def instance(self) -> ClientInstance:
        """A connected instance; the first one that is used is the first of :attr:`instances`."""
        return as_instance(FakeInstance(self))

    async def __call__(self) -> ClusterInfo:
        """Answer ``routes.cluster()``: a broker that no route has is not registered either."""
        await trio.lowlevel.checkpoint()
        return ClusterInfo()

    def add_topic(self, topic: str, queues: int = 1) -> tuple[MessageQueue, ...]:
        """Make or enlarge a topic; running consumers hear of it."""
        self.routes[topic] = TopicRouteData(
            queue_datas=[QueueData(BROKER, queues, queues, 6)],
            broker_datas=[BrokerData("C", BROKER, {0: ADDRESS})],
        )
        for instance in self.instances:
            instance.learn(topic)
        return tuple(MessageQueue(topic, BROKER, queue_id) for queue_id in range(queues))

    def send(
        self,
        queue: MessageQueue,
        *bodies: bytes,
        properties: Mapping[str, str] | None = None,
        store_timestamp: int = 0,
        reconsume_times: int = 0,
    ) -> None:
        """Store messages; held pulls see them at once."""
        for body in bodies:
            place = queue.topic, queue.queue_id, self.max_offset(queue)
            record = make_record(*place, body, properties, store_timestamp, reconsume_times)
            self.records[queue].append(record)
        self._arrived[queue].set()

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the end of a queue."""
        return self.min_offsets[queue] + len(self.records[queue])

    def of(self, code: int) -> list[RemotingCommand]:
        """Return the requests with a code."""
        return [command for command in self.requests if command.code == code]

    def members(self, group: str) -> list[str]:
        """Return the client ids in a group."""
        return [
            instance.client_id for instance in self.instances if group in instance.consumers and not instance.is_cut_off
        ]

    async def answer(self, command: RemotingCommand) -> RemotingCommand:
        """Do what the broker would do."""
        await trio.lowlevel.checkpoint()
        self.requests.append(command)
        if self.down:
            raise ConnectError("down")
        scripted = self.handlers.get(command.code)
        if scripted is not None:
            made = scripted(command)
            if made is not None:
                return made if isinstance(made, RemotingCommand) else await made
        if command.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            return self._lock(command)
        return await self._answer(command)

    async def _answer(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        queue = MessageQueue(fields.get("topic", ""), BROKER, int(fields.get("queueId", 0)))
        match command.code:
            case RequestCode.PULL_MESSAGE:
                return await self._pull(command, queue)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return self._query(command, queue)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.committed[fields["consumerGroup"], queue] = int(fields["commitOffset"])
                return command.reply()
            case RequestCode.GET_MAX_OFFSET:
                return command.reply(ext_fields={"offset": str(self.max_offset(queue))})
            case RequestCode.GET_MIN_OFFSET:
                return command.reply(ext_fields={"offset": str(self.min_offsets[queue])})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return command.reply(ext_fields={"offset": str(self._nearest(queue, int(fields["timestamp"])))})
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return self._list_members(command)
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return command.reply(body=self._offset_table())
            case RequestCode.CONSUMER_SEND_MSG_BACK | RequestCode.SEND_MESSAGE_V2:
                return command.reply()
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="fake")

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        body = LockBatchRequestBody.decode(command.body)
        group, client_id = body.consumer_group, body.client_id
        granted = [queue for queue in body.mq_set if self.locks.setdefault((group, queue), client_id) == client_id]
        if command.code == RequestCode.UNLOCK_BATCH_MQ:
            for queue in granted:
                del self.locks[group, queue]
            return command.reply()
        return command.reply(body=LockBatchResponseBody(granted).encode())

    def _list_members(self, command: RemotingCommand) -> RemotingCommand:
        members = self.members(command.ext_fields["consumerGroup"])
        if not members:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
        return command.reply(body=ConsumerIdList(members).encode())

    def _query(self, command: RemotingCommand, queue: MessageQueue) -> RemotingCommand:
        stored = self.committed.get((command.ext_fields["consumerGroup"], queue))
        if stored is None and self.zero_if_none and not self.min_offsets[queue]:
            stored = 0
        if stored is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark="Not found")
        return command.reply(ext_fields={"offset": str(stored)})

    async def _pull(self, command: RemotingCommand, queue: MessageQueue) -> RemotingCommand:
        fields = command.ext_fields
        if int(fields["sysFlag"]) & 1:
            self.committed[fields["consumerGroup"], queue] = int(fields["commitOffset"])
        wanted, low = int(fields["queueOffset"]), self.min_offsets[queue]
        if wanted == self.max_offset(queue) and int(fields["sysFlag"]) & 2:
            if self._arrived[queue].is_set():  # else others wait for it already
                self._arrived[queue] = trio.Event()
            with trio.move_on_after(int(fields["suspendTimeoutMillis"]) / 1000):
                await self._arrived[queue].wait()
        high = self.max_offset(queue)
        answer = partial(pull_answer, command, min_offset=low, max_offset=high)
        count = min(int(fields["maxMsgNums"]), 32)  # as Apache's brokers
        found = self.records[queue][wanted - low : wanted - low + count] if wanted >= low else []
        if found:
            return answer(0, wanted + len(found), body=b"".join(found))
        if wanted == high:
            return answer(ResponseCode.PULL_NOT_FOUND, wanted)
        return answer(ResponseCode.PULL_OFFSET_MOVED, low if wanted < low else high)

    def _nearest(self, queue: MessageQueue, timestamp: int) -> int:
        """As an Apache broker: the nearest message; beyond the last one that one."""
        times = [decode_record(record).store_timestamp for record in self.records[queue]]
        if not times:
            return 0
        best = min(range(len(times)), key=lambda index: abs(times[index] - timestamp))
        return self.min_offsets[queue] + best

    def _offset_table(self) -> bytes:
        table: defaultdict[str, list[str]] = defaultdict(list)
        for (group, queue), queue_offset in self.committed.items():
            table[f"{queue.topic}@{group}"].append(f"{queue.queue_id}:{queue_offset}")
        rows = ",".join(f'"{key}":{{{",".join(entries)}}}' for key, entries in table.items())
        return f'{{"offsetTable":{{{rows}}}}}'.encode()


def pull_answer(
    command: RemotingCommand, code: int, next_offset: int, *, min_offset: int, max_offset: int, body: bytes = b""
) -> RemotingCommand:
    """Return an answer to a pull."""
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }
    return command.reply(code, fields, body)


class FakeBrokers:
    """The broker addresses that a fake instance knows."""

    def __init__(self, instance: "FakeInstance") -> None:
        self._instance = instance

    def find(self, broker_name: str, broker_id: int = 0, only_this: bool = False) -> str | None:
        return ADDRESS if broker_name == BROKER and self._instance.has_routes else None

    def addresses(self) -> dict[str, tuple[str, int]]:
        return {ADDRESS: (BROKER, 0)} if self._instance.has_routes else {}


class FakeInstance:
    """The parts of a client instance that consumers use; all but the brokers are one object."""

    __class__ = ClientInstance  # type: ignore[assignment]  # it passes for one

    def __init__(
        self, cluster: FakeCluster, client_id: str = "127.0.0.1@1", config: ClientConfig | None = None
    ) -> None:
        self.config = config or ClientConfig()
        self.client_id = client_id
        self.namespace = Namespace(self.config.namespace)
        self.cluster = cluster
        self.is_cut_off = False
        self.consumers: dict[str, ConsumerCallbacks] = {}
        self.name_servers = NameServers(("127.0.0.1:9876",))
        self.requests = self.routes = self.groups = self
        self.lock_connections = self.telemetry = None
        self.brokers = FakeBrokers(self)
        self._known: dict[str, TopicRouteData] = {}
        cluster.instances.append(self)

    @property
    def has_routes(self) -> bool:
        return bool(self._known)

    @property
    def broker_versions(self) -> dict[str, int]:
        return {ADDRESS: self.cluster.version}

    def learn(self, topic: str) -> None:
        """Take the new route of a topic, as the poll of routes does."""
        if topic in self._known:
            self._known[topic] = self.cluster.routes[topic]
            for consumer in self.consumers.values():
                consumer.route_changed(topic)

    def command(self, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        return RemotingCommand(code, ext_fields={} if header is None else header.encode(), body=body)

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        assert address == ADDRESS
        if self.is_cut_off:
            raise ConnectError("cut off")
        return await self.cluster.answer(command)

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        connections: object = None,
    ) -> RemotingCommand:
        return raise_for_code(await self.invoke(address, self.command(code, header, body), timeout_s), address)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        await self.invoke(address, command)

    async def find(self, topic: str, refresh: bool = False) -> TopicRouteData | None:
        await trio.lowlevel.checkpoint()
        route = self.cluster.routes.get(topic)
        if route is not None:
            self._known[topic] = route
        return route

    async def topic_route(self, topic: str, refresh: bool = False) -> TopicRouteData:
        route = await self.find(topic, refresh)
        if route is None:
            raise NoRouteError(topic)
        return route

    def refresh_unpolled(self, topic: str) -> None: ...

    def known(self, topic: str) -> TopicRouteData | None:
        return self._known.get(topic)

    async def similar_topics(self, topic: str) -> str:
        return f"none like {topic}"

    def known_subscribe_queues(self, topic: str) -> Queues:
        route = self._known.get(topic)
        return () if route is None else subscribe_queues(topic, route)

    async def subscribe_queues(self, topic: str) -> Queues:
        return subscribe_queues(topic, await self.topic_route(topic))

    def add_consumer(self, group: str, consumer: ConsumerCallbacks) -> None:
        self.consumers[group] = consumer
        self.cluster.add_topic(f"%RETRY%{group}")
        self._notify(group)

    async def remove_consumer(self, group: str) -> None:
        await trio.lowlevel.checkpoint()
        self.consumers.pop(group, None)
        self._notify(group)

    async def beat(self) -> None:
        await trio.lowlevel.checkpoint()
        self.cluster.heartbeats.append(
            HeartbeatData(
                self.client_id, consumer_data_set=[consumer.heartbeat_data() for consumer in self.consumers.values()]
            )
        )

    def cut_off(self, group: str) -> None:
        """End the connection: every request fails, and the broker takes this one out of the group."""
        self.is_cut_off = True
        for arrived in self.cluster._arrived.values():  # no pull is held any longer
            arrived.set()
        self.consumers[group].connection_lost(ADDRESS)
        self._notify(group)

    def reconnect(self, group: str) -> None:
        """Be a member again."""
        self.is_cut_off = False
        self._notify(group)

    def _notify(self, group: str) -> None:
        for instance in self.cluster.instances:
            if group in instance.consumers:
                instance.consumers[group].members_changed()


def offsets_of(messages: Sequence[MessageExt]) -> list[int]:
    """Return the queue offsets of messages."""
    return [message.queue_offset for message in messages]


def as_instance(fake: FakeInstance) -> ClientInstance:
    """Give the fake where the real one is wanted."""
    return cast("ClientInstance", fake)
