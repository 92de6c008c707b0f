"""``triomq topic``: list, create, update, delete, show."""

from collections.abc import Mapping
from typing import Any, Final

from triomq.cli.arguments import admin_options
from triomq.cli.errors import IncompleteError, UsageError
from triomq.cli.output import escape_controls, plural, table_of, write_records, write_result
from triomq.cli.session import admin_command
from triomq.client import Admin, TopicSettings
from triomq.client.admin.broker_answers import describe_missing
from triomq.client.admin.topic_config import MESSAGE_TYPE
from triomq.protocol.bodies.route import TopicConfig
from triomq.protocol.codes import Permission
from triomq.protocol.errors import NoRouteError
from triomq.protocol.names import topic_kind

_PERMISSIONS: Final[Mapping[str, Permission]] = {
    "rw": Permission.READ | Permission.WRITE,
    "r": Permission.READ,
    "w": Permission.WRITE,
}


@admin_command
async def list_topics(options: admin_options.TopicListOptions, admin: Admin) -> None:
    """Write the names of topics."""
    topics = await admin.topics()
    info = await admin.cluster()
    names = {*info.cluster_addr_table, *info.broker_addr_table}
    found = [{"topic": topic, "kind": topic_kind(topic, names)} for topic in topics]
    if options.all:
        write_records(("TOPIC", "KIND"), found, as_json=options.json)
        return
    found = [record for record in found if record["kind"] == "normal"]
    write_records(("TOPIC",), found, as_json=options.json, rows=[(record["topic"],) for record in found])


@admin_command
async def create(options: admin_options.TopicCreateOptions, admin: Admin) -> None:
    """Create a topic where it does not exist.

    Raises:
        ConfigError: it exists with other settings.
    """
    perm = None if options.permission is None else int(_PERMISSIONS[options.permission])
    created = await admin.create_topic(options.topic, options.queues, perm, dry_run=options.dry_run)
    if created and options.dry_run:
        config = TopicConfig(options.topic, options.queues or 4, options.queues or 4, perm or 6)
    else:
        config = await admin.topic_config(options.topic)
    result = {
        "topic": options.topic,
        "queues": config.read_queue_nums,
        "permission": permission_text(config.perm),
        "dry_run": options.dry_run,
        "existed": not created,
    }
    state = ("would be " if options.dry_run else "") + "created" if created else "exists already and is left as it is"
    queues = plural(config.read_queue_nums, "queue")
    text = f"topic {options.topic} {state}: {queues} on each broker, permission {result['permission']}"
    write_result(result, text, as_json=options.json)


@admin_command
async def update(options: admin_options.TopicUpdateOptions, admin: Admin) -> None:
    """Change the given settings of a topic.

    Raises:
        UsageError: no setting is given.
        ConfigError: messages would be hidden, and --force is not given.
        IncompleteError: a broker does not keep a setting.
    """
    settings = TopicSettings(
        read_queues=options.read_queues or options.queues,
        write_queues=options.write_queues or options.queues,
        perm=None if options.permission is None else int(_PERMISSIONS[options.permission]),
        order=None if options.order is None else options.order == "yes",
        message_type=options.type and options.type.upper(),
    )
    if settings == TopicSettings():
        raise UsageError("name what to change, such as --queues 8 or --permission r")
    changes = await admin.update_topic(
        options.topic, settings, broker_name=options.broker, force=options.force, dry_run=options.dry_run
    )
    brokers = [
        {
            "broker": change.broker_name,
            "before": _describe(change.before),
            "after": _describe(change.after),
            "hidden_messages": change.hidden,
        }
        for change in changes
    ]
    result = {"topic": options.topic, "dry_run": options.dry_run, "brokers": brokers}
    write_result(result, "\n".join(map(_change_text, brokers)), as_json=options.json)
    forgetful = [change.broker_name for change in changes if settings.applied_to(change.after) != change.after]
    if forgetful:
        raise IncompleteError(f"these brokers do not keep --order or --type: {', '.join(forgetful)}")


def _describe(config: TopicConfig) -> dict[str, Any]:
    """Return the settings of a topic on one broker for JSON."""
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "permission": permission_text(config.perm),
        "order": config.order,
        "type": (config.attributes or {}).get(MESSAGE_TYPE),
    }


def _change_text(found: Mapping[str, Any]) -> str:
    before, after = found["before"], found["after"]
    parts = [f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    text = ", ".join(parts) or "nothing to change"
    if found["hidden_messages"]:
        text += f"; hidden from consumers: {plural(found['hidden_messages'], 'message')}"
    unread = range(after["read_queues"], after["write_queues"])
    if unread:
        text += f"; nobody consumes what is sent to queue {', '.join(map(str, unread))}: more write than read queues"
    return escape_controls(f"{found['broker']}: {text}")


@admin_command
async def delete(options: admin_options.TopicDeleteOptions, admin: Admin) -> None:
    """Delete a topic."""
    try:
        await admin.topic_route(options.topic)
    except NoRouteError as exc:  # its text suggests similar topics, and how to create this one
        parts = [part for part in str(exc).split("; ") if "create" not in part]
        raise NoRouteError("; ".join(parts)) from exc
    if not options.dry_run:
        await admin.delete_topic(options.topic)
    text = f"topic {options.topic} {'would be deleted' if options.dry_run else 'deleted'}"
    write_result({"topic": options.topic, "dry_run": options.dry_run}, text, as_json=options.json)


@admin_command
async def show(options: admin_options.TopicShowOptions, admin: Admin) -> None:
    """Write the brokers and queues of a topic."""
    route = await admin.topic_route(options.topic)
    stats = await admin.topic_stats(options.topic)
    missing = list(map(describe_missing, (await admin.cluster()).missing_brokers or ()))
    addresses = {data.broker_name: data for data in route.broker_datas}
    brokers = []
    for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name):
        data = addresses.get(queues.broker_name)
        brokers.append(
            {
                "broker": queues.broker_name,
                "cluster": data and data.cluster,
                "address": data and data.broker_addrs.get(0),
                "permission": permission_text(queues.perm),
                "read_queues": queues.read_queue_nums,
                "write_queues": queues.write_queue_nums,
            }
        )
    rows = [
        {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": found.min_offset,
            "max_offset": found.max_offset,
            "messages": found.max_offset - found.min_offset,
            "last_stored_ms": found.last_update_timestamp or None,
        }
        for queue, found in stats.items()
    ]
    messages = sum(found.max_offset - found.min_offset for found in stats.values())
    notes = [f"; queues on a missing broker are not shown: {text}" for text in missing]
    text = f"topic {options.topic}: {plural(messages, 'message')} in the queues{''.join(notes)}"
    tables = (
        table_of(("BROKER", "CLUSTER", "ADDRESS", "PERMISSION", "READ", "WRITE"), brokers),
        table_of(("BROKER", "QUEUE", "MIN", "MAX", "MESSAGES", "LAST STORED"), rows),
    )
    result = {"topic": options.topic, "messages": messages, "brokers": brokers, "queues": rows, "missing": missing}
    write_result(result, escape_controls(text), *tables, as_json=options.json)


def permission_text(perm: int) -> str:
    """Return ``rw``, ``r``, ``w`` or ``none`` for the bits of a topic."""
    return ("r" if perm & Permission.READ else "") + ("w" if perm & Permission.WRITE else "") or "none"
