"""``triomq group``: list, show."""

from collections.abc import Mapping
from typing import Any

from triomq.cli.client_options import GroupListOptions, GroupShowOptions
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import write_json, write_table, write_text
from triomq.cli.session import client_config, run_until_signal
from triomq.cli.system_names import is_system_group
from triomq.client import Admin
from triomq.client.admin import GroupLag
from triomq.protocol.bodies import ConsumerConnection
from triomq.protocol.errors import ClientError, ConsumerNotOnlineError


def list_groups(options: GroupListOptions) -> int:
    """Write the consumer groups with their number of members and their lag."""
    return run_until_signal(lambda: _list(options))


def show(options: GroupShowOptions) -> int:
    """Write the members of a group and where it stands in each queue."""
    return run_until_signal(lambda: _show(options))


async def _list(options: GroupListOptions) -> int:
    rows = []
    async with Admin(namesrv=options.namesrv, config=client_config(options)) as admin:
        for group in await admin.groups():
            if options.all or not is_system_group(group):
                members = len(await admin.group_member_ids(group))
                rows.append((group, members, sum(row.lag for row in await admin.group_lag(group))))
    if options.json:
        for group, members, lag in rows:
            write_json({"group": group, "members": members, "lag": lag})
    else:
        write_table("", ("GROUP", "MEMBERS", "LAG"), rows)
    return ExitCode.OK


async def _show(options: GroupShowOptions) -> int:
    async with Admin(namesrv=options.namesrv, config=client_config(options)) as admin:
        lags = await admin.group_lag(options.group, options.topic)
        connected = await _members(admin, options.group)
        if connected is None and not lags and options.group not in (groups := await admin.groups()):
            known = ", ".join(group for group in groups if not is_system_group(group)) or "none"
            raise ClientError(f"group {options.group!r} is not known to the broker; known groups: {known}")
    found = describe(options.group, connected, lags)
    if options.json:
        write_json(found)
    else:
        _draw(found)
    return ExitCode.OK


async def _members(admin: Admin, group: str) -> ConsumerConnection | None:
    try:
        return await admin.group_members(group)
    except ConsumerNotOnlineError:
        return None


def describe(group: str, connected: ConsumerConnection | None, lags: list[GroupLag]) -> dict[str, Any]:
    """Return everything, as ``--json`` writes it."""
    connections = [] if connected is None else connected.connection_set
    subscriptions = {} if connected is None else connected.subscription_table
    return {
        "group": group,
        "lag": sum(row.lag for row in lags),
        "members": [
            {
                "client_id": connection.client_id,
                "address": connection.client_addr,
                "language": connection.language.name,
                "version": connection.version,
            }
            for connection in sorted(connections, key=lambda connection: connection.client_id)
        ],
        "subscriptions": [
            {"topic": topic, "expression": subscription.sub_string}
            for topic, subscription in sorted(subscriptions.items())
        ],
        "queues": [
            {
                "topic": row.queue.topic,
                "broker": row.queue.broker_name,
                "queue_id": row.queue.queue_id,
                "max_offset": row.broker_offset,
                "committed_offset": row.consumer_offset,
                "lag": row.lag,
            }
            for row in lags
        ],
    }


def _draw(found: Mapping[str, Any]) -> None:
    members = len(found["members"])
    write_text(f"group {found['group']}: {members} {'member' if members == 1 else 'members'}, lag {found['lag']}\n")
    for columns, name in (
        (("CLIENT", "ADDRESS", "LANGUAGE", "VERSION"), "members"),
        (("TOPIC", "EXPRESSION"), "subscriptions"),
        (("TOPIC", "BROKER", "QUEUE", "MAX", "COMMITTED", "LAG"), "queues"),
    ):
        if found[name]:
            write_table("", columns, [tuple(row.values()) for row in found[name]])
