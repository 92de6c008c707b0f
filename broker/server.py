"""The broker: builds its parts in order and nests their lives.

Rules: one trio thread owns all state; shutdown is nesting: first the listeners end, then the connections, then the
services, and last the store.

Source: behaviour.md A.1, A.20.
"""

from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias, cast

import trio

from triomq.broker.accounts import Accounts
from triomq.broker.addresses import Address
from triomq.broker.audit import Audit
from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import Delivery
from triomq.broker.delayed.levels import Schedule
from triomq.broker.delayed.service import ScheduledDelivery
from triomq.broker.delayed.timer import Timer
from triomq.broker.groups.consumer_offsets import ConsumerOffsetTable
from triomq.broker.groups.groups import FormerOffsets, GroupNotices, Groups
from triomq.broker.groups.members import ConsumerGroups, ProducerGroups
from triomq.broker.groups.queue_locks import QueueLocks
from triomq.broker.groups.subscription_groups import SubscriptionGroupTable
from triomq.broker.limits.connections import ConnectionLimits
from triomq.broker.limits.memory import MemoryBudget
from triomq.broker.limits.overload import Overload
from triomq.broker.limits.rates import Quotas
from triomq.broker.limits.refused import Refusals
from triomq.broker.namesrv.kv_table import KvTable
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.namesrv.settings import NameServerSettings
from triomq.broker.network.acceptors import Acceptors, Endpoint
from triomq.broker.network.client_requests import ClientRequests
from triomq.broker.network.connection import Connection, ConnectionContext, Service
from triomq.broker.network.listeners import Listeners
from triomq.broker.network.tls import ServerTls
from triomq.broker.pipeline import Method, Pipeline, methods_of
from triomq.broker.processors.acl import AclProcessors
from triomq.broker.processors.admin import GroupProcessors, StoreProcessors, TopicProcessors
from triomq.broker.processors.admin_runtime import RuntimeProcessor
from triomq.broker.processors.admin_settings import SettingsProcessor
from triomq.broker.processors.admin_stats import StatisticsProcessors
from triomq.broker.processors.client import ClientProcessors
from triomq.broker.processors.namesrv import NameServerProcessors
from triomq.broker.processors.offset import OffsetProcessors
from triomq.broker.processors.plain_requests import PlainRequests
from triomq.broker.processors.pull import PullProcessor
from triomq.broker.processors.query import QueryProcessors
from triomq.broker.processors.recall import RecallProcessor
from triomq.broker.processors.relay import RelayProcessors
from triomq.broker.processors.reply import ReplyProcessors
from triomq.broker.processors.send import SendProcessor
from triomq.broker.processors.send_back import SendBackProcessor
from triomq.broker.processors.transaction import TransactionProcessors
from triomq.broker.pulls.pull_answers import PullAnswers
from triomq.broker.pulls.pull_hold import PullHold
from triomq.broker.services.clock_watch import ClockWatch, elapsed_ms, steady_ms
from triomq.broker.services.flush import GroupCommit, flush_commit_log, flush_consume_queues
from triomq.broker.services.housekeeping import Housekeeping, Indexing, log_exposure
from triomq.broker.services.monitor import Monitor
from triomq.broker.services.registration import Registration
from triomq.broker.services.retention import RetentionService
from triomq.broker.services.saving import TableSaving, save_now
from triomq.broker.services.stalls import StallWatch
from triomq.broker.settings import Settings
from triomq.broker.signals import Signal
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.topics import TopicTable
from triomq.broker.transactions.checks import TransactionChecks
from triomq.broker.transactions.undecided import Undecided
from triomq.broker.work import Worker
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.config import Durability
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore, system_clock_ms

Gate: TypeAlias = Callable[[Service], Service]
"""Replaces what serves the requests: for a broker that is to refuse some."""


class Broker:
    """A running broker; made by :func:`open_broker`.

    Attributes:
        config: its settings.
        pipeline: serves the requests.
        store, topics, key_values, schedule, timer, undecided: what is on disk.
        routes: the brokers that registered here, and this one.
        groups, notices: groups with offsets, members and locks; what tells members that theirs has changed.
        accounts, quotas: who may do what, and how much of it; ``None``: everybody everything.
        audit: notes who did what, if that is wanted.
        statistics: counters.
        budget: counts the memory that peers make the broker hold.
        pull_hold, group_commit: requests that wait for messages, for a flush (if sync).
        stalls, clock_watch: queues whose messages are not consumed; whether the wall clock was set.
        retention, table_saving, scheduled_delivery, transaction_checks, housekeeping: services.
        registration: tells name servers of the broker.
        acceptors, worker, context, connections: the connections and what they share.
        is_serving, stopping, monitor: whether it has begun to serve; set to stop it; serves metrics, if configured.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock_ms: Callable[[], int] = system_clock_ms,
        steady_clock_ms: Callable[[], int] = steady_ms,
        random: Random | None = None,
        tls: ServerTls | None = None,
        gate: Gate | None = None,
        elapsed_clock_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        self.config: Final = config
        self.store: Final = store
        self.stopping: Final = trio.Event()
        self.is_serving = False
        self.monitor: Monitor | None = None
        self.statistics: Final = BrokerStatistics(clock_ms())
        self.accounts: Final = None if config.acl is None else Accounts(config.acl)
        self.audit: Final = None if config.audit is None else Audit(config, clock_ms)
        self._clock_ms = clock_ms
        self.clock_watch: Final = ClockWatch(clock_ms, elapsed_clock_ms)
        self._steady_ms = steady_clock_ms
        self.quotas: Final = (
            Quotas(config.quotas, steady_clock_ms, has_accounts=config.acl is not None) if config.quotas else None
        )
        self._watched_files = cast(list[Accounts | Quotas], [*filter(None, (self.accounts, self.quotas))])
        self._build_pulls()
        random = random or Random()  # noqa: S311  # spreads load, protects nothing
        self._build_tables(steady_clock_ms, random)
        self._build_delays()
        self._build_transactions(random)
        self._build_services()
        self.pipeline: Final = self._build_pipeline()
        self.context.service = self.pipeline if gate is None else gate(self.pipeline)
        self._listeners: Final = Listeners(config.listeners, config.admin_listen)
        self.acceptors: Final = Acceptors(self.context, self.stopping, tls)

    def _build_pulls(self) -> None:
        config, store = self.config, self.store
        self.refusals = Refusals(self.statistics, config.region)
        self.budget = MemoryBudget(config.memory_budget_bytes, config.unread_high_bytes, self.statistics)
        self.pull_hold = PullHold(self.budget, filtered_hold_s=config.filtered_hold_s)
        self.pulls = PullAnswers(
            store,
            self.statistics,
            self.pull_hold,
            self.refusals,
            config.max_hold_s,
            self.budget,
        )
        self.worker = Worker(self.refusals, self.budget, self.pulls.serve_arrivals)
        self.group_commit: GroupCommit | None = None
        if config.store.durability is Durability.SYNC:
            self.group_commit = GroupCommit(store, self.worker, config.sync_flush_timeout_s, self.statistics)

    def _build_tables(self, steady_clock_ms: Callable[[], int], random: Random) -> None:
        config, clock_ms = self.config, self._clock_ms
        self._changed = Signal()
        self.topics = TopicTable(
            self._json_table("topics"), config, clock_ms=clock_ms, on_change=self._topics_changed, random=random
        )
        self.registration = Registration(config, self.topics, self.worker, self._address_at)
        settings = SubscriptionGroupTable(
            self._json_table("subscriptionGroup"), config, clock_ms=clock_ms, on_change=self._changed.set
        )
        offsets = ConsumerOffsetTable(
            self._json_table("consumerOffset"), clock_ms=clock_ms, max_group_topics=config.max_group_topics
        )
        self.routes = RouteTable(steady_clock_ms, self.statistics)
        self.routes.add_own(config.cluster_name, config.broker_name, self.topics.configs)
        self.key_values = KvTable(self._json_table("kvConfig"), on_change=self._changed.set)
        self.client_requests = ClientRequests(self.stopping, self.budget)
        self.notices = GroupNotices(self.worker, self.client_requests.notify_ids_changed)
        consumers = ConsumerGroups(
            clock_ms=steady_clock_ms,
            notify=self.notices.add,
            notifies=settings.notifies_members,
            charge=self.worker.charge,
            max_sql_characters=config.max_sql_characters,
        )
        producers = ProducerGroups(clock_ms=steady_clock_ms)
        locks = QueueLocks(clock_ms=steady_clock_ms, freed=consumers.notify_members, may_lock=self._may_lock)
        self.groups = Groups(settings, offsets, consumers, producers, locks, FormerOffsets(consumers), self.worker)

    def _topics_changed(self) -> None:
        self._changed.set()
        self.registration.topics_changed()
        self.worker.charge(0.0005)  # seconds, at least: the files of a topic are made in one step

    def _may_lock(self, group: str, queue: MessageQueue) -> bool:
        """Whether there are this group and this queue; others lock nothing: there is no end of them."""
        topic, broker_name, queue_id = queue
        config = self.topics.get(topic)
        queues = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        return broker_name == self.config.broker_name and 0 <= queue_id < queues and self.groups.is_known(group)

    def _json_table(self, name: str) -> JsonTable:
        return JsonTable(self.config.store.root / "config" / f"{name}.json", self.store.file_system)

    def _build_delays(self) -> None:
        store, statistics = self.store, self.statistics
        self.delayed_arrived = arrived = Signal()
        self.delivery = Delivery(store, statistics)
        self.schedule = Schedule(store, self._json_table("delayOffset"), statistics, self.delivery, arrived)
        self.timer = Timer(store, self._json_table("timerProgress"), statistics, self.delivery, arrived, self.config)
        self.scheduled_delivery = ScheduledDelivery(
            store, self.schedule, self.timer, self.delivery, arrived, self.group_commit, self.worker, self._clock_ms
        )

    def _build_transactions(self, random: Random) -> None:
        self.undecided = Undecided(
            self.store, self.groups.offsets, self.statistics, self.config, self.clock_watch.even_ms
        )
        self.transaction_checks = TransactionChecks(
            self.config,
            self.store,
            self.undecided,
            self.topics,
            self.groups.producers,
            self.client_requests,
            self.group_commit,
            self.worker,
            random,
            self.clock_watch.even_ms,
        )

    def _build_services(self) -> None:
        config, store = self.config, self.store
        connection_limits = ConnectionLimits(config, self.statistics, lambda: store.max_open_files, self.quotas)
        parts = self.worker, self.budget, self.refusals, self.client_requests, connection_limits
        self.context = ConnectionContext(config, self.statistics, *parts, self._forget)
        self.stalls = StallWatch(config, store, self.topics, self.groups, self.client_requests, self._clock_ms)
        self.housekeeping = Housekeeping(config, self.context, self.groups, self.routes, self.stalls, self.clock_watch)
        self.retention = RetentionService(store, config.retention_delay_s, self.clock_watch)
        saved = self.topics, self.groups.settings, self.groups.offsets, self.key_values
        self.table_saving = TableSaving(saved, self.worker, self._changed)

    def _build_methods(self, sends: SendProcessor) -> dict[int, Method]:
        config, store, topics, groups, statistics = self.config, self.store, self.topics, self.groups, self.statistics
        names = NameServerSettings(self._json_table("kvConfig").path)
        families: list[object] = [
            NameServerProcessors(self.routes, self.key_values, names),
            sends,
            ReplyProcessors(sends, groups.producers, self.client_requests, self.refusals, self._clock_ms),
            SendBackProcessor(sends),
            RecallProcessor(sends),
            TransactionProcessors(store, topics, self.undecided, self.group_commit),
            PullProcessor(store, topics, groups, self.worker, self.pulls),
            OffsetProcessors(store, topics, groups),
            QueryProcessors(store, groups, config.max_frame_bytes, self.group_commit),
            ClientProcessors(config, topics, groups),
            TopicProcessors(store, topics, groups, statistics, self.pulls, self.registration),
            GroupProcessors(groups.settings, groups.offsets, statistics),
            StoreProcessors(groups.offsets, self.schedule.offsets, self.retention),
            SettingsProcessor(Settings(config, statistics.start_ms), topics, self._clock_ms),
            RuntimeProcessor(
                store, statistics, groups, self.connections, self.stalls, self.schedule.offsets, self.clock_watch
            ),
            StatisticsProcessors(config, store, topics, groups, statistics, self.stalls, self._clock_ms),
            RelayProcessors(store, topics, groups, self.client_requests, self.refusals, config.broker_name),
        ]
        if self.accounts is not None:
            families.append(AclProcessors(config, self.accounts, self.refusals, self.worker))
        return methods_of(families)

    def _build_pipeline(self) -> Pipeline:
        config, store, topics, statistics = self.config, self.store, self.topics, self.statistics
        groups, waiting = self.groups.settings, (self.schedule, self.timer, self.undecided)
        sends = SendProcessor(config, store, topics, groups, *waiting, statistics, self.group_commit)
        return Pipeline(
            self.context,
            self.routes,
            self._build_methods(sends),
            accounts=self.accounts,
            audit=self.audit,
            quotas=self.quotas,
            plain_requests=PlainRequests(sends),
            overload=Overload(self.config, self.statistics, self.refusals),
        )

    @property
    def addresses(self) -> dict[str, tuple[Address, Address]]:
        """Broker and name-server address of each listener, with the ports really used."""
        return self._listeners.addresses

    @property
    def admin_address(self) -> Address | None:
        """Where administration has a listener of its own, with the port really used."""
        return self._listeners.admin

    @property
    def connections(self) -> set[Connection]:
        """Open connections."""
        return self.context.connections

    def clock_moved(self) -> None:
        """Look at once for what is due by the wall clock; else that takes up to a second."""
        self.delayed_arrived.set()
        self.transaction_checks.clock_moved.set()

    def load(self) -> None:
        """Read the tables, and save at once the offsets that had to be lowered.

        Otherwise the next start could find an old offset again, after new messages have been stored at it.

        Raises:
            ConfigError: the file of accounts or quotas is missing or wrong, or that of the audit cannot be written.
            StoreLayoutError: a table and its previous generation cannot be read.
        """
        groups = self.groups
        self.clock_watch.begin(self.store.commit_log.store_timestamp)
        for file in self._watched_files:
            file.load()
        if self.audit is not None:
            self.audit.open()
        self.topics.load()
        self.key_values.load()
        groups.settings.load()
        groups.offsets.load()
        self.schedule.load()
        groups.offsets.restrict(self.store.reader.max_offset_in_queue)
        self.timer.load()
        self.topics.adopt((queue.topic, queue.queue_id) for queue in self.store.queues)
        self.topics.adopt(self.undecided.load())
        save_now((groups.offsets, self.schedule.offsets, self.timer.progress))

    def save_tables(self) -> None:
        """Write the tables that changed, before the broker ends."""
        self.table_saving.save_now()
        self.scheduled_delivery.saving.save_now()
        if self.audit is not None:
            self.audit.close()

    async def listen(self) -> list[Endpoint]:
        """Open all listening sockets, or none.

        Raises:
            ConfigError: an address cannot be bound.
        """
        await self._listeners.resolve_advertised()
        return self._listeners.open()

    def _address_at(self, local_ip: str) -> str:
        """Return the address that the broker registers: that of its first listener."""
        listener = self.config.listeners[0]
        port = self.addresses[listener.name][0].port
        if not listener.broker.is_wildcard:
            local_ip = listener.broker.host
        return str(listener.advertised(port) or Address(local_ip, port))

    async def serve(
        self, endpoints: list[Endpoint], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until :attr:`stopping` is set; started when connections are accepted."""
        config, store = self.config, self.store
        async with trio.open_nursery() as services:  # 3. end last
            services.start_soon(self.pulls.run, self.worker)
            services.start_soon(self.notices.run)
            services.start_soon(self.housekeeping.run)
            services.start_soon(self.table_saving.run, config.persist_offsets_interval_s)
            services.start_soon(self.retention.run)
            services.start_soon(flush_consume_queues, store, self.worker, self.statistics.flushes)
            services.start_soon(Indexing(store.index, self.worker, self.statistics).run)
            services.start_soon(self.scheduled_delivery.run, config.persist_delay_offsets_interval_s)
            services.start_soon(self.transaction_checks.run)
            for file in self._watched_files:
                services.start_soon(file.run)
            if self.audit is not None:
                services.start_soon(self.audit.run)
            services.start_soon(log_exposure, config.exposure)
            if self.group_commit is None:
                services.start_soon(flush_commit_log, store, self.worker, self.statistics.flushes)
            else:
                services.start_soon(self.group_commit.run)
            async with trio.open_nursery() as server:
                accepting = trio.Event()
                server.start_soon(self.acceptors.run, endpoints, accepting.set, self._has_unfinished_answers)
                await accepting.wait()
                services.start_soon(self.registration.run)
                await self.registration.wait_tried()
                self.is_serving = True
                task_status.started()
            services.cancel_scope.cancel()

    def _has_unfinished_answers(self) -> bool:
        return self.group_commit is not None and bool(self.group_commit.waiting)

    def _forget(self, connection: Connection, closed_by_peer: bool) -> None:
        self.groups.forget(connection, closed_by_peer)
        self.routes.lost(connection)
