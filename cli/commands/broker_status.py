"""``triomq broker status`` and ``set``: settings and counters of running brokers."""

import re
from collections.abc import Mapping
from typing import Any, Final

from triomq.cli.arguments.client_options import BrokerSetOptions, BrokerStatusOptions
from triomq.cli.arguments.values import escape_controls
from triomq.cli.errors import UsageError
from triomq.cli.output import cells, label, write_json, write_result, write_text
from triomq.cli.session import client_command, open_brokers
from triomq.client.admin.broker_answers import uptime_of
from triomq.protocol.bodies.route import KVTable
from triomq.protocol.codes import RequestCode
from triomq.protocol.java import properties_text, read_properties

_DURABILITIES: Final = {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}
#: Only triomq's brokers report these: ``shed_sends`` as ``triomqShedSends``.
_COUNTERS: Final = (
    "connections", "consumer_groups", "producer_groups", "duplicate_client_ids", "different_subscriptions",
    "stalled_queues", "denied_requests", "limited_requests", "refused_connections", "given_up_peers", "shed_sends",
)  # fmt: skip


@client_command
async def run(options: BrokerStatusOptions) -> None:
    """Write the settings and counters of each broker.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with open_brokers(options, options.address) as (instance, addresses):
        for address in addresses:
            runtime = await instance.requests.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            settings = await instance.requests.ask(address, RequestCode.GET_BROKER_CONFIG)
            texts = read_properties(bytes(settings.body).decode())
            found = describe(address, KVTable.decode(runtime.body).table, texts)
            if options.json:
                write_json(found)
            else:
                _draw(found)


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


def describe(address: str, runtime: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the output of ``--json``; ``None``: the broker does not report it."""
    flush = settings.get("flushDiskType", "")
    disk = runtime.get("commitLogDiskRatio", "")
    begin, end = _number(runtime, "commitLogMinOffset"), _number(runtime, "commitLogMaxOffset")
    return {
        "address": address,
        "broker": settings.get("brokerName"),
        "cluster": settings.get("brokerClusterName"),
        "version": runtime.get("brokerVersionDesc"),
        "triomq_version": runtime.get("triomqVersion"),
        "started_ms": _number(runtime, "bootTimestamp"),
        "uptime_s": uptime_of(runtime),
        "durability": _DURABILITIES.get(flush, flush) or None,
        "store": settings.get("storePathRootDir"),
        "commit_log_bytes": None if begin is None or end is None else end - begin,
        "disk_used_percent": round(float(disk) * 100) if re.fullmatch(r"\d+(\.\d+)?", disk) else None,
        "refuses_messages": runtime.get("triomqRefusal") or None,
        "retention_hours": _number(settings, "fileReservedTime"),
        "oldest_message_ms": _number(runtime, "earliestMessageTimeStamp"),
        "messages_stored": _number(runtime, "msgPutTotalTodayNow"),
        "messages_delivered": _number(runtime, "msgGetTotalTodayNow"),
        "stored_per_s": _rate(runtime.get("putTps", "")),
        "delivered_per_s": _rate(runtime.get("getTransferedTps") or runtime.get("getTransferredTps", "")),  # 5.x
    } | {name: _number(runtime, f"triomq{name.title().replace('_', '')}") for name in _COUNTERS}


def _number(table: Mapping[str, str], name: str) -> int | None:
    text = table.get(name, "")
    return int(text) if text.isdecimal() else None


def _rate(text: str) -> float | None:
    """Return the first of the three rates, that of the last 10 s."""
    first = text.partition(" ")[0]
    return round(float(first), 1) if re.fullmatch(r"\d+(\.\d+)?", first) else None


def _draw(found: Mapping[str, Any]) -> None:
    width = max(map(len, found)) + 2
    for name, value in zip(found, cells(found), strict=True):
        text = "-" if value is None else escape_controls(str(value))
        write_text(f"{label(name):{width}}{text}\n")
    write_text("\n")
