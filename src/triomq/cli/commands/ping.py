"""``triomq ping``: ask whether a name server and its brokers answer; a container's health check."""

from typing import Any

import trio

from triomq.cli.arguments.client_options import ClientOptions
from triomq.cli.errors import one_line
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import write_json, write_table, write_text
from triomq.cli.session import client_command, client_config
from triomq.client import ClientInstance
from triomq.client.cluster.route import dialled_address
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import RequestCode
from triomq.protocol.errors import BrokerResponseError, ClientError, NameServerError, ProtocolError

_REMOTE_ERRORS = (ClientError, BrokerResponseError, ProtocolError)


@client_command
async def run(options: ClientOptions) -> int:
    """Ask the name server, then each broker that it knows.

    A broker that answers only at the name server's host is healthy, with a note: a container may advertise an address
    for clients elsewhere.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with ClientInstance(options.namesrv, client_config(options)) as instance:
        began = trio.current_time()
        cluster = await instance.routes.cluster()
        latency_ms = _since_ms(began)
        addresses = [
            (data.broker_name, broker_id, address)
            for _, data in sorted(cluster.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        if not addresses:
            name_server = instance.requests.name_servers.current
            raise NameServerError(f"name server {name_server} answers, but knows no broker: is one registered with it?")
        brokers = [await _ask(instance, *broker) for broker in addresses]
        found = {
            "healthy": all(broker["healthy"] for broker in brokers),
            "namesrv": instance.requests.name_servers.current,
            "latency_ms": latency_ms,
            "brokers": brokers,
        }
    _tell(found, options)
    return ExitCode.OK if found["healthy"] else ExitCode.UNREACHABLE


async def _ask(instance: ClientInstance, name: str, broker_id: int, address: str) -> dict[str, Any]:
    """Ask a broker at its address, then at the name server's host, and return what it says."""
    found: dict[str, Any] = {"broker": name, "broker_id": broker_id, "address": address, "healthy": True, "note": None}
    try:
        return found | await _runtime(instance, address)
    except _REMOTE_ERRORS as exc:
        reason = one_line(exc)
    elsewhere = dialled_address(address, instance.requests.name_servers.current)
    if elsewhere != address and instance.config.advertise == "as-advertised":
        try:
            found |= await _runtime(instance, elsewhere)
        except _REMOTE_ERRORS:
            pass
        else:
            return found | {"note": f"answers at {elsewhere} only, not at the address it advertises: {reason}"}
    return found | {"healthy": False, "latency_ms": None, "version": None, "triomq_version": None, "note": reason}


async def _runtime(instance: ClientInstance, address: str) -> dict[str, Any]:
    began = trio.current_time()
    response = await instance.requests.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = KVTable.decode(response.body).table
    version, ours = table.get("brokerVersionDesc"), table.get("triomqVersion")
    # brokerVersionDesc is the version of RocketMQ whose protocol it speaks
    return {"latency_ms": _since_ms(began), "version": version, "triomq_version": ours}


def _since_ms(began: float) -> float:
    return round((trio.current_time() - began) * 1000, 2)


def _tell(found: dict[str, Any], options: ClientOptions) -> None:
    if options.json:
        write_json(found)
        return
    write_text(f"name server {found['namesrv']} answers in {found['latency_ms']} ms\n")
    rows = [
        (
            broker["broker"],
            broker["broker_id"],
            broker["address"],
            _version_text(broker["version"], broker["triomq_version"]),
            broker["latency_ms"],
            broker["note"] or "ok",
        )
        for broker in found["brokers"]
    ]
    write_table(("BROKER", "ID", "ADDRESS", "VERSION", "MS", "STATE"), rows)


def _version_text(version: str | None, triomq_version: str | None) -> str | None:
    return version if triomq_version is None else f"triomq {triomq_version} ({version})"
