"""The members of producer and consumer groups: connections whose clients send heartbeats.

Source: behaviour.md A.12; ConsumerManager.java, ProducerManager.java.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from triomq.broker.groups.client_ids import ClientIds
from triomq.broker.groups.subscriptions import Filters, Subscription, newest, size_bytes
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.client import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel, SubscriptionData
from triomq.protocol.bodies.group_health import SubscriptionDifference, subscription_differences

LOGGER: Final = logging.getLogger("triomq.broker.groups.members")

_MAX_PEERS: Final = 20  # of one client id, in a log line
_MAX_COMPARED: Final = 8192  # characters of expressions; groups beyond them wait for the next check
GROUP_BYTES: Final = 512  # of a member's entries in one group


@dataclass(slots=True)
class Member:
    """One connection in one group."""

    client_id: str
    joined_ms: int  # of the clock of its table
    last_heartbeat_ms: int
    subscriptions: list[SubscriptionData] = field(default_factory=list)  # of a consumer: its own


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group and their subscriptions, as of the newest heartbeat.

    Attributes:
        duplicate_ids: client ids of more than one live connection, as of the newest check.
        differences: topics to which members subscribe differently, likewise.
    """

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    members: dict[Connection, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    duplicate_ids: tuple[str, ...] = ()
    differences: tuple[SubscriptionDifference, ...] = ()

    def client_ids(self) -> list[str]:
        """Return the ids of all members, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def shared_ids(self) -> str | None:
        """Name the client ids that several clients use, with their addresses; ``None`` without any."""
        return "; ".join(f"{client_id} at {self.peers_of(client_id)}" for client_id in self.duplicate_ids) or None

    def peers_of(self, client_id: str) -> str:
        """Return the addresses of a client id, at most :data:`_MAX_PEERS`."""
        peers = [connection.peer for connection, member in self.members.items() if member.client_id == client_id]
        return ", ".join(peers[:_MAX_PEERS])


@dataclass(eq=False, kw_only=True)
class ConsumerGroups:
    """All consumer groups with live members.

    Attributes:
        clock_ms: a steady clock: if the wall clock were set forward, all members would be silent for too long.
        notify: takes a group that has changed, to notify its members.
        notifies: whether the settings of a group allow such notices.
        filters: those of the subscriptions.
    """

    clock_ms: Callable[[], int]
    notify: Callable[[ConsumerGroup], None]
    notifies: Callable[[str], bool]
    filters: Filters

    def __post_init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, set[str]] = {}
        self._unchecked: set[str] = set()

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(self._groups.values())

    def get(self, group: str) -> ConsumerGroup | None:
        """Return a group that has members."""
        return self._groups.get(group)

    def of(self, connection: Connection) -> dict[str, list[SubscriptionData]]:
        """Return the groups that a connection is a member of, with its subscriptions in each."""
        names = self._groups_of.get(connection, ())
        return {name: self._groups[name].members[connection].subscriptions for name in names}

    def heartbeat(self, connection: Connection, client_id: str, data: ConsumerData) -> None:
        """Store the heartbeat of a member; notify all members of a change."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        now_ms = self.clock_ms()
        member = group.members.get(connection)
        changed = member is None
        if member is None:
            member = group.members[connection] = Member(client_id, now_ms, now_ms)
            self._groups_of.setdefault(connection, set()).add(group.name)
            LOGGER.info("consumer joined group=%s client_id=%s peer=%s", group.name, client_id, connection.peer)
        member.client_id, member.last_heartbeat_ms = client_id, now_ms
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        wanted = newest(data.subscription_data_set, member.subscriptions, group.subscriptions)
        if changed or member.subscriptions != wanted:
            member.subscriptions = wanted
            self._unchecked.add(group.name)
        changed = self._merge_subscriptions(group, wanted) or changed
        if changed:
            self.notify_members(group.name)

    def _merge_subscriptions(self, group: ConsumerGroup, wanted: list[SubscriptionData]) -> bool:
        """Adopt the subscriptions of the newest heartbeat; return whether the set of topics changed."""
        former, group.subscriptions = group.subscriptions, {}
        for data in wanted:
            known = former.get(data.topic)
            if known is None or data.sub_version > known.data.sub_version:
                known = Subscription(data, self.filters)
            group.subscriptions[data.topic] = known
        return former.keys() != group.subscriptions.keys()

    def kept_bytes(self, connection: Connection) -> int:
        """Return about how much memory the groups of a connection take; see ``size_bytes``."""
        return sum(GROUP_BYTES + sum(map(size_bytes, subscribed)) for subscribed in self.of(connection).values())

    def leave(self, connection: Connection, group_name: str) -> None:
        """Remove a connection from one group and notify the others."""
        if self._remove(connection, group_name):
            self.notify_members(group_name)

    def _remove(self, connection: Connection, group_name: str) -> bool:
        """Return whether members are left."""
        group = self._groups.get(group_name)
        member = None if group is None else group.members.pop(connection, None)
        if group is None or member is None:
            return False
        self._groups_of.get(connection, set()).discard(group_name)
        LOGGER.info("consumer left group=%s peer=%s", group_name, connection.peer)
        if not group.members:
            del self._groups[group_name]
            return False
        self._drop_expressions(group, member.subscriptions)
        self._unchecked.add(group_name)
        return True

    def _drop_expressions(self, group: ConsumerGroup, former: list[SubscriptionData]) -> None:
        """Replace the group's expressions that only a former member had by those of the first member.

        Otherwise a group would keep what no connection answers for.  RocketMQ keeps them until a newer one arrives.
        """
        wanted = {each.topic: each for each in next(iter(group.members.values())).subscriptions}
        for each in former:
            known, other = group.subscriptions.get(each.topic), wanted.get(each.topic)
            if known is None or known.data.sub_string is not each.sub_string:
                continue
            if other is None:
                del group.subscriptions[each.topic]
            elif other.sub_string is not each.sub_string:
                data = replace(other, sub_version=known.data.sub_version)  # which pulls may name already
                group.subscriptions[each.topic] = Subscription(data, self.filters)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection from its groups; the others are notified whatever the settings, as in RocketMQ."""
        for group_name in list(self._groups_of.pop(connection, ())):
            if self._remove(connection, group_name):
                self.notify(self._groups[group_name])

    def check(self) -> None:
        """Look for conflicting members in the groups that have changed.

        Checking at each change would be quadratic where a thousand members join or leave at once.
        """
        names, self._unchecked = self._unchecked, set()
        characters = 0
        while names and characters < _MAX_COMPARED:
            name = names.pop()
            if (group := self._groups.get(name)) is not None:
                wanted = (each for member in group.members.values() for each in member.subscriptions)
                characters += sum(1 + len(each.sub_string) for each in wanted)
                if not _check(group):
                    self._unchecked.add(name)
        self._unchecked |= names  # the next call checks them

    def notify_members(self, group_name: str) -> None:
        """Notify all members that their group changed, if its settings allow."""
        group = self._groups.get(group_name)
        if group is not None and self.notifies(group_name):
            self.notify(group)

    def connection_of(self, group_name: str, client_id: str) -> Connection | None:
        """Return a live connection of a client in a group."""
        group = self._groups.get(group_name)
        members = () if group is None else group.members.items()
        return next((connection for connection, member in members if member.client_id == client_id), None)

    def expired(self, timeout_s: float) -> set[Connection]:
        """Return connections whose newest heartbeat is older than ``timeout_s``."""
        limit = self.clock_ms() - timeout_s * 1000
        return {
            connection
            for group in self._groups.values()
            for connection, member in group.members.items()
            if member.last_heartbeat_ms < limit
        }


def _check(group: ConsumerGroup) -> bool:
    """Log new and ended conflicts between the members of a group; return ``False`` if it must be checked again."""
    connections_of: dict[str, list[tuple[Connection, Member]]] = {}
    for connection, member in group.members.items():
        connections_of.setdefault(member.client_id, []).append((connection, member))
    repeated = {client_id: each for client_id, each in connections_of.items() if len(each) > 1}
    # Two clients share an id; else one client has reconnected, and its old connection is not closed yet: that has the
    # client's address, and sends no heartbeat after the new one has joined.
    shared = {
        client_id
        for client_id, each in repeated.items()
        for (first, older), (second, newer) in pairwise(each)
        if first.peer_ip != second.peer_ip or older.last_heartbeat_ms > newer.joined_ms
    }
    duplicate_ids = tuple(sorted(shared))
    named = [
        (f"{client_id} at {connection.peer}" if client_id in repeated else client_id, member)
        for client_id, each in connections_of.items()
        for connection, member in each
    ]
    for client_id in duplicate_ids:
        if client_id not in group.duplicate_ids:
            LOGGER.warning(
                "two connections with one client id group=%s client_id=%s peers=%s: queues are assigned wrongly",
                group.name, client_id, group.peers_of(client_id),
            )  # fmt: skip
    for client_id in set(group.duplicate_ids).difference(duplicate_ids):
        LOGGER.info("client id is unique again group=%s client_id=%s", group.name, client_id)
    differences = subscription_differences([(name, member.subscriptions) for name, member in named])
    known = {difference.topic for difference in group.differences}
    for difference in differences:
        if difference.topic not in known:
            LOGGER.warning("members of a group subscribe differently group=%s: %s", group.name, difference)
    for topic in known.difference(difference.topic for difference in differences):
        LOGGER.info("members of a group have equal subscriptions again group=%s topic=%s", group.name, topic)
    group.duplicate_ids, group.differences = duplicate_ids, differences
    return len(duplicate_ids) == len(repeated)


class ProducerGroups:
    """Producer groups with live members; ``clock_ms`` is a steady clock, as for consumers.

    Attributes:
        groups: the members of each group by connection.
    """

    def __init__(self, client_ids: ClientIds, *, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._client_ids = client_ids
        self.groups: Final[dict[str, dict[Connection, Member]]] = {}
        self._groups_of: dict[Connection, set[str]] = {}

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the connection of a client with a producer, ``None`` if it is offline."""
        return next(filter(self._groups_of.get, self._client_ids.connections(client_id)), None)

    def of(self, connection: Connection) -> Collection[str]:
        """Return the groups that a connection is a member of."""
        return self._groups_of.get(connection, ())

    def heartbeat(self, connection: Connection, client_id: str, group: str) -> None:
        """Store that a producer of the group uses this connection, unless that has been closed meanwhile."""
        if connection.closed:
            return
        now_ms = self._clock_ms()
        self.groups.setdefault(group, {})[connection] = Member(client_id, now_ms, now_ms)
        self._groups_of.setdefault(connection, set()).add(group)

    def leave(self, connection: Connection, group: str) -> None:
        """Remove a connection from one group."""
        members = self.groups.get(group)
        if members is None or members.pop(connection, None) is None:
            return
        self._groups_of.get(connection, set()).discard(group)
        if not members:
            del self.groups[group]

    def silent_ms(self, member: Member) -> int:
        """Return the age of a member's newest heartbeat."""
        return self._clock_ms() - member.last_heartbeat_ms

    def drop_silent(self, timeout_s: float) -> None:
        """Remove the producers whose newest heartbeat is older than ``timeout_s``.

        Their connections stay open: a connection in use belongs to a client with other producers or consumers, and any
        other one is closed for being idle.
        """
        for group, members in list(self.groups.items()):
            silent = [each for each, member in members.items() if self.silent_ms(member) > timeout_s * 1000]
            for connection in silent:
                LOGGER.info("producer left group=%s peer=%s reason=no heartbeat", group, connection.peer)
                self.leave(connection, group)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection from all groups."""
        for group in self._groups_of.pop(connection, ()):
            self.leave(connection, group)
