"""``triomq topic``: list, create, delete, show."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from triomq.cli.arguments.client_options import (
    ListOptions,
    TopicCreateOptions,
    TopicDeleteOptions,
    TopicShowOptions,
)
from triomq.cli.arguments.values import time_text
from triomq.cli.errors import IncompleteError
from triomq.cli.exit_codes import ExitCode
from triomq.cli.output import plural, write_json, write_result, write_table, write_text
from triomq.cli.session import client_config, run_until_signal
from triomq.client import Admin
from triomq.protocol.codes import Permission
from triomq.protocol.errors import NoRouteError
from triomq.protocol.names import topic_kind

_ROUTE_WAIT_S: Final = 5.0
"""An Apache broker registers a new topic with its name servers in a moment, at the latest after this time."""
_ROUTE_POLL_S: Final = 0.1
_PERMISSIONS: Final[Mapping[str, Permission]] = {
    "rw": Permission.READ | Permission.WRITE,
    "r": Permission.READ,
    "w": Permission.WRITE,
}


def list_topics(options: ListOptions) -> int:
    """Write the names of topics."""
    return run_until_signal(lambda: _list(options))


def create(options: TopicCreateOptions) -> int:
    """Create a topic or change it; end when clients can use it."""
    return run_until_signal(lambda: _create(options))


def delete(options: TopicDeleteOptions) -> int:
    """Delete a topic."""
    return run_until_signal(lambda: _delete(options))


def show(options: TopicShowOptions) -> int:
    """Write where a topic is and what its queues hold."""
    return run_until_signal(lambda: _show(options))


async def _list(options: ListOptions) -> int:
    async with Admin(namesrv=options.namesrv, config=client_config(options)) as admin:
        topics = await admin.topics()
        info = await admin.cluster()
    names = {*info.cluster_addr_table, *info.broker_addr_table}
    found = [(topic, topic_kind(topic, names)) for topic in topics]
    rows = [(topic, kind) for topic, kind in found if options.all or kind == "normal"]
    if options.json:
        for topic, kind in rows:
            write_json({"topic": topic, "kind": kind})
    elif options.all:
        write_table("", ("TOPIC", "KIND"), rows)
    else:
        write_table("", ("TOPIC",), [(topic,) for topic, _ in rows])
    return ExitCode.OK


async def _create(options: TopicCreateOptions) -> int:
    result = {
        "topic": options.topic,
        "queues": options.queues,
        "permission": options.permission,
        "dry_run": options.dry_run,
    }
    async with Admin(namesrv=options.namesrv, config=client_config(options)) as admin:
        result["existed"] = existed = options.topic in await admin.topics()
        if not options.dry_run:
            await admin.create_topic(options.topic, options.queues, int(_PERMISSIONS[options.permission]))
            await _wait_for_route(admin, options.topic)
    verb = ("would be " if options.dry_run else "") + ("changed" if existed else "created")
    queues = plural(options.queues, "queue")
    text = f"topic {options.topic} {verb}: {queues} on each broker, permission {options.permission}"
    write_result(result, text, as_json=options.json)
    return ExitCode.OK


async def _wait_for_route(admin: Admin, topic: str) -> None:
    with trio.move_on_after(_ROUTE_WAIT_S):
        while True:
            try:
                await admin.topic_route(topic)
            except NoRouteError:
                await trio.sleep(_ROUTE_POLL_S)
            else:
                return
    raise IncompleteError(
        f"topic {topic} was created, but its brokers did not tell the name server within {_ROUTE_WAIT_S:g} s; "
        f"look again with triomq topic show {topic}"
    )


async def _delete(options: TopicDeleteOptions) -> int:
    async with Admin(namesrv=options.namesrv, config=client_config(options)) as admin:
        try:
            await admin.topic_route(options.topic)
        except NoRouteError as exc:  # its text names similar topics, and says how to create this one
            parts = [part for part in str(exc).split("; ") if "create" not in part]
            raise NoRouteError("; ".join(parts)) from exc
        if not options.dry_run:
            await admin.delete_topic(options.topic)
    verb = "would be deleted" if options.dry_run else "deleted"
    write_result(
        {"topic": options.topic, "dry_run": options.dry_run}, f"topic {options.topic} {verb}", as_json=options.json
    )
    return ExitCode.OK


async def _show(options: TopicShowOptions) -> int:
    async with Admin(namesrv=options.namesrv, config=client_config(options)) as admin:
        route = await admin.topic_route(options.topic)
        stats = await admin.topic_stats(options.topic)
    addresses = {data.broker_name: data for data in route.broker_datas}
    brokers = [
        {
            "broker": queues.broker_name,
            "cluster": addresses[queues.broker_name].cluster if queues.broker_name in addresses else None,
            "address": addresses[queues.broker_name].broker_addrs.get(0) if queues.broker_name in addresses else None,
            "permission": permission_text(queues.perm),
            "read_queues": queues.read_queue_nums,
            "write_queues": queues.write_queue_nums,
        }
        for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name)
    ]
    queues: list[dict[str, Any]] = [
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
    total = sum(queue["messages"] for queue in queues)
    result = {"topic": options.topic, "messages": total, "brokers": brokers, "queues": queues}
    if options.json:
        write_json(result)
    else:
        _draw(result)
    return ExitCode.OK


def _draw(found: Mapping[str, Any]) -> None:
    write_text(f"topic {found['topic']}: {plural(found['messages'], 'message')} in the queues\n")
    for columns, rows in (
        (("BROKER", "CLUSTER", "ADDRESS", "PERMISSION", "READ", "WRITE"), found["brokers"]),
        (("BROKER", "QUEUE", "MIN", "MAX", "MESSAGES", "LAST STORED"), found["queues"]),
    ):
        write_table("", columns, [tuple(_shown(name, value) for name, value in row.items()) for row in rows])


def _shown(name: str, value: Any) -> Any:
    return local_time(value) if name == "last_stored_ms" else value


def local_time(milliseconds: int | None) -> str:
    """Return a broker's time as local time."""
    return "-" if milliseconds is None else time_text(milliseconds)


def permission_text(perm: int) -> str:
    """Return ``rw``, ``r``, ``w`` or ``none`` for the bits of a topic."""
    return ("r" if perm & Permission.READ else "") + ("w" if perm & Permission.WRITE else "") or "none"
