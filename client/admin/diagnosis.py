"""Examines a cluster: asks name servers, brokers and members of groups, and judges their answers.

The judgement is a pure function from facts to findings, each with its remedy.

Source: behaviour.md A.12, B.7, B.11, C.4 (14); store limits: store.md (diskSpaceCleanForciblyRatio).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, NamedTuple

from triomq.client.admin.broker_answers import BrokerAnswer, ask_brokers, ask_name_servers, describe_missing
from triomq.client.admin.group_state import GroupState, QueueState, StateAdmin
from triomq.client.admin.replicas import SYNC_MASTER, Replica, read_replicas
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.group_health import STALL_AFTER_S, StallCause
from triomq.protocol.bodies.route import ClusterInfo, SubscriptionGroupConfig, SubscriptionGroupWrapper
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS
from triomq.protocol.names import is_system_group

#: Clocks that differ by more than this are apart, beyond the error of the measurement.
CLOCK_TOLERANCE_MS: Final = 2000
_REPORTED_JUMP_MS: Final = 86_400_000  # how long a jump of a broker's clock is reported
#: From this share on brokers delete files before their time, and soon after that refuse messages (90 %).
DISK_LIMIT: Final = 0.85
#: Masters do not wait for a slave that is further behind.
BEHIND_BYTES: Final = 256 * 1024**2


class FindingKind(StrEnum):
    """What is wrong; tools print the values."""

    NAME_SERVER = "name-server-unreachable"
    BROKER = "broker-unreachable"
    MISSING_BROKER = "broker-missing"
    NAME_CONFLICT = "broker-name-conflict"
    ADDRESS = "address-unreachable"
    CLOCK = "clocks-apart"
    CLOCK_JUMPED = "clock-jumped"
    LOCAL_PEERS = "clients-look-local"
    REPLAYABLE = "requests-replayable"
    REFUSED = "messages-refused"
    DISK = "disk-full"
    NO_SLAVE = "sync-master-alone"
    NO_MASTER = "slave-without-master"
    OUT_OF_TOUCH = "slave-out-of-touch"
    BEHIND = "slave-behind"
    TAIL_ASIDE = "tail-set-aside"
    DUPLICATE_ID = "duplicate-client-id"
    SUBSCRIPTIONS = "different-subscriptions"
    IDLE_FILTER = "filter-selects-nothing"
    MISSING_TOPIC = "missing-topic"
    NO_OWNER = "lag-without-owner"
    STALLED = "stalled"
    SLOW = "slow-handler"
    NOT_EXAMINED = "not-examined"


class Finding(NamedTuple):
    """One fault.

    Attributes:
        kind: which.
        text: the problem.
        advice: what to do.
        broker: the broker or name server concerned, if it is about one.
        group: the consumer group, likewise.
        topic: the topic, likewise.
    """

    kind: FindingKind
    text: str
    advice: str
    broker: str | None = None
    group: str | None = None
    topic: str | None = None


#: What to do; for missing topics and waiting messages it depends on the case.
_REMEDIES: Final[Mapping[FindingKind, str]] = {
    FindingKind.NAME_SERVER: "start it, or remove it from the list of name servers of clients and brokers",
    FindingKind.BROKER: "start it if it is down; otherwise open its port, or let it advertise an address that clients "
    "reach",
    FindingKind.MISSING_BROKER: "start it again: until then only a slave, if it has one, has its messages for "
    "consumers; if it is gone for good, the name server forgets it 12 hours after it left",
    FindingKind.NAME_CONFLICT: "stop one of them, and start it with another --broker-name (brokerName)",
    FindingKind.ADDRESS: "start it with an address that clients reach (triomq broker --advertise, brokerIP1); "
    "clients of triomq may also use --as-dialled",
    FindingKind.CLOCK: "synchronise the clocks (NTP): delays, searches by time and the age of messages follow them",
    FindingKind.CLOCK_JUMPED: "look for the cause (NTP, the virtual machine); messages stored while it was wrong have "
    "wrong store times",
    FindingKind.LOCAL_PEERS: "start it with --no-local-peers (TRIOMQ_BROKER_NO_LOCAL_PEERS=true): until then any "
    "client may register brokers and change the name server; --brokers-from and --admin-listen allow these to some",
    FindingKind.REPLAYABLE: "start it with --tls enforcing: a reader of the network can send requests again, also with "
    "another effect",
    FindingKind.REFUSED: "remove the cause; for a disk: make room, or move the store to a larger disk",
    FindingKind.DISK: "make room, move the store to a larger disk, or keep messages for a shorter time "
    "(fileReservedTime)",
    FindingKind.NO_SLAVE: "start its slave, or the master as async-master (triomq broker --role, brokerRole)",
    FindingKind.NO_MASTER: "start its master, let both register with the same name servers under one name, or promote "
    "a slave if the master is lost (triomq replica promote)",
    FindingKind.OUT_OF_TOUCH: "start the master, open its HA port for the slave, or correct --ha-master "
    "(haMasterAddress)",
    FindingKind.BEHIND: "if that grows, its disk or network is too slow; a sync-master does not wait for such a slave",
    FindingKind.TAIL_ASIDE: "send missing messages again (triomq store dump --store STORE/aside/FROM-TO), then delete "
    "it",
    FindingKind.DUPLICATE_ID: "give each process an instance name of its own; until then some queues have no consumer",
    FindingKind.SUBSCRIPTIONS: "let all members of a group subscribe to the same topics and tags, or use two groups",
    FindingKind.IDLE_FILTER: "compare the tags of the subscription with those that producers send",
    FindingKind.SLOW: "make the handler faster, let it handle more messages at a time, or start more members",
    FindingKind.NOT_EXAMINED: "repair what the other findings name, or use an administrator's account, then run this "
    "again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen of a cluster.

    Attributes:
        now_ms: this machine's clock.
        name_servers: error text of each name server that did not answer.
        clusters: what the others know.
        brokers: answers of all brokers.
        groups: state of the users' consumer groups.
        not_examined: what could not be read, with the error's text.
        topics: all topics that exist.
        replicas: the brokers again, with the state of their copies.
    """

    now_ms: int
    name_servers: Mapping[str, str]
    clusters: Sequence[ClusterInfo]
    brokers: Sequence[BrokerAnswer]
    groups: Sequence[GroupState]
    not_examined: Mapping[str, str]
    topics: Collection[str]
    replicas: Sequence[Replica] = ()


def judge(facts: Facts) -> list[Finding]:
    """Return all faults: first those of servers, then those of groups."""
    findings = [
        _of_broker(FindingKind.NAME_SERVER, f"name server {address} does not answer: {_short(error)}", address)
        for address, error in facts.name_servers.items()
    ]
    findings += _about_registrations(facts.clusters)
    for broker in facts.brokers:
        findings += (_of_broker(kind, text, broker.name) for kind, text in _about_broker(broker))
    findings += _about_replicas(facts)
    for group in facts.groups:
        findings += _about_members(group, facts.topics)
        findings += _about_lag(group, facts.now_ms)
    findings += (
        _of_broker(FindingKind.NOT_EXAMINED, f"{what} could not be examined: {error}", None)
        for what, error in facts.not_examined.items()
    )
    return findings


# --- brokers --------------------------------------------------------------------------------------------------


def _of_broker(kind: FindingKind, text: str, broker: str | None) -> Finding:
    return Finding(kind, text, _REMEDIES[kind], broker)


def _about_registrations(clusters: Sequence[ClusterInfo]) -> Iterator[Finding]:
    """Yield the brokers that are missing at all name servers, and the names that several brokers use."""
    present = {
        (name, broker_id)
        for cluster in clusters
        for name, data in cluster.broker_addr_table.items()
        for broker_id in data.broker_addrs
    }
    missing = {(each.broker_name, each.broker_id): each for one in clusters for each in one.missing_brokers or ()}
    for key, broker in sorted(missing.items()):
        if key not in present:
            yield _of_broker(FindingKind.MISSING_BROKER, describe_missing(broker), broker.broker_name)
    conflicts = {(each.broker_name, each.broker_id): each for one in clusters for each in one.name_conflicts or ()}
    for _, conflict in sorted(conflicts.items()):
        addresses = ", ".join(conflict.broker_addrs)
        text = f"several brokers register as {conflict.broker_name} (id {conflict.broker_id}) by turns: {addresses}"
        yield _of_broker(FindingKind.NAME_CONFLICT, text, conflict.broker_name)


def _about_broker(broker: BrokerAnswer) -> Iterator[tuple[FindingKind, str]]:
    name = broker.name if broker.is_master else f"{broker.name} (id {broker.broker_id})"
    error = _short(broker.error)
    if broker.reached_at is None:
        where = f"{broker.address}, the address it advertises"
        yield FindingKind.BROKER, f"broker {name} does not answer at {where}: {error}"
        return
    if broker.reached_at != broker.address:
        where = f"{broker.reached_at}, but not at {broker.address}, which it advertises"
        yield FindingKind.ADDRESS, f"broker {name} answers at {where}: {error}"
    if broker.clock_ahead_ms is not None and abs(broker.clock_ahead_ms) > CLOCK_TOLERANCE_MS + broker.clock_error_ms:
        side = "ahead of" if broker.clock_ahead_ms > 0 else "behind"
        apart_s = abs(broker.clock_ahead_ms) / 1000
        yield FindingKind.CLOCK, f"the clock of broker {name} is {apart_s:.0f} s {side} this machine's"
    if broker.refusal is not None:
        yield FindingKind.REFUSED, f"broker {name} takes no messages: {broker.refusal}"
    yield from _about_runtime(broker.runtime, name)


def _about_runtime(runtime: Mapping[str, str], name: str) -> Iterator[tuple[FindingKind, str]]:
    if runtime.get("triomqMayMisjudgePeers") == "true":
        text = f"broker {name} is in a container, where forwarded ports can make every client look local"
        yield FindingKind.LOCAL_PEERS, text
    if addresses := runtime.get("triomqReplayableAt"):
        text = f"broker {name} has accounts, but does not require TLS: signed requests can be replayed at {addresses}"
        yield FindingKind.REPLAYABLE, text
    jump_s = _number(runtime.get("triomqClockJumpMs", "")) / 1000
    if jump_s and _number(runtime.get("triomqClockJumpAgeMs", "")) < _REPORTED_JUMP_MS:
        side = "forward" if jump_s > 0 else "back"
        yield FindingKind.CLOCK_JUMPED, f"the clock of broker {name} was set {side} by {abs(jump_s):.0f} s"
    share = _number(runtime.get("commitLogDiskRatio", ""))
    if share >= DISK_LIMIT:
        text = f"the disk of broker {name} is {share:.0%} full: it deletes messages before their time, or takes no more"
        yield FindingKind.DISK, text


def _about_replicas(facts: Facts) -> Iterator[Finding]:
    """Yield the masters without a copy that they promise, and the slaves that do not copy."""
    masters = {each.name for each in facts.replicas if each.is_master}
    # Missing brokers have another finding.
    masters |= {each.broker_name for one in facts.clusters for each in one.missing_brokers or ()}
    for each in facts.replicas:
        name = f"{each.name} (id {each.broker_id})"
        if each.role == SYNC_MASTER and each.copies == ():
            text = f"broker {each.name} is a sync-master, but no slave is connected: sends get SLAVE_NOT_AVAILABLE"
            yield _of_broker(FindingKind.NO_SLAVE, text, each.name)
        if each.tails_aside:
            text = f"tails of the log of broker {name} that its master did not have are set aside: {each.tails_aside}"
            yield _of_broker(FindingKind.TAIL_ASIDE, text, each.name)
        if each.is_master:
            continue
        if each.name not in masters:
            text = f"broker {name} is a slave, but no master of this name is registered"
            yield _of_broker(FindingKind.NO_MASTER, text, each.name)
        if each.is_in_touch is False:
            text = f"slave {name} has heard nothing for 20 s from its master at {each.master or 'an unknown address'}"
            yield _of_broker(FindingKind.OUT_OF_TOUCH, text, each.name)
        if each.lag_bytes is not None and each.lag_bytes > BEHIND_BYTES:
            text = f"slave {name} misses {each.lag_bytes / 1024**2:.0f} MiB of its master's messages"
            yield _of_broker(FindingKind.BEHIND, text, each.name)


def _short(error: str | None) -> str:
    """Return an error without the hints behind its first clause: the remedy of a finding is more exact."""
    return (error or "").partition(";")[0]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


# --- groups ---------------------------------------------------------------------------------------------------


def _about_members(state: GroupState, topics: Collection[str]) -> Iterator[Finding]:
    group = state.group
    connections = [] if state.members is None else state.members.connection_set
    for client_id in state.duplicate_client_ids:
        addresses = ", ".join(each.client_addr for each in connections if each.client_id == client_id)
        text = f"group {group}: several members have the client id {client_id}: {addresses}"
        yield Finding(FindingKind.DUPLICATE_ID, text, _REMEDIES[FindingKind.DUPLICATE_ID], group=group)
    for difference in state.subscription_differences:
        text, remedy = f"group {group}: {difference}", _REMEDIES[FindingKind.SUBSCRIPTIONS]
        yield Finding(FindingKind.SUBSCRIPTIONS, text, remedy, None, group, difference.topic)
    for idle in state.idle_filters:
        text, remedy = f"group {group}: {idle}", _REMEDIES[FindingKind.IDLE_FILTER]
        yield Finding(FindingKind.IDLE_FILTER, text, remedy, None, group, idle.topic)
    for slow in state.slow_handlers:
        text, remedy = f"group {group}: {slow}", _REMEDIES[FindingKind.SLOW]
        yield Finding(FindingKind.SLOW, text, remedy, None, group, slow.topic)
    for topic in state.missing_topics(topics):
        similar = get_close_matches(topic, topics, n=3, cutoff=0.6)
        advice = f"create it: triomq topic create {topic}" + (
            f"; or correct the subscription, similar topics: {', '.join(similar)}" if similar else ""
        )
        text = f"group {group} subscribes to topic {topic}, which does not exist"
        yield Finding(FindingKind.MISSING_TOPIC, text, advice, None, group, topic)


_OWNERLESS: Final[Mapping[StallCause, str]] = {
    StallCause.NO_MEMBER: "start a consumer of the group; if nobody needs it any more: triomq group delete {group}",
    StallCause.NO_OWNER: "restart the members; do they all use this name server, and the same allocation strategy?",
    StallCause.SILENT: "restart the members that do not answer",
}
_LOCK_ADVICE: Final = "restart the member that has the lock; without renewal a lock ends after 60 s"
_HANDLER_ADVICE: Final = "find out where the handler waits, and give it a time limit, or start more members"
_ADVICE: Final[Mapping[StallCause, str]] = {
    StallCause.DISABLED: "allow it again: triomq group create {group} --enable",
    StallCause.LOCKED: _LOCK_ADVICE,
    StallCause.NO_LOCK: _LOCK_ADVICE,
    StallCause.HANDLER_BLOCKED: _HANDLER_ADVICE,
    StallCause.HANDLER_FAILING: "look for the handler's error in the log of the member",
    StallCause.FLOW_CONTROL: _HANDLER_ADVICE,
    StallCause.NOT_PULLING: "resume or restart the member",
    StallCause.NOTHING_WANTED: "compare the filter with what is sent, and check that the member commits offsets",
}


def _about_lag(state: GroupState, now_ms: int) -> Iterator[Finding]:
    """Yield one finding for all queues of a topic that are stalled for the same reason."""
    queues: dict[tuple[str, StallCause, str], list[QueueState]] = {}
    for queue in state.queues:
        if queue.stall is not None:
            # A pull consumer, which is no member, may make progress; only triomq's brokers report it.
            is_recent = queue.progress_ms is not None and now_ms - queue.progress_ms <= STALL_AFTER_S * 1000
            if not (is_recent and queue.stall.cause is StallCause.NO_MEMBER):
                queues.setdefault((queue.position.queue.topic, *queue.stall), []).append(queue)
    for (topic, cause, why), stalled in queues.items():
        lag = sum(queue.position.lag for queue in stalled)
        ids: dict[str, list[str]] = {}
        for queue in stalled:
            ids.setdefault(queue.position.queue.broker_name, []).append(str(queue.position.queue.queue_id))
        places = " and ".join(f"{broker}:{','.join(numbers)}" for broker, numbers in ids.items())
        text = f"group {state.group}: {lag} messages of topic {topic} wait in {places}: {why}"
        kind = FindingKind.NO_OWNER if cause in _OWNERLESS else FindingKind.STALLED
        advice = (_OWNERLESS.get(cause) or _ADVICE[cause]).format(group=state.group)
        yield Finding(kind, text, advice, None, state.group, topic)


class Diagnosis(NamedTuple):
    """Numbers of examined brokers and groups, and the problems found."""

    brokers: int
    groups: int
    findings: tuple[Finding, ...]


class DiagnosisAdmin(StateAdmin):
    """Examines clusters."""

    async def diagnose(self) -> Diagnosis:
        """Examine name servers, brokers and consumer groups, and return all problems; see ``triomq doctor``.

        Raises:
            NameServerError: no name server answered, or it knows no broker.
        """
        brokers = await ask_brokers(self._entered())
        replicas = await read_replicas(self._entered(), brokers)
        masters = [broker.reached_at for broker in brokers if broker.is_master and broker.reached_at is not None]
        states, not_examined = await self._read_groups(masters)
        topics = map(self._requests.namespace.unwrap, await self.topics())
        servers = await ask_name_servers(self._entered())
        facts = Facts(
            now_ms=wall_clock_ms(),
            name_servers={each.address: each.error for each in servers if each.error is not None},
            clusters=[each.cluster for each in servers if each.cluster is not None],
            brokers=brokers,
            groups=states,
            not_examined=not_examined,
            topics=frozenset(topics),
            replicas=replicas,
        )
        return Diagnosis(len(brokers), len(states), tuple(judge(facts)))

    async def _read_groups(self, masters: Sequence[str]) -> tuple[list[GroupState], dict[str, str]]:
        """Return the states of the users' groups, sorted, and what could not be read, with the error."""
        configs: dict[str, SubscriptionGroupConfig] = {}
        errors: dict[str, str] = {}

        async def read_configs(address: str) -> None:
            try:
                answer = await self._requests.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
                configs.update(SubscriptionGroupWrapper.decode(answer.body).subscription_group_table)
            except REMOTE_ERRORS as exc:
                errors[f"the groups of the broker at {address}"] = str(exc)

        await in_parallel(read_configs, masters)
        states: dict[str, GroupState] = {}

        async def read(name: str) -> None:
            group = self._requests.namespace.unwrap(name)
            try:
                states[group] = await self._state(masters, group, None, configs[name])
            except REMOTE_ERRORS as exc:
                errors[f"group {group}"] = str(exc)

        await in_parallel(read, (name for name in configs if not is_system_group(name)))
        return [states[group] for group in sorted(states)], dict(sorted(errors.items()))
