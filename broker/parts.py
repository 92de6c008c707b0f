"""The parts of a broker: each function builds some of them from those that it uses, and returns them.

``server.py`` calls them in order and gives the parts their life.
"""

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import trio

from triomq.broker.accounts import Accounts
from triomq.broker.audit import Audit
from triomq.broker.config import BrokerConfig
from triomq.broker.delayed.delivery import Delivery
from triomq.broker.delayed.levels import Schedule, ScheduledDelivery
from triomq.broker.delayed.timer import Timer
from triomq.broker.groups.groups import FormerOffsets, GroupNotices, Groups
from triomq.broker.groups.members import ConsumerGroups, ProducerGroups
from triomq.broker.groups.queue_locks import QueueLocks
from triomq.broker.groups.tables import ConsumerOffsetTable, SubscriptionGroupTable
from triomq.broker.limits.peers import ConnectionLimits, MemoryBudget
from triomq.broker.limits.quotas import Quotas
from triomq.broker.limits.refused import Refusals
from triomq.broker.network.client_requests import ClientRequests
from triomq.broker.network.connection import Connection, ConnectionContext
from triomq.broker.pipeline import Access
from triomq.broker.processors.pull import PullAnswers
from triomq.broker.processors.pull_hold import PullHold
from triomq.broker.services.flush import GroupCommit
from triomq.broker.services.housekeeping import ClockWatch
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.topics import TopicTable
from triomq.broker.transactions.checks import TransactionChecks
from triomq.broker.transactions.undecided import Undecided
from triomq.broker.work import Signal, Worker
from triomq.protocol.message_queue import MessageQueue
from triomq.storage.config import Durability
from triomq.storage.files.json_table import JsonTable
from triomq.storage.message_store import MessageStore

Clock: TypeAlias = Callable[[], int]
"""Returns milliseconds."""


def json_table(store: MessageStore, name: str) -> JsonTable:
    """Return a file of the folder ``config`` of a store."""
    return JsonTable(store.config.root / "config" / f"{name}.json", store.file_system)


def build_access(config: BrokerConfig, clock_ms: Clock, steady_ms: Clock) -> Access:
    """Build the accounts, quotas and audit that are configured; nothing is read or opened."""
    has_accounts = config.acl is not None
    return Access(
        None if config.acl is None else Accounts(config.acl),
        None if config.quotas is None else Quotas(config.quotas, steady_ms, has_accounts=has_accounts),
        None if config.audit is None else Audit(config, clock_ms),
    )


def build_network(
    config: BrokerConfig,
    store: MessageStore,
    statistics: BrokerStatistics,
    quotas: Quotas | None,
    stopping: trio.Event,
    forget: Callable[[Connection, bool], None],
) -> tuple[ConnectionContext, PullAnswers]:
    """Build what connections share, and the answers of pulls, which the worker gives at the end of each step."""
    refusals = Refusals(statistics, config.region)
    budget = MemoryBudget(config.memory_budget_bytes, config.unread_high_bytes, statistics)
    hold = PullHold(budget, filtered_hold_s=config.filtered_hold_s)
    pulls = PullAnswers(store, statistics, hold, refusals, config.max_hold_s, budget)
    worker = Worker(refusals, budget, pulls.serve_arrivals)
    client_requests = ClientRequests(stopping, budget)
    connection_limits = ConnectionLimits(config, statistics, lambda: store.max_open_files, quotas)
    context = ConnectionContext(
        config,
        statistics,
        worker,
        budget,
        refusals=refusals,
        client_requests=client_requests,
        connection_limits=connection_limits,
        forget=forget,
    )
    return context, pulls


def build_group_commit(store: MessageStore, context: ConnectionContext, timeout_s: float) -> GroupCommit | None:
    """Build the flushes that answers wait for; ``None``: they do not wait."""
    if store.config.durability is Durability.SYNC:
        return GroupCommit(store, context.worker, timeout_s, context.statistics)
    return None


def build_groups(
    config: BrokerConfig,
    store: MessageStore,
    context: ConnectionContext,
    topics: TopicTable,
    changed: Signal,
    clock_ms: Clock,
    steady_ms: Clock,
) -> Groups:
    """Build the tables of groups; ``changed`` is set when their settings must be saved."""
    settings = SubscriptionGroupTable(
        json_table(store, "subscriptionGroup"), config, clock_ms=clock_ms, on_change=changed.set
    )
    offsets = ConsumerOffsetTable(
        json_table(store, "consumerOffset"), clock_ms=clock_ms, max_group_topics=config.max_group_topics
    )
    notices = GroupNotices(context.worker, context.client_requests.notify_ids_changed)
    consumers = ConsumerGroups(
        clock_ms=steady_ms,
        notify=notices.add,
        notifies=settings.notifies_members,
        charge=context.worker.charge,
        max_sql_characters=config.max_sql_characters,
    )

    def may_lock(group: str, queue: MessageQueue) -> bool:
        """Whether group and queue exist: a table of locks of others could grow without end."""
        topic = topics.get(queue.topic)
        if topic is None or queue.broker_name != config.broker_name or not groups.is_known(group):
            return False
        return 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)

    producers = ProducerGroups(clock_ms=steady_ms)
    locks = QueueLocks(clock_ms=steady_ms, freed=consumers.notify_members, may_lock=may_lock)
    groups = Groups(settings, offsets, consumers, producers, locks, FormerOffsets(consumers), notices, context.worker)
    return groups


def build_delayed(
    config: BrokerConfig,
    store: MessageStore,
    context: ConnectionContext,
    group_commit: GroupCommit | None,
    clock_ms: Clock,
) -> ScheduledDelivery:
    """Build the delivery of delayed messages."""
    delivery, arrived = Delivery(store, context.statistics), Signal()
    schedule = Schedule(delivery, json_table(store, "delayOffset"), arrived)
    timer = Timer(delivery, json_table(store, "timerProgress"), arrived, config)
    return ScheduledDelivery(schedule, timer, delivery, arrived, group_commit, context.worker, clock_ms)


def build_transactions(
    config: BrokerConfig,
    store: MessageStore,
    context: ConnectionContext,
    topics: TopicTable,
    groups: Groups,
    group_commit: GroupCommit | None,
    random: Random,
    clocks: ClockWatch,
) -> TransactionChecks:
    """Build the checks of undecided transactions."""
    undecided = Undecided(store, groups.offsets, context.statistics, config, clocks.even_ms)
    requests, worker = context.client_requests, context.worker
    return TransactionChecks(undecided, topics, groups.producers, requests, group_commit, worker, random)
