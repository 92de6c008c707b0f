"""``triomq ping``: ask whether a name server and its brokers answer; a container's health check.

``triomq doctor``: examine a cluster, and describe each fault and its remedy.
"""

from typing import Any

import trio

from triomq.cli.arguments.client_options import ClientOptions
from triomq.cli.arguments.values import escape_controls
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import plural, write_json, write_table, write_text
from triomq.cli.session import client_command, client_config, open_admin
from triomq.client import ClientInstance
from triomq.client.admin.broker_answers import BrokerAnswer, ask_brokers, describe_missing


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
            broker["note"]
            or (broker["refuses_messages"] and f"refuses messages: {broker['refuses_messages']}")
            or "ok",
        )
        for broker in found["brokers"]
    ]
    rows += [
        (broker["broker"], broker["broker_id"], broker["address"], None, None, broker["note"])
        for broker in found["missing_brokers"]
    ]
    write_table(("BROKER", "ID", "ADDRESS", "VERSION", "MS", "STATE"), rows)


def _version_text(version: str | None, triomq_version: str | None) -> str | None:
    return version if triomq_version is None else f"triomq {triomq_version} ({version})"


@client_command
async def doctor(options: ClientOptions) -> int:
    """Write all findings; fail if there is one.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with open_admin(options) as admin:
        found = await admin.diagnose()
    if options.json:
        findings = [finding._asdict() for finding in found.findings]
        write_json({"healthy": not findings, "brokers": found.brokers, "groups": found.groups, "findings": findings})
    else:
        for finding in found.findings:
            write_text(escape_controls(f"{finding.kind}: {finding.text}") + "\n")
            write_text(escape_controls(f"  what to do: {finding.advice}") + "\n")
        problems = plural(len(found.findings), "problem") if found.findings else "no problem"
        examined = f"{plural(found.brokers, 'broker')} and {plural(found.groups, 'consumer group')}"
        write_text(f"{problems} found in {examined}\n")
    return ExitCode.FAILED if found.findings else ExitCode.OK
