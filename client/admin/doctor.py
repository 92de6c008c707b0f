"""Examines a cluster: asks name servers, brokers and the members of groups, and has the answers judged."""

from collections.abc import Sequence
from typing import NamedTuple

from triomq.client.admin.broker_answers import ask_brokers
from triomq.client.admin.diagnosis import Facts, Finding, judge
from triomq.client.admin.group_state import GroupState, read_group_state
from triomq.client.cluster.instance import ClientInstance
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.route import ClusterInfo, SubscriptionGroupConfig, SubscriptionGroupWrapper
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS
from triomq.protocol.names import is_system_group


class Diagnosis(NamedTuple):
    """What was examined, and what is wrong there."""

    brokers: int
    groups: int
    findings: tuple[Finding, ...]


async def diagnose(instance: ClientInstance) -> Diagnosis:
    """Examine all name servers, brokers and groups.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    brokers = await ask_brokers(instance)
    masters = [broker.reached_at for broker in brokers if broker.is_master and broker.reached_at is not None]
    states, not_examined = await _read_groups(instance, masters)
    topics = map(instance.requests.namespace.unwrap, await instance.routes.topics())
    silent, clusters = await _ask_name_servers(instance)
    facts = Facts(
        now_ms=wall_clock_ms(),
        name_servers=silent,
        clusters=clusters,
        brokers=brokers,
        groups=states,
        not_examined=not_examined,
        topics=frozenset(topics),
    )
    return Diagnosis(len(brokers), len(states), tuple(judge(facts)))


async def _ask_name_servers(instance: ClientInstance) -> tuple[dict[str, str], list[ClusterInfo]]:
    """Return the errors of the name servers that do not answer, and the answers of the others."""
    silent: dict[str, str] = {}
    clusters = []

    async def ask(address: str) -> None:
        try:
            answer = await instance.requests.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            clusters.append(ClusterInfo.decode(answer.body))
        except REMOTE_ERRORS as exc:
            silent[address] = str(exc)

    await in_parallel(ask, instance.requests.name_servers.addresses)
    return silent, clusters


async def _read_groups(instance: ClientInstance, masters: Sequence[str]) -> tuple[list[GroupState], dict[str, str]]:
    """Return the states of the users' groups, sorted, and what could not be read, with the error."""
    configs: dict[str, SubscriptionGroupConfig] = {}
    errors: dict[str, str] = {}

    async def read_configs(address: str) -> None:
        try:
            answer = await instance.requests.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            configs.update(SubscriptionGroupWrapper.decode(answer.body).subscription_group_table)
        except REMOTE_ERRORS as exc:
            errors[f"the groups of the broker at {address}"] = str(exc)

    await in_parallel(read_configs, masters)
    states: dict[str, GroupState] = {}

    async def read(name: str) -> None:
        group = instance.requests.namespace.unwrap(name)
        try:
            states[group] = await read_group_state(instance, masters, group, config=configs[name])
        except REMOTE_ERRORS as exc:
            errors[f"group {group}"] = str(exc)

    await in_parallel(read, (name for name in configs if not is_system_group(name)))
    return [states[group] for group in sorted(states)], dict(sorted(errors.items()))
