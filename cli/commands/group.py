"""``triomq group``: list, create, delete, show, reset-offset."""

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from triomq.cli.arguments import admin_options
from triomq.cli.errors import UsageError
from triomq.cli.output import escape_controls, plural, table_of, write_records, write_result
from triomq.cli.session import admin_command
from triomq.client import Admin, GroupState
from triomq.client.cluster.route import similar_names
from triomq.client.nursery import in_parallel
from triomq.protocol.bodies.route import SubscriptionGroupConfig
from triomq.protocol.errors import ClientError
from triomq.protocol.names import is_system_group


@admin_command
async def list_groups(options: admin_options.GroupListOptions, admin: Admin) -> None:
    """Write the consumer groups with their number of members and their lag."""

    async def record(group: str) -> dict[str, Any]:
        members = len(await admin.group_member_ids(group))
        return {"group": group, "members": members, "lag": sum(row.lag for row in await admin.group_lag(group))}

    groups = [group for group in await admin.groups() if options.all or not is_system_group(group)]
    records = await in_parallel(record, groups)
    write_records(("GROUP", "MEMBERS", "LAG"), records, as_json=options.json)


async def check_known(admin: Admin, group: str) -> None:
    """Check that a broker has settings for the group.

    Raises:
        ClientError: none has; the text names similar groups.
    """
    groups = await admin.groups()
    if group not in groups:
        similar = similar_names("group", group, [each for each in groups if not is_system_group(each)])
        raise ClientError(
            f"group {group!r} does not exist: it was not created, and no member of it has reached a broker with a "
            f"topic that exists; {similar}; see triomq group list"
        )


@admin_command
async def create(options: admin_options.GroupCreateOptions, admin: Admin) -> None:
    """Create a group, or change the settings that are given."""
    before = (await admin.group_configs()).get(options.group)
    config = before or SubscriptionGroupConfig(options.group)
    config = replace(
        config,
        consume_enable=options.enable or (config.consume_enable and not options.disable),
        retry_max_times=config.retry_max_times if options.retries is None else options.retries,
    )
    if not options.dry_run:
        await admin.create_group(config)
    result = {
        "group": options.group,
        "retries": config.retry_max_times,
        "enabled": config.consume_enable,
        "existed": before is not None,
        "dry_run": options.dry_run,
    }
    verb = ("would be " if options.dry_run else "") + ("changed" if before else "created")
    text = f"group {options.group} {verb}: {plural(config.retry_max_times, 'retry', 'retries')}"
    write_result(result, text + ("" if config.consume_enable else ", consuming disabled"), as_json=options.json)


@admin_command
async def delete(options: admin_options.GroupDeleteOptions, admin: Admin) -> None:
    """Delete a group.

    Raises:
        UsageError: it has members online, which would create it again, and --force is not given.
    """
    await check_known(admin, options.group)
    members = await admin.group_member_ids(options.group)
    if members and not options.force:
        raise UsageError(
            f"group {options.group} has {plural(len(members), 'member')} online, whose next heartbeat creates it "
            f"again: stop {', '.join(members[:3])}{' ...' if len(members) > 3 else ''} first, or give --force"
        )
    if not options.dry_run:
        await admin.delete_group(options.group, remove_offsets=not options.keep_offsets)
    result = {"group": options.group, "keep_offsets": options.keep_offsets, "dry_run": options.dry_run}
    verb = "would be deleted" if options.dry_run else "deleted"
    write_result(result, f"group {options.group} {verb}", as_json=options.json)


# --- show ---------------------------------------------------------------------------------------------------


@admin_command
async def show(options: admin_options.GroupShowOptions, admin: Admin) -> None:
    """Write the members of a group, its offsets in each queue, and its problems."""
    state = await admin.group_state(options.group, options.topic)
    if state.members is None and not state.queues:
        await check_known(admin, options.group)
    described = describe(state, await admin.topics())
    text = f"group {options.group}: {plural(len(described['members']), 'member')}, lag {described['lag']}"
    troubles = [f"problem: {escape_controls(problem['text'])}" for problem in described["problems"]]
    tables = [table_of(columns, described[name]) for name, columns in _TABLES.items() if described[name]]
    write_result(described, text, *troubles, *tables, as_json=options.json)


_TABLES: Final = {
    "members": ("CLIENT", "ADDRESS", "LANGUAGE", "VERSION", "QUEUES"),
    "subscriptions": ("TOPIC", "EXPRESSION"),
    "queues": ("TOPIC", "BROKER", "QUEUE", "MAX", "COMMITTED", "LAG", "OWNER", "LOCKED BY", "PROGRESS", "STALLED"),
}


def describe(state: GroupState, topics: Collection[str]) -> dict[str, Any]:
    """Return the output of ``--json``; ``topics`` are all that exist."""
    connections = [] if state.members is None else state.members.connection_set
    subscriptions = {} if state.members is None else state.members.subscription_table
    return {
        "group": state.group,
        "lag": sum(queue.position.lag for queue in state.queues),
        "problems": problems(state, topics),
        "members": [
            {
                "client_id": connection.client_id,
                "address": connection.client_addr,
                "language": connection.language.name,
                "version": connection.version,
                "queues": sum(connection.client_id in queue.owners for queue in state.queues),
            }
            for connection in sorted(connections, key=lambda connection: connection.client_id)
        ],
        "subscriptions": [
            {"topic": topic, "expression": subscription.sub_string}
            for topic, subscription in sorted(subscriptions.items())
        ],
        "queues": [
            {
                "topic": queue.position.queue.topic,
                "broker": queue.position.queue.broker_name,
                "queue_id": queue.position.queue.queue_id,
                "max_offset": queue.position.broker_offset,
                "committed_offset": queue.position.consumer_offset,
                "lag": queue.position.lag,
                "owners": list(queue.owners),
                "lock_owner": queue.lock_owner,
                "last_progress_ms": queue.progress_ms,
                "stalled": None if queue.stall is None else queue.stall.cause.value,
            }
            for queue in state.queues
        ],
    }


def problems(state: GroupState, topics: Collection[str]) -> list[dict[str, Any]]:
    """Return the problems of a group: each with a kind for programs and a text for people."""
    found: list[dict[str, Any]] = []
    connections = [] if state.members is None else state.members.connection_set
    for client_id in state.duplicate_client_ids:
        addresses = [each.client_addr for each in connections if each.client_id == client_id]
        text = f"{len(addresses)} connections have the client id {client_id}: {', '.join(addresses)}"
        found.append({"kind": "duplicate-client-id", "client_id": client_id, "text": text})
    found += (
        {"kind": "different-subscriptions", "topic": difference.topic, "text": str(difference)}
        for difference in state.subscription_differences
    )
    found += ({"kind": "filter-selects-nothing", "topic": idle.topic, "text": str(idle)} for idle in state.idle_filters)
    found += ({"kind": "slow-handler", "topic": slow.topic, "text": str(slow)} for slow in state.slow_handlers)
    found += (
        {"kind": "missing-topic", "topic": topic, "text": f"topic {topic} is subscribed to, but does not exist"}
        for topic in state.missing_topics(topics)
    )
    for queue in state.queues:
        if queue.stall is not None:
            topic, broker, queue_id = queue.position.queue
            place = {"topic": topic, "broker": broker, "queue_id": queue_id}
            text = f"queue {queue.position.queue} is stalled: {queue.stall.text}"
            found.append({"kind": "stalled", **place, "cause": queue.stall.cause.value, "text": text})
    return found


# --- reset-offset -------------------------------------------------------------------------------------------


@admin_command
async def reset_offset(options: admin_options.GroupResetOffsetOptions, admin: Admin) -> None:
    """Make a group consume a topic from another offset.

    Raises:
        UsageError: the time has not come yet.
    """
    if isinstance(options.to, datetime) and options.to > datetime.now(UTC):
        raise UsageError(f"--to {options.to.isoformat()} is in the future: write latest for the end of the queues")
    await check_known(admin, options.group)
    done = await admin.reset_offsets(options.group, options.topic, options.to, dry_run=options.dry_run)
    queues = [
        {"broker": one.queue.broker_name, "queue_id": one.queue.queue_id, "before": one.before, "after": one.after}
        for one in done.changes
    ]
    result = {"group": options.group, "topic": options.topic, "dry_run": options.dry_run, "online": done.is_online}
    table = table_of(("BROKER", "QUEUE", "BEFORE", "AFTER"), queues)
    verb = "would resume" if options.dry_run else "resumes"
    how = "its members are notified, and follow within about 10 s" if done.is_online else "it has no member online"
    text = f"group {options.group} {verb} there in topic {options.topic}; {how}"
    write_result({**result, "queues": queues}, table, text, as_json=options.json)
