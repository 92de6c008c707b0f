"""Everything that a broker knows of groups."""

from collections.abc import Callable
from typing import Final

import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.groups.client_ids import ClientIds
from triomq.broker.groups.members import GROUP_BYTES, ConsumerGroup, ConsumerGroups, ProducerGroups
from triomq.broker.groups.queue_locks import CLOSE_GRACE_S, QueueLocks
from triomq.broker.groups.subscriptions import Filters
from triomq.broker.groups.tables import ConsumerOffsetTable, SubscriptionGroupTable
from triomq.broker.network.connection import Connection, ConnectionContext
from triomq.broker.saved_table import config_file
from triomq.broker.topics import TopicTable
from triomq.broker.work import Signal, Worker
from triomq.protocol.codes import ResponseCode
from triomq.protocol.errors import RefusedError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.names import is_broker_group
from triomq.protocol.record.consume_queue_unit import UNIT_SIZE
from triomq.protocol.requests.messages import PullMessageRequestHeader
from triomq.protocol.requests.offsets import UpdateConsumerOffsetRequestHeader
from triomq.storage.message_store import MessageStore
from triomq.storage.reading.cold_read import PAUSE, Work

MAX_QUEUE_OFFSET: Final = (2**63 - 1) // UNIT_SIZE
"""Positions in a consume queue have 63 bits."""

_NOTIFIED_AT_ONCE: Final = 32  # members, each with a write: 0.5 ms
_MAX_TOPICS: Final = 1000  # of one connection, which may pull any number of topics that do not exist


class GroupNotices:
    """Notifies the members of changed groups: soon, and once for all changes until then.

    Each member gets a notice of each change, so members that join or leave together would cost the square of their
    number.
    """

    def __init__(self, worker: Worker, notify: Callable[[Connection, str], None]) -> None:
        """``notify`` queues the notice for a member."""
        self._worker = worker
        self._notify = notify
        self._changed: dict[str, ConsumerGroup] = {}
        self._signal = Signal()

    def add(self, group: ConsumerGroup) -> None:
        """Notify the members of a changed group soon."""
        self._changed[group.name] = group
        self._signal.set()

    def notify_members(self) -> Work[None]:
        """Notify the members of all changed groups; pauses after some of them."""
        while self._changed:
            group = self._changed.pop(next(iter(self._changed)))
            members = list(group.members)
            for begin in range(0, len(members), _NOTIFIED_AT_ONCE):
                for connection in members[begin : begin + _NOTIFIED_AT_ONCE]:
                    self._notify(connection, group.name)
                yield PAUSE

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._signal.wait()
            self._signal.clear()
            await self._worker.run(self.notify_members())


class FormerOffsets:
    """Offsets that members of consumer groups took from a topic before it was deleted, and perhaps created again.

    The queues of the new topic begin at 0, so an old offset in it would skip its first messages.  RocketMQ reads and
    stores such an offset.  Here a member that had a topic when it was deleted, or pulls one that does not exist, must
    begin each queue again: until it asks for the stored offset of a queue, or pulls its first message, its pulls there
    are answered with PULL_OFFSET_MOVED and the offset of that message, and its commits are refused.

    Readers that are no members of a group choose their offsets themselves; nothing is refused to them.  A slave refuses
    nothing to anybody: its topics may come later than their messages.
    """

    def __init__(self, consumers: ConsumerGroups, *, is_slave: bool = False) -> None:
        self._consumers = consumers
        self._is_slave = is_slave
        #: By connection, then topic and group: the queues that the member has begun again.
        self._begun: dict[Connection, dict[tuple[str, str], set[int]]] = {}

    def topic_deleted(self, topic: str) -> None:
        """Distrust the offsets of all members that subscribe to a topic, from now on."""
        for group in self._consumers:
            if topic in group.subscriptions:
                for connection in group.members:
                    self._distrust(connection, group.name, topic)

    def topic_missing(self, connection: Connection, group: str, topic: str) -> None:
        """Distrust the offsets of a member that pulls a topic that does not exist."""
        if group in self._consumers.of(connection):
            self._distrust(connection, group, topic)

    def _distrust(self, connection: Connection, group: str, topic: str) -> None:
        if self._is_slave:
            return
        topics = self._begun.setdefault(connection, {})
        if len(topics) < _MAX_TOPICS or (topic, group) in topics:
            topics[topic, group] = set()

    def refuses_pull(self, connection: Connection, header: PullMessageRequestHeader, min_offset: int) -> bool:
        """Whether the offset of a pull may be of a deleted topic: the member has not begun the queue again."""
        begun = self._queues(connection, header.topic, header.consumer_group)
        if begun is None or header.queue_id in begun:
            return False
        if header.queue_offset <= min_offset:
            begun.add(header.queue_id)
            return False
        return True

    def refuses_commit(
        self, connection: Connection, header: UpdateConsumerOffsetRequestHeader, min_offset: int
    ) -> bool:
        """Whether an offset to commit may be of a deleted topic."""
        begun = self._queues(connection, header.topic, header.consumer_group)
        return begun is not None and header.queue_id not in begun and header.commit_offset > min_offset

    def begin(self, connection: Connection, group: str, topic: str, queue_id: int) -> None:
        """Trust the offsets of a member in a queue again: it asks where to begin."""
        if (begun := self._queues(connection, topic, group)) is not None:
            begun.add(queue_id)

    def _queues(self, connection: Connection, topic: str, group: str) -> set[int] | None:
        topics = self._begun.get(connection)
        return None if topics is None else topics.get((topic, group))

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._begun.pop(connection, None)


class Groups:
    """The tables of consumer and producer groups.

    Attributes:
        settings: configurations of consumer groups.
        offsets: how far they have consumed.
        filters: those of their subscriptions.
        consumers, producers: their live members.
        client_ids: the connections and accounts of these.
        locks: which member may consume which queue in order.
        former: which members may have offsets of deleted topics.
        notices: notifies the members of changed groups.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        context: ConnectionContext,
        topics: TopicTable,
        changed: Signal,
        clock_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        """``changed`` is set when the settings must be saved."""
        self._config, self._topics, self._worker = config, topics, context.worker
        self.settings: Final = SubscriptionGroupTable(
            config_file(store, "subscriptionGroup"), config, clock_ms=clock_ms, on_change=changed.set
        )
        self.offsets: Final = ConsumerOffsetTable(
            config_file(store, "consumerOffset"), clock_ms=clock_ms, max_group_topics=config.max_group_topics
        )
        self.notices: Final = GroupNotices(context.worker, context.client_requests.notify_ids_changed)
        self.filters: Final = Filters(context.worker, config.max_sql_characters)
        self.consumers: Final = ConsumerGroups(
            clock_ms=steady_ms, notify=self.notices.add, notifies=self.settings.notifies_members, filters=self.filters
        )
        self.client_ids: Final = ClientIds()
        self.producers: Final = ProducerGroups(self.client_ids, clock_ms=steady_ms)
        self.locks: Final = QueueLocks(clock_ms=steady_ms, freed=self.consumers.notify_members, may_lock=self._may_lock)
        self.former: Final = FormerOffsets(self.consumers, is_slave=config.is_slave)

    def _may_lock(self, group: str, queue: MessageQueue) -> bool:
        """Whether group and queue exist: a table of locks of others could grow without end."""
        topic = self._topics.get(queue.topic)
        if topic is None or queue.broker_name != self._config.broker_name or not self.is_known(group):
            return False
        return 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)

    def is_known(self, group: str) -> bool:
        """Whether a group has settings or live members."""
        return self.settings.get(group) is not None or self.consumers.get(group) is not None

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store an offset that a client sent for a queue that exists.

        Raises:
            RefusedError: the group is the broker's, no queue can be that long, or too many groups have offsets in too
                many topics.
        """
        check_changeable(group)
        if queue_offset > MAX_QUEUE_OFFSET:
            raise RefusedError(f"offset {queue_offset} is illegal: queues end at {MAX_QUEUE_OFFSET}")
        self.offsets.check_room(group, topic)
        self.offsets.commit(group, topic, queue_id, queue_offset)

    def count_kept(self, connection: Connection) -> None:
        """Count what the groups of a connection take against the memory budget; do so after each change."""
        producers = len(self.producers.of(connection))
        connection.count_kept(self.consumers.kept_bytes(connection) + producers * GROUP_BYTES)

    def forget(self, connection: Connection, closed_by_peer: bool) -> None:
        """Remove a closed connection from its groups and notify the remaining members."""
        self.consumers.forget(connection)
        self.producers.forget(connection)
        self.client_ids.forget(connection)
        self.former.forget(connection)
        if connection in self.locks.groups_of:
            self._worker.nursery.start_soon(self._release_locks, connection, closed_by_peer)

    async def _release_locks(self, connection: Connection, closed_by_peer: bool) -> None:
        await trio.sleep(CLOSE_GRACE_S)
        release = self.locks.release(connection, self.consumers.connection_of, closed_by_peer=closed_by_peer)
        wait_s = await self._worker.run(release)
        if wait_s:
            await trio.sleep(wait_s)
            await self._worker.run(self.locks.free_ended())


def check_changeable(group: str) -> None:
    """Check that clients may change a group.

    RocketMQ allows changes of the broker's groups, too.  If the offset of transactions is too high, the next start
    forgets those that are undecided.

    Raises:
        RefusedError: the group is the broker's.
    """
    if is_broker_group(group):
        raise RefusedError(
            f"group {group} belongs to the broker: clients may neither delete it nor change its offsets",
            ResponseCode.NO_PERMISSION,
        )
