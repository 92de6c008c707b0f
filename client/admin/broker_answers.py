"""Asks each broker of a cluster for its state, at the address that it advertises.

Source: wire.md 9.8 (request 28).
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.client.cluster.instance import ClientInstance
from triomq.client.cluster.route import MASTER_ID, dialled_address
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.client import HeartbeatData
from triomq.protocol.bodies.route import ClusterInfo, KVTable, MissingBroker
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import REMOTE_ERRORS, BrokerSystemError, NameServerError, NoPermissionError
from triomq.protocol.java import read_properties

_UNITS_S: Final = (86_400, 3600, 60, 1)
_HALF_STEP_MS: Final = 500  # brokers report whole seconds


class BrokerAnswer(NamedTuple):
    """How a broker answered.

    Attributes:
        name: of the broker.
        broker_id: 0: the master.
        address: the advertised one.
        reached_at: where it answered: its address or, failing that, its port at the name server's host; else ``None``.
        error: why it did not answer at its address.
        latency_ms: how long the answer took.
        runtime: its runtime statistics; empty if only administrators may read them.
        clock_ahead_ms: its clock minus this machine's; ``None`` if it does not report it.
        clock_error_ms: how wrong that may be.
    """

    name: str
    broker_id: int
    address: str
    reached_at: str | None = None
    error: str | None = None
    latency_ms: float = 0.0
    runtime: Mapping[str, str] = {}
    clock_ahead_ms: int | None = None
    clock_error_ms: int = 0

    @property
    def refusal(self) -> str | None:
        """Why it takes no messages; only triomq's brokers report it."""
        return self.runtime.get("triomqRefusal") or None

    @property
    def is_master(self) -> bool:
        """Whether it takes messages."""
        return self.broker_id == MASTER_ID


class NameServerAnswer(NamedTuple):
    """How a name server answered.

    Attributes:
        address: of the name server.
        cluster: all brokers that it knows; ``None``: it did not answer.
        error: why it did not answer.
    """

    address: str
    cluster: ClusterInfo | None = None
    error: str | None = None


async def ask_name_servers(instance: ClientInstance) -> list[NameServerAnswer]:
    """Ask all name servers of a client for the brokers that they know, at once; in the client's order."""

    async def ask(address: str) -> NameServerAnswer:
        try:
            answer = await instance.requests.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            return NameServerAnswer(address, ClusterInfo.decode(answer.body))
        except REMOTE_ERRORS as exc:
            return NameServerAnswer(address, error=str(exc))

    return await in_parallel(ask, instance.requests.name_servers.addresses)


async def known_brokers(instance: ClientInstance) -> list[BrokerAnswer]:
    """Return all brokers that the name server knows, none asked yet; sorted by name and id.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    cluster = await instance.routes.cluster()
    known = [
        BrokerAnswer(data.broker_name, broker_id, address)
        for _, data in sorted(cluster.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    if not known:
        current = instance.requests.name_servers.current
        left = "; ".join(map(describe_missing, cluster.missing_brokers or ()))
        raise NameServerError(
            f"name server {current} answers, but knows no broker: {left or 'is one registered with it?'}"
        )
    return known


def describe_missing(broker: MissingBroker) -> str:
    """Return which broker left, when and why."""
    name = broker.broker_name if broker.broker_id == MASTER_ID else f"{broker.broker_name} (id {broker.broker_id})"
    return (
        f"broker {name} at {broker.broker_addr} left {broker.seconds_ago} s ago without unregistering: {broker.reason}"
    )


async def ask_brokers(instance: ClientInstance) -> list[BrokerAnswer]:
    """Ask all brokers that the name server knows, at once; sorted by name and id.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    return await in_parallel(partial(_ask, instance), await known_brokers(instance))


async def _ask(instance: ClientInstance, broker: BrokerAnswer) -> BrokerAnswer:
    """Ask a broker at its address, then at the name server's host."""
    try:
        return await _ask_at(instance, broker, broker.address)
    except REMOTE_ERRORS as exc:
        broker = broker._replace(error=str(exc))
    elsewhere = dialled_address(broker.address, instance.requests.name_servers.current)
    if elsewhere != broker.address and instance.config.advertise == "as-advertised":
        with suppress(*REMOTE_ERRORS):
            return await _ask_at(instance, broker, elsewhere)
    return broker


async def _ask_at(instance: ClientInstance, broker: BrokerAnswer, address: str) -> BrokerAnswer:
    began, began_ms = trio.current_time(), wall_clock_ms()
    runtime: Mapping[str, str] = {}
    denied = None
    try:
        response = await instance.requests.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        runtime = KVTable.decode(response.body).table
    except (BrokerSystemError, NoPermissionError) as exc:
        denied = exc
    latency_ms = (trio.current_time() - began) * 1000
    if denied is not None and not await _knows_account(instance, address):
        raise denied
    clock_ms = clock_of(runtime)
    return broker._replace(
        reached_at=address,
        latency_ms=latency_ms,
        runtime=runtime,
        clock_ahead_ms=None if clock_ms is None else clock_ms - began_ms - round(latency_ms / 2),
        clock_error_ms=_HALF_STEP_MS + round(latency_ms / 2),
    )


async def _knows_account(instance: ClientInstance, address: str) -> bool:
    """Whether a broker takes a heartbeat without groups, which every account may send."""
    with suppress(*REMOTE_ERRORS):
        await instance.requests.heartbeat(address, HeartbeatData(instance.client_id).encode())
        return True
    return False


async def read_settings(instance: ClientInstance, address: str) -> dict[str, str]:
    """Return the settings of one broker by RocketMQ's names."""
    answer = await instance.requests.ask(address, RequestCode.GET_BROKER_CONFIG)
    return read_properties(bytes(answer.body).decode(errors="replace"))


def count_of(table: Mapping[str, str], name: str) -> int | None:
    """Return a number of a broker's settings or runtime statistics; ``None``: it does not report it."""
    text = table.get(name, "")
    return int(text) if text.isdecimal() else None


def clock_of(runtime: Mapping[str, str]) -> int | None:
    """Return a broker's clock when it answered, in ms, at the middle of its second."""
    start_ms, uptime_s = count_of(runtime, "bootTimestamp"), uptime_of(runtime)
    return None if uptime_s is None or start_ms is None else start_ms + uptime_s * 1000 + _HALF_STEP_MS


def uptime_of(runtime: Mapping[str, str]) -> int | None:
    """Return the seconds of ``[ 1 days, 2 hours, 3 minutes, 4 seconds ]``."""
    parts = re.findall(r"([\d,]+) (?:days|hours|minutes|seconds)", runtime.get("runtime", ""))
    numbers = [int(part.replace(",", "")) for part in parts]  # Java writes 1,000 days
    return sum(map(int.__mul__, numbers, _UNITS_S)) if len(numbers) == len(_UNITS_S) else None
