"""One consumer group: its members, the owner and the lag of each queue, and why queues stall; resets of offsets."""

from datetime import UTC, datetime
from typing import Any, Final

from triomq.client import Admin, GroupState
from triomq.client.admin.diagnosis import Facts, judge
from triomq.client.cluster.route import similar_names
from triomq.client.consumer.config import Start, StartPosition
from triomq.client.environment import wall_clock_ms
from triomq.dashboard.formats import to
from triomq.dashboard.pages.groups import age_s, dead_letters, lags_of
from triomq.dashboard.view import BadRequestError, Change, Done, NotFoundError, Page, View, slice_of
from triomq.protocol.bodies.statistics import OffsetWrapper
from triomq.protocol.names import RETRY_PREFIX, is_system_group, retry_topic

#: Members are asked for their state, and brokers wait some seconds for one that hangs.
_LIMIT_S: Final = 8.0


async def group(view: View) -> dict[str, Any]:
    """Return members, queues and problems of a group."""
    name = view.required("name")
    view.command("group", "show", name)
    view.check_brokers()
    state = await view.sampled.remembered(f"group {name}", lambda: view.admin.group_state(name))
    config = (await view.sampled.remembered("group configs", view.admin.group_configs)).get(name)
    if config is None and state.members is None and not state.queues:
        raise NotFoundError(await _unknown(view.admin, name))
    kinds = await view.sampled.topic_kinds()
    facts = Facts(
        now_ms=wall_clock_ms(),
        name_servers={},
        clusters=(),
        brokers=(),
        groups=[state],
        not_examined={},
        topics=kinds.keys(),
    )
    positions = {
        each.queue: OffsetWrapper(each.broker_offset, each.consumer_offset, each.last_timestamp)
        for each in (queue.position for queue in state.queues)
    }
    oldest_ms = await view.admin.oldest_waiting_ms(positions)
    lags = lags_of(positions)
    return {
        "title": f"Group {name}",
        "group": name,
        "state": state,
        "config": config,
        "members": _members(state),
        "problems": judge(facts),
        "lags": sorted(lags.items()),
        "lag": sum(lags.values()),
        "oldest_s": age_s(oldest_ms),
        "retries": lags[retry_topic(name)],
        "dead": (await dead_letters(view, [name]))[name],
        "topics": sorted(_topics(state)),
        "part": slice_of(list(state.queues), view.page_number),
    }


async def _unknown(admin: Admin, name: str) -> str:
    known = [each for each in await admin.groups() if not is_system_group(each)]
    return f"group {name!r} does not exist: it was not created, and no member of it came; " + similar_names(
        "group", name, known
    )


def _members(state: GroupState) -> list[dict[str, Any]]:
    """Return the connections, sorted by client id, with their number of queues."""
    connections = [] if state.members is None else state.members.connection_set
    return [
        {
            "connection": connection,
            "queues": sum(connection.client_id in queue.owners for queue in state.queues),
            "is_doubled": connection.client_id in state.duplicate_client_ids,
        }
        for connection in sorted(connections, key=lambda each: (each.client_id, each.client_addr))
    ]


def _topics(state: GroupState) -> set[str]:
    """Return the topics of a group whose offsets can be reset."""
    subscribed = set() if state.members is None else set(state.members.subscription_table)
    topics = subscribed | {queue.position.queue.topic for queue in state.queues}
    return {topic for topic in topics if not topic.startswith(RETRY_PREFIX)}


# --- resets ---------------------------------------------------------------------------------------------------


async def plan(view: View) -> dict[str, Any]:
    """Return the offsets that a reset would set."""
    name, topic, start = await _wanted(view)
    done = await view.admin.reset_offsets(name, topic, start, dry_run=True)
    _show_command(view, name, topic, start, "--dry-run")
    _show_command(view, name, topic, start)
    steps = [one.after - one.before for one in done.changes if one.before is not None]
    return {
        "topic": topic,
        "start": start,
        "is_online": done.is_online,
        "part": slice_of(list(done.changes), 1),
        "skipped": sum(step for step in steps if step > 0),
        "again": -sum(step for step in steps if step < 0),
    }


async def reset(view: View) -> Done:
    """Reset the offsets of a group in a topic."""
    name, topic, start = await _wanted(view)
    done = await view.admin.reset_offsets(name, topic, start)
    view.sampled.forget()
    how = "its members follow within about 10 s" if done.is_online else "it has no member online"
    where = start.isoformat() if isinstance(start, datetime) else str(start)
    return Done(f"Group {name} resumes at {where} in topic {topic}; {how}.", to("group", name=name))


async def _wanted(view: View) -> tuple[str, str, Start]:
    """Return group, topic and place of a form.

    Raises:
        BadRequestError: one is missing, or the time is none, or has not come yet.
        NotFoundError: the group does not exist.
    """
    name, topic = view.required("group"), view.required("topic")
    where = view.required("to")
    start: Start
    if where in ("earliest", "latest"):
        start = StartPosition(where)
    elif where != "time":
        raise BadRequestError(f"{where!r} is none of earliest, latest and time")
    else:
        start = _time(view.required("time"))
    if name not in await view.admin.groups():
        raise NotFoundError(await _unknown(view.admin, name))
    return name, topic, start


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError(f"{text!r} is no time: write it as 2026-01-31T12:00") from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    if time > datetime.now(UTC):
        raise BadRequestError(f"{time.isoformat()} is in the future: choose the end of the queues instead")
    return time


def _show_command(view: View, name: str, topic: str, start: Start, *words: str) -> None:
    where = start.isoformat() if isinstance(start, datetime) else str(start)
    view.command("group", "reset-offset", name, "--topic", topic, "--to", where, *words)


PAGES: Final = (Page("group", "Group", group, "group.html", polls_s=5, limit_s=_LIMIT_S),)
CHANGES: Final = (
    Change("group-reset", "Reset the offsets", reset, asks_for="group", plan=plan, template="group_reset.html"),
)
