"""The name server's state: where each broker is, and the topics that it registered.

Rules: a broker is here as long as one of its addresses has a lease; a lease ends without a registration for 120 s, or
with the connection that carried the last one; topics that a registration does not name stay until the broker leaves.

While a lease lives, no other host replaces it: addresses of this machine are one host, as a broker may use several.
A slave that was promoted replaces its former master, which cannot replace it.
Brokers of one host that register the same name and id in turn are noticed when the first one registers again.  A broker
that left without unregistering is listed as missing for some hours.

The broker that this name server is a part of is here too: it needs no lease, its topics are those of its topic table,
and its address depends on the listener that the client uses.

Source: behaviour.md A.17; RouteInfoManager.java.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from triomq.broker.statistics.counters import BrokerStatistics
from triomq.protocol.bodies import route as bodies
from triomq.protocol.codes import Permission
from triomq.protocol.errors import RefusedError
from triomq.protocol.event_log import EventLog
from triomq.protocol.requests.topics import BrokerRequestHeader, RegisterBrokerRequestHeader

LOGGER: Final = logging.getLogger("triomq.broker.namesrv.route_table")

LEASE_MS: Final = 120_000
MISSED_MS: Final = 12 * 3_600_000
MAX_MISSING: Final = 64
MAX_ADDRESSES: Final = 4096
MAX_NAME: Final = 512  # characters of a broker, a cluster, an address or a topic
MAX_TOPICS: Final = 1_000_000  # of all brokers together
_MAX_TURNS: Final = 8
_MASTER_ID: Final = 0
_OWN_ADDRESS: Final = ""  # replaced by the address of this broker that the client can reach
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)


class Owner(Protocol):
    """The connection that carries the registrations of a broker.

    Attributes:
        peer_ip: the other end.
        is_local: whether that is on this machine.
    """

    peer_ip: str
    is_local: bool

    def close(self, reason: str) -> None:
        """End it."""


class Master(NamedTuple):
    """The addresses of a slave's master, for requests and for its log; "": those of the name server's own broker."""

    address: str
    ha_address: str


@dataclass(slots=True)
class _Lease:
    """The address of a broker name and id.

    Attributes:
        turns: the addresses that registered here lately, each with the time of the last registration.
        promoted_ms: when the master was promoted; 0: never.
        conflict_ms: when an address registered again after another had taken its place.
    """

    name: str
    broker_id: int
    address: str
    ha_address: str
    version: bodies.DataVersion
    owner: Owner | None
    expires_ms: float
    turns: dict[str, int] = field(default_factory=dict)
    conflict_ms: float = -math.inf
    promoted_ms: int = 0


class _Missing(NamedTuple):
    address: str
    left_ms: int
    reason: str


@dataclass(slots=True)
class _Broker:
    """The servers of one broker name, by broker id; 0 is the master.

    Attributes:
        perms: permissions that a tool has set, each with the configuration that it holds for.
    """

    cluster: str
    topics: Mapping[str, bodies.TopicConfig] = field(default_factory=dict)
    leases: dict[int, _Lease] = field(default_factory=dict)
    perms: dict[str, tuple[bodies.TopicConfig, int]] = field(default_factory=dict)

    def perm(self, name: str, config: bodies.TopicConfig) -> int:
        """Return the permission that routes show; a newer registration undoes what a tool has set."""
        held_for, perm = self.perms.get(name, (None, 0))
        return perm if held_for is config else config.perm


class RouteTable:
    """Brokers by name.  Only one task uses it; nothing waits."""

    def __init__(self, clock_ms: Callable[[], int], statistics: BrokerStatistics) -> None:
        """``clock_ms`` is a clock that is never set back."""
        self._clock_ms = clock_ms
        self._statistics = statistics
        self._conflict_log = EventLog(
            LOGGER, "two brokers have one name broker=%s id=%d addresses=%s: give each its own --broker-name"
        )
        self._brokers: dict[str, _Broker] = {}
        self._missing: dict[tuple[str, int], _Missing] = {}
        self._own_name: str | None = None

    def add_own(self, cluster: str, name: str, broker_id: int, topics: Mapping[str, bodies.TopicConfig]) -> None:
        """Add the broker that this name server is a part of."""
        self._own_name = name
        lease = _Lease(name, broker_id, _OWN_ADDRESS, "", bodies.DataVersion(), None, math.inf)
        self._brokers[name] = _Broker(cluster, topics, {broker_id: lease})

    def sizes(self) -> tuple[tuple[str, int, int], ...]:
        """Return names, sizes and limits of the tables."""
        brokers = self._brokers.values()
        return (
            ("route_brokers", sum(len(broker.leases) for broker in brokers), MAX_ADDRESSES),
            ("route_topics", sum(len(broker.topics) for broker in brokers), MAX_TOPICS),
        )

    # --- registration -----------------------------------------------------------------------------------

    def register(
        self, header: RegisterBrokerRequestHeader, sent: bodies.TopicConfigSerializeWrapper, owner: Owner
    ) -> Master | None:
        """Give a broker a lease and, if it leads its name and its topics changed, take them; return a slave's master.

        Raises:
            RefusedError: the name belongs to this process or another host, or the table is full; no route has changed.
        """
        name, broker_id, address = header.broker_name, header.broker_id, header.broker_addr
        names = (name, header.cluster_name, address, header.ha_server_addr, *sent.topic_config_table)
        if max(map(len, names)) > MAX_NAME:
            raise RefusedError(f"a name of {max(map(len, names))} characters: the limit is {MAX_NAME}")
        broker = self._brokers.get(name) or _Broker(header.cluster_name)
        self._check_free(header, broker, owner)
        # a slave that becomes the master has one address under two ids for a moment
        leases = {other: lease for other, lease in broker.leases.items() if lease.address != address}
        before = broker.leases.get(broker_id)
        expires_ms = self._clock_ms() + LEASE_MS
        lease = _Lease(name, broker_id, address, header.ha_server_addr, sent.data_version, owner, expires_ms)
        lease.promoted_ms = header.promoted_ms or 0
        if before is not None:
            lease.turns, lease.conflict_ms = before.turns, before.conflict_ms
            if address != before.address and address in before.turns:
                self._report_conflict(header, lease)
        self._take_turn(header, lease)
        leases[broker_id] = lease
        leads = broker_id == _MASTER_ID or (header.enable_acting_master is not None and broker_id == min(leases))
        is_new = before is None or before.address != address or before.version != sent.data_version
        topics = broker.topics
        if leads:  # a topic that is not here is taken in any case: the first registration may have had one topic only
            taken = {topic: c for topic, c in sent.topic_config_table.items() if is_new or topic not in topics}
            topics = {**topics, **taken} if taken else topics
        self._check_room(len(leases) - len(broker.leases), len(topics) - len(broker.topics))
        broker.leases, broker.topics = leases, topics
        self._brokers[name] = broker
        self._missing.pop((name, broker_id), None)
        if before is None or before.address != address:
            LOGGER.info(
                "broker registered broker=%s id=%d address=%s cluster=%s topics=%d",
                name, broker_id, address, broker.cluster, len(topics),
            )  # fmt: skip
        master = leases.get(_MASTER_ID)
        return None if master is None or broker_id == _MASTER_ID else Master(master.address, master.ha_address)

    def _check_free(self, header: RegisterBrokerRequestHeader, broker: _Broker, owner: Owner) -> None:
        """Check that no other host holds what a registration would replace; a lease ends with its connection."""
        for broker_id, lease in broker.leases.items():
            if header.broker_id != broker_id and header.broker_addr != lease.address:
                continue
            text, holder = f"broker name {header.broker_name}", lease.owner
            rank = (header.promoted_ms or 0) - lease.promoted_ms if broker_id == header.broker_id == _MASTER_ID else 0
            if holder is None:
                text += " belongs to the broker of this name server: choose another"
            elif rank > 0:  # that master is a former one
                continue
            elif rank < 0 and lease.address != header.broker_addr and lease.expires_ms >= self._clock_ms():
                text += f" belongs to {lease.address}, a slave that was promoted: start this broker as its slave"
            elif (
                holder.peer_ip == owner.peer_ip
                or (holder.is_local and owner.is_local)
                or lease.expires_ms < self._clock_ms()
            ):
                continue
            else:
                text += f" is taken by {lease.address}, which registers from another host, {holder.peer_ip}: choose "
                text += "another, or stop that broker"
            self._take_turn(header, lease)
            self._report_conflict(header, lease)
            raise RefusedError(text)

    def _take_turn(self, header: RegisterBrokerRequestHeader, lease: _Lease) -> None:
        now_ms = self._clock_ms()
        others = [turn for turn in lease.turns.items() if turn[0] != header.broker_addr and now_ms - turn[1] < LEASE_MS]
        lease.turns = dict([*others, (header.broker_addr, now_ms)][-_MAX_TURNS:])

    def _report_conflict(self, header: RegisterBrokerRequestHeader, lease: _Lease) -> None:
        lease.conflict_ms = self._clock_ms()
        self._statistics.name_conflicts += 1
        addresses = ", ".join(filter(None, (lease.address, *(lease.turns.keys() - {lease.address}))))
        self._conflict_log.occurred(header.broker_name, header.broker_id, addresses)

    def _check_room(self, *more: int) -> None:
        if any(size + new > limit for (_, size, limit), new in zip(self.sizes(), more, strict=True)):
            raise RefusedError(f"the name server is full: {MAX_ADDRESSES} brokers, {MAX_TOPICS} topics at most")

    def version_of(self, header: BrokerRequestHeader, version: bodies.DataVersion) -> bodies.DataVersion | None:
        """Return the version of the topics that a broker registered last; an equal one renews its lease."""
        lease = self._find(header)
        if lease is None:
            return None
        if lease.version == version:
            lease.expires_ms = self._clock_ms() + LEASE_MS
        return lease.version

    def unregister(self, header: BrokerRequestHeader) -> None:
        """End the lease of an address; with the last one the broker's topics go."""
        if (lease := self._find(header)) is not None:
            self._remove(lease, logging.INFO, "it left")

    def _find(self, header: BrokerRequestHeader) -> _Lease | None:
        broker = self._brokers.get(header.broker_name)
        leases = broker.leases.values() if broker is not None else ()
        return next((lease for lease in leases if lease.address == header.broker_addr != _OWN_ADDRESS), None)

    def owner_of(self, header: BrokerRequestHeader) -> Owner | None:
        """Return the connection that registered an address."""
        lease = self._find(header)
        return None if lease is None else lease.owner

    def lost(self, owner: Owner) -> None:
        """End the leases that a closed connection carried."""
        self._remove_all(lambda lease: lease.owner is owner, "its connection ended")

    def expire(self) -> list[Owner]:
        """End the leases that were not renewed; return their connections, which should be closed."""
        now_ms = self._clock_ms()
        ended = self._remove_all(lambda lease: lease.expires_ms < now_ms, f"silent for {LEASE_MS // 1000} s")
        return [lease.owner for lease in ended if lease.owner is not None]

    def _remove_all(self, ends: Callable[[_Lease], bool], reason: str) -> list[_Lease]:
        found = [lease for broker in self._brokers.values() for lease in broker.leases.values() if ends(lease)]
        for lease in found:
            self._remove(lease, logging.WARNING, reason)
        return found

    def _remove(self, lease: _Lease, level: int, reason: str) -> None:
        name, broker_id = lease.name, lease.broker_id
        broker = self._brokers[name]
        del broker.leases[broker_id]
        if not broker.leases:
            del self._brokers[name]
        if level == logging.WARNING:
            self._missing[name, broker_id] = _Missing(lease.address, self._clock_ms(), reason)
            if len(self._missing) > MAX_MISSING:
                del self._missing[next(iter(self._missing))]
        LOGGER.log(level, "broker removed broker=%s id=%d address=%s reason=%s", name, broker_id, lease.address, reason)

    # --- tools ------------------------------------------------------------------------------------------

    def set_writable(self, name: str, *, is_writable: bool) -> int:
        """Change the permissions of all topics of a broker until it registers them anew; return how many."""
        broker = self._brokers.get(name)
        if broker is None:
            return 0
        broker.perms = {
            topic: (config, _READ_WRITE if is_writable else broker.perm(topic, config) & ~int(Permission.WRITE))
            for topic, config in broker.topics.items()
        }
        return len(broker.perms)

    def is_registered(self, topic: str) -> bool:
        """Whether a broker other than that of this process has registered a topic."""
        return any(topic in broker.topics for name, broker in self._brokers.items() if name != self._own_name)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, perhaps only of one cluster.

        A broker that still has it registers it again; that of this process keeps the route of a topic that it has.
        """
        for name, broker in self._brokers.items():
            if topic in broker.topics and cluster in (None, "", broker.cluster) and name != self._own_name:
                broker.topics = {other: config for other, config in broker.topics.items() if other != topic}

    # --- queries ----------------------------------------------------------------------------------------

    def route(self, topic: str, own_address: str) -> bodies.TopicRouteData | None:
        """Return queues and brokers of a topic, ``None`` if no broker has it."""
        queues: list[bodies.QueueData] = []
        brokers: list[bodies.BrokerData] = []
        for name, broker in self._brokers.items():
            config = broker.topics.get(topic)
            if config is not None:
                perm = broker.perm(topic, config)
                queues.append(
                    bodies.QueueData(name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)
                )
                brokers.append(_data(name, broker, own_address))
        return bodies.TopicRouteData(queue_datas=queues, broker_datas=brokers) if queues else None

    def cluster_info(self, own_address: str) -> bodies.ClusterInfo:
        """Return all brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            clusters.setdefault(broker.cluster, []).append(name)
        brokers = {name: _data(name, broker, own_address) for name, broker in self._brokers.items()}
        now_ms = self._clock_ms()
        missing = [
            bodies.MissingBroker(name, broker_id, address, (now_ms - left_ms) // 1000, reason)
            for (name, broker_id), (address, left_ms, reason) in self._missing.items()
            if now_ms - left_ms < MISSED_MS
        ]
        conflicts = [
            bodies.NameConflict(lease.name, lease.broker_id, sorted({lease.address or own_address, *lease.turns}))
            for broker in self._brokers.values()
            for lease in broker.leases.values()
            if now_ms - lease.conflict_ms < LEASE_MS
        ]
        return bodies.ClusterInfo(brokers, clusters, missing or None, conflicts or None)

    def topics(self, cluster: str | None = None, wanted: Callable[[int], bool] | None = None) -> list[str]:
        """Return the topics of all brokers, or of one cluster, or those whose system flag is ``wanted``."""
        found: Iterable[tuple[str, bodies.TopicConfig]] = (
            entry
            for broker in self._brokers.values()
            if cluster is None or broker.cluster == cluster
            for entry in broker.topics.items()
        )
        return list({name: None for name, config in found if wanted is None or wanted(config.topic_sys_flag)})


def _data(name: str, broker: _Broker, own_address: str) -> bodies.BrokerData:
    return bodies.BrokerData(
        cluster=broker.cluster,
        broker_name=name,
        broker_addrs={broker_id: lease.address or own_address for broker_id, lease in sorted(broker.leases.items())},
    )
