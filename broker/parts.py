"""The parts of a broker, built in order; nothing is read or opened yet."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from triomq.broker.access import Access
from triomq.broker.accounts import Accounts
from triomq.broker.addresses import Address
from triomq.broker.audit import Audit
from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import Delivery
from triomq.broker.delayed.levels import Schedule, ScheduledDelivery
from triomq.broker.delayed.timer import Timer
from triomq.broker.groups.groups import Groups
from triomq.broker.limits.overload import Overload
from triomq.broker.limits.quotas import Quotas
from triomq.broker.namesrv.kv_table import KvTable, NameServerSettings
from triomq.broker.namesrv.route_table import RouteTable
from triomq.broker.network.connection import Connection, ConnectionContext, Service
from triomq.broker.network.listeners import Listeners
from triomq.broker.pipeline import Pipeline, methods_of
from triomq.broker.processors import acl, admin, admin_stats, client, namesrv, pull, query, relay, settings, waiting
from triomq.broker.processors.plain_requests import PlainRequests
from triomq.broker.processors.pull_hold import PullHold
from triomq.broker.processors.send import SendProcessor
from triomq.broker.replication import asking, comparison, master, metadata, promoting, slave, status
from triomq.broker.saved_table import SavedTable, config_file
from triomq.broker.services import flush, group_commit, housekeeping, registration, stalls
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.topics import TopicTable
from triomq.broker.transactions.checks import TransactionChecks
from triomq.broker.transactions.undecided import Undecided
from triomq.broker.work import Signal
from triomq.protocol.errors import RefusedError
from triomq.storage.aside import set_aside
from triomq.storage.config import Durability
from triomq.storage.message_store import MessageStore, system_clock_ms

Gate: TypeAlias = Callable[[Service], Service]
"""Replaces what serves the requests: for a broker that is to refuse some."""


_Shared: TypeAlias = tuple[
    BrokerConfig, MessageStore, TopicTable, Groups, BrokerStatistics, ConnectionContext, Access, Callable[[], int]
]
"""The fields of :class:`BrokerPart`, in order."""


class Reopening(NamedTuple):
    """How a broker opens again.

    Attributes:
        reason: for the log.
        meanwhile: called while the store is closed, in a worker thread.
        changes: of its settings.
    """

    reason: str
    meanwhile: Callable[[], None]
    changes: Mapping[str, Any]


class BrokerParts:
    """The parts of a broker, and how they call each other.

    Attributes:
        config: its settings.
        store: messages and queues on disk.
        context: what the connections share.
        pulls: answers and holds pulls.
        group_commit: holds the answers to sends until disk or slave have their messages; ``None``: they wait for none.
        master: sends the log to slaves; ``None``: it listens for none.
        topics, groups: all topics; settings, offsets, members and locks of groups.
        routes: the brokers that registered here, and this one.
        delayed: the delivery of delayed messages: by level, and by time.
        transactions: the checks of undecided transactions.
        housekeeping, retention, registration, table_saving: services.
        admin: the requests that administer topics and groups.
        slave, metadata: copy the log and the tables of a slave's master; ``None``: this is a master.
        copies: how far the copies of the log are.
        pipeline: serves the requests.
        statistics, worker, connections: those of the context.
        listeners: the listening ports.
        addresses: broker and name-server address of each listener, with the ports really used.
        stopping: set to stop it.
        ending: set when it is to stop, or to open again.
        reopening: how it opens again once it has stopped, if it does.
        is_kept: whether it can open again.
        ha_address: where slaves fetch the log, with the port really used; ``None``: nowhere.
    """

    ha_address: Address | None = None
    reopening: Reopening | None = None
    is_kept = False

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock_ms: Callable[[], int] = system_clock_ms,
        steady_clock_ms: Callable[[], int] = housekeeping.steady_ms,
        random: Random | None = None,
        gate: Gate | None = None,
        elapsed_clock_ms: Callable[[], int] = housekeeping.elapsed_ms,
    ) -> None:
        """Build the parts; nothing is read or opened."""
        random = random or Random()  # noqa: S311  # spreads load, protects nothing
        changed, clocks = Signal(), housekeeping.ClockWatch(clock_ms, elapsed_clock_ms)
        self.stopping, self.ending = trio.Event(), trio.Event()
        self.statistics: Final = BrokerStatistics(clock_ms())
        access = _access(config, self.statistics, clock_ms, steady_clock_ms)
        self.config, self.store = config, store
        self.context: Final = self._build_context(access.quotas)
        self.worker, self.connections = self.context.worker, self.context.connections
        self.topics: Final = TopicTable(config_file(store, "topics"), config, clock_ms, self._topics_changed, random)
        self.groups: Final = Groups(config, store, self.context, self.topics, changed, clock_ms, steady_clock_ms)
        shared = (config, store, self.topics, self.groups, self.statistics, self.context, access, clock_ms)
        self.group_commit, self.master = self._build_safety(shared)
        self.pulls: Final = self._build_pulls(shared)
        self.routes: Final = RouteTable(steady_clock_ms, self.statistics)
        self.routes.add_own(config.cluster_name, config.broker_name, config.broker_id, self.topics.configs)
        self.delayed: Final = self._build_delayed(shared)
        undecided = Undecided(store, self.groups.offsets, self.statistics, config, clocks.even_ms)
        self.transactions: Final = TransactionChecks(*shared, undecided, self.group_commit, random)
        self.housekeeping: Final = housekeeping.Housekeeping(*shared, self.routes, stalls.StallWatch(*shared), clocks)
        self.retention: Final = housekeeping.RetentionService(*shared, clocks)
        self.registration: Final = registration.Registration(*shared, self._addresses_at)
        key_values = KvTable(config_file(store, "kvConfig"), on_change=changed.set)
        self.table_saving: Final = self._build_table_saving(key_values, changed)
        self.admin: Final = admin.AdminProcessors(*shared, self.pulls, self.registration, self.delayed, self.retention)
        self.slave, self.metadata = self._build_slave(shared, access.accounts)
        self.copies: Final = status.Copies(*shared, self.master, self.slave)
        self.pipeline: Final = self._build_pipeline(key_values, shared, access)
        self.context.service = self.pipeline if gate is None else gate(self.pipeline)
        self.listeners: Final = Listeners(config.listeners, admin=config.admin_listen, fast=config.fast_listen)
        self.addresses: Final = self.listeners.addresses

    def _build_context(self, quotas: Quotas | None) -> ConnectionContext:
        return ConnectionContext(
            self.config,
            self.statistics,
            self.stopping,
            self._forget,
            region=self.config.region,
            quotas=quotas,
            files_of_store=lambda: self.store.max_open_files,
        )

    def _build_safety(self, shared: _Shared) -> tuple[group_commit.GroupCommit | None, master.Master | None]:
        """Build the group commit, if answers wait for disk or slave, and the master, if slaves may connect."""
        config, is_sync = self.config, self.config.role == "sync-master"
        commit = None
        if is_sync or self.store.config.durability is Durability.SYNC:
            commit = group_commit.GroupCommit(*shared)
        if config.ha_listen is None:
            return commit, None
        return commit, master.Master(*shared, commit if is_sync else None)

    def _build_pulls(self, shared: _Shared) -> pull.PullAnswers:
        hold = PullHold(self.context.budget, filtered_hold_s=self.config.filtered_hold_s)
        pulls = pull.PullAnswers(*shared, hold, self.context.budget)
        self.worker.serve_arrivals = pulls.serve_arrivals
        return pulls

    def _build_delayed(self, shared: _Shared) -> ScheduledDelivery:
        delivery, arrived = Delivery(self.store, self.statistics), Signal()
        schedule = Schedule(delivery, config_file(self.store, "delayOffset"), arrived)
        timer = Timer(delivery, config_file(self.store, "timerProgress"), arrived, self.config)
        return ScheduledDelivery(*shared, schedule, timer, delivery, arrived, self.group_commit)

    def _build_table_saving(self, key_values: KvTable, changed: Signal) -> flush.TableSaving:
        saved: list[SavedTable] = [self.topics, key_values, self.groups.settings, self.groups.offsets]
        if self.config.is_slave:  # it delivers nothing, so that nothing must be flushed before
            saved += (self.delayed.schedule.offsets, self.delayed.timer.progress)
        return flush.TableSaving(saved, self.worker, changed)

    def _build_slave(
        self, shared: _Shared, accounts: Accounts | None
    ) -> tuple[slave.Slave | None, metadata.MetadataCopy | None]:
        if not self.config.is_slave:
            return None, None
        port = asking.MasterPort(self.registration, accounts)
        compared = comparison.Comparison(self.store, self.worker, port)
        copy = slave.Slave(*shared, self.registration, self.group_commit, compared, self._set_aside)
        return copy, metadata.MetadataCopy(self.admin, copy, self.table_saving, port)

    def _build_pipeline(self, key_values: KvTable, shared: _Shared, access: Access) -> Pipeline:
        delayed, undecided = self.delayed, self.transactions.undecided
        sends = SendProcessor(*shared, delayed.schedule, delayed.timer, undecided, self.group_commit)
        methods = methods_of(self._families(sends, key_values, shared, access), is_slave=self.config.is_slave)
        plain_requests = None if self.config.is_slave else PlainRequests(sends)
        overload = Overload(self.config, self.statistics, self.context.refusals)
        return Pipeline(self.context, self.routes, methods, access, plain_requests, overload)

    def _families(self, sends: SendProcessor, key_values: KvTable, shared: _Shared, access: Access) -> Iterator[object]:
        """Yield one object for each family of requests."""
        routes, of_names = self.routes, NameServerSettings(config_file(self.store, "kvConfig").path)
        yield sends
        yield waiting.WaitingProcessors(*shared, sends)
        yield pull.PullProcessor(*shared, self.pulls)
        yield query.QueryProcessors(*shared, sends)
        yield client.ClientProcessors(*shared)
        yield namesrv.NameServerProcessors(
            routes, key_values, of_names, access, lambda host: self._addresses_at(host)[1]
        )
        yield self.admin
        yield settings.SettingsProcessor(*shared)
        yield admin_stats.StatisticsProcessors(*shared, self.housekeeping, self.delayed.schedule.offsets)
        yield relay.RelayProcessors(*shared, sends)
        yield self.copies
        yield promoting.PromotionProcessors(*shared, self.slave, self.registration, self.reopen)
        if access.accounts is not None:
            yield acl.AclProcessors(*shared, access.accounts)

    def _addresses_at(self, local_ip: str) -> tuple[str, str]:
        """Return the addresses that the broker registers: that of its first listener, and that for slaves."""
        listener, ha = self.config.listeners[0], self.ha_address or self.config.ha_listen
        port = self.addresses[listener.name][0].port
        ip = local_ip if listener.broker.is_wildcard else listener.broker.host
        address = listener.advertised(port) or Address(ip, port)
        if ha is None:
            return str(address), str(Address(address.host, port + 1))  # as of RocketMQ's; nothing listens there
        return str(address), str(Address(local_ip if ha.is_wildcard else ha.host, ha.port))

    def reopen(self, reason: str, meanwhile: Callable[[], None] = lambda: None, **changes: Any) -> None:
        """End as at a stop, then open again in this process, at the same ports.

        Args:
            reason: for the log.
            meanwhile: called while the store is closed, in a worker thread; an error ends the process.
            changes: settings that become others.

        Raises:
            RefusedError: it cannot open again, or does so already.
        """
        if not self.is_kept or self.ending.is_set():
            raise RefusedError("this broker stops or cannot open again: restart its process")
        self.reopening = Reopening(reason, meanwhile, changes)
        self.ending.set()

    def _set_aside(self, begin: int) -> None:
        """Open again without the log from ``begin`` on, which the master does not have; raises as :meth:`reopen`."""
        store = self.store
        work = partial(set_aside, store.config, begin, store.commit_log.max_offset, store.file_system)
        self.reopen(f"the log from {begin} on is set aside", work)

    def _topics_changed(self) -> None:
        self.table_saving.changed.set()
        self.registration.register_soon()
        self.worker.charge(0.0005)  # seconds, at least: the files of a topic are made in one step

    def _forget(self, connection: Connection, closed_by_peer: bool) -> None:
        self.groups.forget(connection, closed_by_peer)
        self.routes.lost(connection)


def _access(
    config: BrokerConfig, statistics: BrokerStatistics, clock_ms: Callable[[], int], steady_clock_ms: Callable[[], int]
) -> Access:
    return Access(
        statistics,
        None if config.audit is None else Audit(config, clock_ms),
        None if config.acl is None else Accounts(config.acl),
        None if config.quotas is None else Quotas(config.quotas, steady_clock_ms, has_accounts=config.has_accounts),
    )
