"""The parts of a broker that nearly all others use."""

from collections.abc import Callable
from dataclasses import dataclass

from triomq.broker.access import Access
from triomq.broker.config import BrokerConfig
from triomq.broker.groups.groups import Groups
from triomq.broker.network.connection import ConnectionContext
from triomq.broker.statistics.counters import BrokerStatistics
from triomq.broker.topics import TopicTable
from triomq.storage.message_store import MessageStore


@dataclass(slots=True, eq=False)
class BrokerPart:
    """Base of processors and services: each declares only the parts that it has besides.

    Attributes:
        config: the settings.
        store: messages and queues on disk.
        topics, groups: all topics; settings, offsets, members and locks of groups.
        statistics: counters and durations.
        context: what the connections share.
        access: who may do what.
        clock_ms: the wall clock.
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: Groups
    statistics: BrokerStatistics
    context: ConnectionContext
    access: Access
    clock_ms: Callable[[], int]
