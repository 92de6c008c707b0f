"""The broker: owns the store, the tables, the listeners and the nurseries.

Rules: one trio thread owns all state; shutdown order is nesting: first nobody new is accepted, then connections end,
then the services, then the store is closed.

Source: behaviour.md A.1, A.20.
"""

import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

import trio

from triomq.broker.config import BrokerConfig, Listener
from triomq.broker.delayed.delivery import Delivery
from triomq.broker.delayed.levels import Schedule
from triomq.broker.delayed.service import ScheduledDelivery
from triomq.broker.delayed.timer import Timer
from triomq.broker.groups.consumer_offsets import ConsumerOffsetTable
from triomq.broker.groups.members import ConsumerGroups, ProducerGroups
from triomq.broker.groups.queue_locks import CLOSE_GRACE_S, QueueLocks
from triomq.broker.groups.subscription_groups import SubscriptionGroupTable
from triomq.broker.network.addresses import Address, plain_ip, resolve_ip
from triomq.broker.network.admission import Admission
from triomq.broker.network.client_requests import ClientRequests
from triomq.broker.network.connection import Connection
from triomq.broker.network.connection_reader import ConnectionReader
from triomq.broker.network.sockets import accept_loop, listen, listen_with_vip
from triomq.broker.opening import open_store
from triomq.broker.processors.plain_send import PlainSends, response_template
from triomq.broker.processors.pull import serve_held
from triomq.broker.processors.send_targets import SendTargets
from triomq.broker.processors.table import BROKER_PROCESSORS, NAMESRV_PROCESSORS, VIP_PROCESSORS, Processor
from triomq.broker.pulls.lookups import Lookups
from triomq.broker.pulls.pull_hold import PullHold
from triomq.broker.pulls.pull_timeout import PullTimeout
from triomq.broker.services.flush import GroupCommit, commit_log_flush, consume_queue_flush
from triomq.broker.services.housekeeping import Housekeeping
from triomq.broker.services.index import Indexing
from triomq.broker.services.retention import RetentionService
from triomq.broker.services.saving import TableSaving
from triomq.broker.services.stalls import StallWatch
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.topics import TopicTable
from triomq.protocol.codes import CommandFlag, RequestCode
from triomq.protocol.errors import StoreError
from triomq.protocol.host import encode_host
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore

LOGGER: Final = logging.getLogger("triomq.broker.server")

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_FINISH_CHECK_S: Final = 0.01


def now_ms() -> int:
    """Return the wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Return a clock in milliseconds that nobody sets."""
    return time.monotonic_ns() // 1_000_000


class Endpoint(NamedTuple):
    """A listening socket, what it serves, and how the broker is called there."""

    sock: socket.socket
    listener: Listener
    processors: Mapping[int, Processor]
    broker_port: int


class _Table(Protocol):
    """What is kept in a file of its own and saved when it has changed."""

    is_dirty: bool

    def encode(self) -> bytes: ...

    def write(self, content: bytes) -> None: ...


class Broker:
    """A running broker; made by :func:`open_broker`.

    Attributes:
        addresses: broker and name-server address of each listener, with the ports really used.
        store, topics, subscription_groups, offsets, schedule, timer: what is on disk.
        consumer_groups, producer_groups, connections: who is there.
        locks: which member may consume which queue in order.
        client_requests: what clients were asked and have yet to answer.
        retention: deletes old files.
        table_saving: writes changed tables.
        stalls: queues in which messages wait and nothing moves.
        statistics: counters.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock_ms: Callable[[], int] = now_ms,
        steady_clock_ms: Callable[[], int] = steady_ms,
    ) -> None:
        self.config: Final = config
        self.store: Final = store
        self.clock_ms: Final = clock_ms
        self.cluster_name: Final = config.cluster_name.encode()
        tables = config.store.root / "config"
        self.topics: Final = TopicTable(
            JsonTable(tables / "topics.json"),
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            default_queues=config.default_topic_queues,
            auto_create=config.auto_create_topic,
            clock_ms=clock_ms,
        )
        self.subscription_groups: Final = SubscriptionGroupTable(
            JsonTable(tables / "subscriptionGroup.json"), auto_create=config.auto_create_group, clock_ms=clock_ms
        )
        self.offsets: Final = ConsumerOffsetTable(JsonTable(tables / "consumerOffset.json"), clock_ms=clock_ms)
        self.consumer_groups: Final = ConsumerGroups(clock_ms=steady_clock_ms, notify=self._notify_ids_changed)
        self.producer_groups: Final = ProducerGroups(clock_ms=clock_ms)
        self.locks: Final = QueueLocks(clock_ms=steady_clock_ms, freed=self.notify_members)
        self.client_requests: Final = ClientRequests(self.next_opaque)
        self.stalls: Final = StallWatch(self)
        self.pull_hold: Final = PullHold(filtered_hold_s=config.filtered_hold_s)
        self.lookups: Final = Lookups(self)
        self.statistics: Final = BrokerStatistics(clock_ms())
        self.delivery: Final = Delivery(store, self.statistics)
        self.schedule: Final = Schedule(store, JsonTable(tables / "delayOffset.json"), self.statistics, self.delivery)
        self.timer: Final = Timer(
            store,
            JsonTable(tables / "timerProgress.json"),
            self.statistics,
            self.delivery,
            max_delay_ms=round(config.timer_max_delay_s * 1000),
            wake=self.schedule.wake,
        )
        self.group_commit: Final = GroupCommit(self) if config.store.durability is Durability.SYNC else None
        self.send_targets: Final = SendTargets(self.topics, store)
        self.plain_sends: Final = PlainSends(self)
        self.send_response: Final = response_template(config.region)
        self.retention: Final = RetentionService(self)
        self.table_saving: Final = TableSaving(self)
        self.connections: Final[set[Connection]] = set()
        self.admission: Final = Admission(self)
        self.reader: Final = ConnectionReader()
        self.unflushed: Final[list[Connection]] = []
        self.addresses: dict[str, tuple[Address, Address]] = {}
        self.stopping: Final = trio.Event()
        self.connection_nursery: trio.Nursery
        self._store_ips: dict[str, str] = {}
        self._opaque = 0

    # --- steps ------------------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Answer pulls whose messages arrived in this step, then write everything that is queued anywhere."""
        for pull in self.pull_hold.take_ready():
            serve_held(pull, is_expired=False)
        unflushed = self.unflushed
        for connection in unflushed:
            connection.flush()
        unflushed.clear()

    def refuse(self, connection: Connection, command: RemotingCommand, code: int, remark: str) -> RemotingCommand:
        """Make the response to a request that failed, and count it."""
        self.statistics.failed_requests += 1
        fields = {}
        if command.code in _SEND_CODES:  # Java clients expect them on errors too
            fields = {"MSG_REGION": self.config.region, "TRACE_ON": "true"}
        LOGGER.debug("request refused code=%d peer=%s remark=%s", command.code, connection.peer, remark)
        return command.reply(code, fields, remark=remark)

    def next_opaque(self) -> int:
        """Return the correlation number for a request of ours to a client."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def _notify_ids_changed(self, connection: Connection, group: str) -> None:
        if self.stopping.is_set():  # all of them leave now
            return
        connection.send(
            RemotingCommand(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.next_opaque(), _ONEWAY, {"consumerGroup": group}
            )
        )

    def notify_members(self, group: str) -> None:
        """Tell all members of a group to share out its queues anew, unless its settings forbid such notices."""
        config = self.subscription_groups.get(group)
        if config is None or config.notify_consumer_ids_changed_enable:
            self.consumer_groups.tell(group)

    def forget_connection(self, connection: Connection, reason: str, *, closed_by_peer: bool = False) -> None:
        """Remove a closed connection from all tables and tell the remaining members of its groups."""
        if connection in self.connections:
            self.connections.discard(connection)
            LOGGER.info("connection closed peer=%s reason=%s", connection.peer, reason)
        self.consumer_groups.forget(connection)
        self.producer_groups.forget(connection)
        if self.locks.has_locked(connection):
            self.connection_nursery.start_soon(self._release_locks, connection, closed_by_peer)
        self.client_requests.forget(connection)

    async def _release_locks(self, connection: Connection, closed_by_peer: bool) -> None:
        await trio.sleep(CLOSE_GRACE_S)
        self.locks.release(connection, self.consumer_groups.connection_of, closed_by_peer=closed_by_peer)
        self.end_step()

    # --- life -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the tables, and save at once the offsets that had to be changed.

        One that was taken back must not be found as it was by a start after messages have got its number.

        Raises:
            StoreLayoutError: a table and its previous generation cannot be read.
        """
        self.topics.load()
        self.subscription_groups.load()
        self.offsets.load()
        self.schedule.load()
        self.offsets.restrict(self.store.reader.max_offset_in_queue)
        self.timer.load()
        self.topics.adopt((queue.topic, queue.queue_id) for queue in self.store.queues)
        _write((self.offsets, self.schedule.offsets, self.timer.progress))

    def save_tables_now(self) -> None:
        """Write the tables that changed, before the broker ends."""
        tables: list[_Table] = [self.topics, self.subscription_groups, self.offsets]
        delivered: list[_Table] = [self.schedule.offsets, self.timer.progress]
        if any(table.is_dirty for table in delivered) and self._flush_delivered():
            tables += delivered
        _write(tables)

    def _flush_delivered(self) -> bool:
        """Put delivered messages on the disk before the tables say that they are; ``False`` if it refuses."""
        try:
            if not self.store.has_failed:
                self.store.flush()
        except StoreError as exc:
            LOGGER.error("delay offsets not saved, delayed messages may be delivered again: %s", exc)
            return False  # also where only a file could not be opened, which is no failure of the disk
        return not self.store.has_failed

    async def serve(
        self, endpoints: list[Endpoint], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until :attr:`stopping` is set; started when connections are accepted."""
        async with trio.open_nursery() as services:  # 3. last to go
            services.start_soon(PullTimeout(self).run)
            services.start_soon(Housekeeping(self).run)
            services.start_soon(self.table_saving.run)
            services.start_soon(self.retention.run)
            services.start_soon(consume_queue_flush(self).run)
            services.start_soon(Indexing(self).run)
            services.start_soon(ScheduledDelivery(self).run)
            services.start_soon((self.group_commit or commit_log_flush(self)).run)
            async with trio.open_nursery() as connections:  # 2. requests in flight are answered
                self.connection_nursery = connections
                connections.start_soon(self.reader.run, self.connections)
                async with trio.open_nursery() as acceptors:  # 1. first to go
                    for endpoint in endpoints:
                        acceptors.start_soon(accept_loop, endpoint.sock, self._acceptor(endpoint))
                    task_status.started()
                    await self.stopping.wait()
                    acceptors.cancel_scope.cancel()
                await self._finish_answers()
                connections.cancel_scope.cancel()
            services.cancel_scope.cancel()

    async def _finish_answers(self) -> None:
        """Give senders that wait for the disk, and peers that are reading, a moment."""
        with trio.move_on_after(self.config.shutdown_grace_s):
            while self._has_unfinished_answers():  # noqa: ASYNC110  # an event would cost every answer something
                await trio.sleep(_FINISH_CHECK_S)

    def _has_unfinished_answers(self) -> bool:
        if self.group_commit is not None and self.group_commit.waiting:
            return True
        return any(connection.unread_bytes for connection in self.connections)

    def _acceptor(self, endpoint: Endpoint) -> Callable[[socket.socket], None]:
        def accepted(sock: socket.socket) -> None:
            if not self.admission.admits(sock):
                return
            try:
                peer = Address(plain_ip(sock.getpeername()[0]), sock.getpeername()[1])
                local_ip = plain_ip(sock.getsockname()[0])
            except OSError:  # gone already
                sock.close()
                return
            connection = Connection(
                self,
                sock,
                peer,
                encode_host(peer.host, peer.port),
                _advertised(endpoint, local_ip),
                encode_host(self._store_ips.get(endpoint.listener.name) or local_ip, endpoint.broker_port),
                endpoint.processors,
            )
            self.connections.add(connection)
            self.reader.add(connection)

        return accepted

    def open_endpoints(self) -> list[Endpoint]:
        """Open all listening sockets, or none.

        Raises:
            ConfigError: one of them cannot be had.
        """
        endpoints: list[Endpoint] = []
        try:
            for listener in self.config.listeners:
                broker_sock, vip_sock = listen_with_vip(listener.broker)
                port = broker_sock.getsockname()[1]
                endpoints.append(Endpoint(broker_sock, listener, BROKER_PROCESSORS, port))
                if vip_sock is not None:
                    endpoints.append(Endpoint(vip_sock, listener, VIP_PROCESSORS, port))
                namesrv_sock = listen(listener.namesrv)
                endpoints.append(Endpoint(namesrv_sock, listener, NAMESRV_PROCESSORS, port))
                self.addresses[listener.name] = (
                    Address(listener.broker.host, port),
                    Address(listener.namesrv.host, namesrv_sock.getsockname()[1]),
                )
        except BaseException:
            for endpoint in endpoints:
                endpoint.sock.close()
            raise
        return endpoints

    async def resolve_advertised(self) -> None:
        """Find the IP addresses that records and message ids carry for advertised host names."""
        for listener in self.config.listeners:
            if listener.advertise is not None:
                host = listener.advertise.rpartition(":")[0] if ":" in listener.advertise else listener.advertise
                ip = await trio.to_thread.run_sync(resolve_ip, host)
                if ip is None:
                    LOGGER.warning("advertised host is unknown here host=%s: message ids carry the local address", host)
                else:
                    self._store_ips[listener.name] = ip


_SEND_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


def _write(tables: Iterable[_Table]) -> None:
    """Write the tables that changed, here and now."""
    for table in tables:
        if table.is_dirty:
            try:
                table.write(table.encode())
            except StoreError as exc:
                LOGGER.error("table not saved, its changes may be lost: %s", exc)
            else:
                table.is_dirty = False


def _advertised(endpoint: Endpoint, local_ip: str) -> str:
    """Return the broker's address for a peer: as configured, else the address at which the peer reached us."""
    advertise = endpoint.listener.advertise
    if advertise is None:
        return str(Address(local_ip, endpoint.broker_port))
    return advertise if ":" in advertise else str(Address(advertise, endpoint.broker_port))


def _lone_error(error: BaseException) -> BaseException:
    """Return the only error in a group, however deep; a group of several as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def open_broker(config: BrokerConfig) -> AsyncGenerator[Broker]:
    """Open the store, listen, and serve until the block is left; then everything is on disk.

    Raises:
        ConfigError: an address cannot be had.
        StoreLockedError: another broker owns the store.
        StoreLayoutError: the store cannot be read, or was written with other file sizes.
    """
    store = await open_store(config.store)
    broker = Broker(config, store)
    try:
        broker.load()
        await broker.resolve_advertised()
        endpoints = broker.open_endpoints()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(broker.serve, endpoints)
                yield broker
                broker.stopping.set()
        except BaseExceptionGroup as group:
            raise _lone_error(group) from None
    finally:
        broker.save_tables_now()
        store.close()
