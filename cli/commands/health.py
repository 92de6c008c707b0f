"""The state of running servers.

``triomq ping`` asks whether a name server and its brokers answer, as a container's health check does; ``doctor``
describes faults of a cluster and their remedies; ``broker status`` and ``set`` show and change settings of brokers.
"""

from collections.abc import Mapping
from typing import Any, Final

import trio

from triomq.cli.arguments.options import BrokerSetOptions, BrokerStatusOptions, ClientOptions
from triomq.cli.errors import ExitCode, UsageError
from triomq.cli.output import Cell, Table, cells, escape_controls, label, plural, write_result
from triomq.cli.session import admin_command, client_command, client_config, open_brokers
from triomq.client import Admin, ClientInstance
from triomq.client.admin.broker_answers import (
    BrokerAnswer,
    ask_brokers,
    count_of,
    describe_missing,
    read_settings,
    uptime_of,
)
from triomq.client.admin.traffic import counters_of
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import RequestCode
from triomq.protocol.java import properties_text

_DURABILITIES: Final = {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}
#: Only triomq's brokers report these: ``shed_sends`` as ``triomqShedSends``.
_COUNTERS: Final = (
    "connections", "consumer_groups", "producer_groups", "duplicate_client_ids", "different_subscriptions",
    "stalled_queues", "denied_requests", "limited_requests", "refused_connections", "given_up_peers", "shed_sends",
)  # fmt: skip


@client_command
async def ping(options: ClientOptions) -> int:
    """Ask the name server, then each broker that it knows.

    A broker that answers only at the name server's host is healthy, with a note: a container may advertise an address
    for clients elsewhere.  A broker that left without unregistering is named, and changes nothing of the exit code.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with ClientInstance(options.namesrv, client_config(options)) as instance:
        began = trio.current_time()
        cluster = await instance.routes.cluster()
        latency_ms = round((trio.current_time() - began) * 1000, 2)
        brokers = list(map(_describe, await ask_brokers(instance)))
        found = {
            "healthy": all(broker["healthy"] for broker in brokers),
            "namesrv": instance.requests.name_servers.current,
            "latency_ms": latency_ms,
            "brokers": brokers,
            "missing_brokers": [
                {
                    "broker": broker.broker_name,
                    "broker_id": broker.broker_id,
                    "address": broker.broker_addr,
                    "left_s": broker.seconds_ago,
                    "note": describe_missing(broker),
                }
                for broker in cluster.missing_brokers or ()
            ],
        }
    _write(found, options)
    return ExitCode.OK if found["healthy"] else ExitCode.UNREACHABLE


def _describe(broker: BrokerAnswer) -> dict[str, Any]:
    """Return the answer of a broker for JSON."""
    is_healthy = broker.reached_at is not None
    note = broker.error
    if is_healthy and note is not None:
        note = f"answers at {broker.reached_at} only, not at the address it advertises: {note}"
    elif is_healthy and not broker.runtime:
        note = "answers; its version needs an administrator's account, or its --admin-listen"
    return {
        "broker": broker.name,
        "broker_id": broker.broker_id,
        "address": broker.address,
        "healthy": is_healthy,
        "note": note,
        "refuses_messages": broker.refusal,
        "latency_ms": round(broker.latency_ms, 2) if is_healthy else None,
        "version": broker.runtime.get("brokerVersionDesc"),  # of RocketMQ, whose protocol it speaks
        "triomq_version": broker.runtime.get("triomqVersion"),
    }


def _write(found: dict[str, Any], options: ClientOptions) -> None:
    text = f"name server {found['namesrv']} answers in {found['latency_ms']} ms"
    rows: list[tuple[Cell, ...]] = []
    for broker in found["brokers"]:
        version, refusal = broker["version"], broker["refuses_messages"]
        if broker["triomq_version"]:
            version = f"triomq {broker['triomq_version']} ({version})"
        state = broker["note"] or (refusal and f"refuses messages: {refusal}") or "ok"
        place = (broker["broker"], broker["broker_id"], broker["address"])
        rows.append((*place, version, broker["latency_ms"], state))
    rows += [
        (broker["broker"], broker["broker_id"], broker["address"], None, None, broker["note"])
        for broker in found["missing_brokers"]
    ]
    table = Table(("BROKER", "ID", "ADDRESS", "VERSION", "MS", "STATE"), rows)
    write_result(found, text, table, as_json=options.json)


@admin_command
async def doctor(options: ClientOptions, admin: Admin) -> int:
    """Write all findings; fail if there is one.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    found = await admin.diagnose()
    findings = [finding._asdict() for finding in found.findings]
    result = {"healthy": not findings, "brokers": found.brokers, "groups": found.groups, "findings": findings}
    texts = [
        escape_controls(text)
        for finding in found.findings
        for text in (f"{finding.kind}: {finding.text}", f"  what to do: {finding.advice}")
    ]
    problems = plural(len(findings), "problem") if findings else "no problem"
    examined = f"{plural(found.brokers, 'broker')} and {plural(found.groups, 'consumer group')}"
    write_result(result, *texts, f"{problems} found in {examined}", as_json=options.json)
    return ExitCode.FAILED if found.findings else ExitCode.OK


@client_command
async def status(options: BrokerStatusOptions) -> None:
    """Write the settings and counters of each broker.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with open_brokers(options, options.address) as (instance, addresses):
        for address in addresses:
            runtime = await instance.requests.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            settings = await read_settings(instance, address)
            found = describe_broker(address, KVTable.decode(runtime.body).table, settings)
            width = max(map(len, found)) + 2
            texts = [
                f"{label(name):{width}}{'-' if value is None else escape_controls(str(value))}"
                for name, value in zip(found, cells(found), strict=True)
            ]
            write_result(found, *texts, "", as_json=options.json)


@client_command
async def change(options: BrokerSetOptions) -> None:
    """Change settings of each broker.

    Raises:
        UsageError: a setting has no value.
        BrokerResponseError: a broker refuses, and says which setting.
        NameServerError: no name server answered, or it knows no broker.
    """
    settings = {
        name: value for name, separator, value in (text.partition("=") for text in options.settings) if separator
    }
    if len(settings) < len(options.settings):
        raise UsageError(f"{' '.join(options.settings)}: write each setting once, as NAME=VALUE")
    async with open_brokers(options, options.broker) as (instance, addresses):
        for address in addresses:
            body = properties_text(settings).encode()
            await instance.requests.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
            text = escape_controls(f"changed at {address}: {' '.join(options.settings)}")
            write_result({"address": address, "settings": settings}, text, as_json=options.json)


def describe_broker(address: str, runtime: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the output of ``--json``; ``None``: the broker does not report it."""
    counters, flush = counters_of(runtime), settings.get("flushDiskType", "")
    return {
        "address": address,
        "broker": settings.get("brokerName"),
        "cluster": settings.get("brokerClusterName"),
        "version": runtime.get("brokerVersionDesc"),
        "triomq_version": runtime.get("triomqVersion"),
        "started_ms": count_of(runtime, "bootTimestamp"),
        "uptime_s": uptime_of(runtime),
        "durability": _DURABILITIES.get(flush, flush) or None,
        "store": settings.get("storePathRootDir"),
        "commit_log_bytes": counters.log_bytes,
        "disk_used_percent": None if counters.disk is None else round(counters.disk * 100),
        "refuses_messages": runtime.get("triomqRefusal") or None,
        "retention_hours": count_of(settings, "fileReservedTime"),
        "oldest_message_ms": count_of(runtime, "earliestMessageTimeStamp"),
        "messages_stored": counters.put,
        "messages_delivered": counters.got,
        "stored_per_s": _rounded(counters.put_per_s),
        "delivered_per_s": _rounded(counters.got_per_s),
    } | {name: count_of(runtime, f"triomq{name.title().replace('_', '')}") for name in _COUNTERS}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)
