"""The list of consumer groups: members, lag, retries, dead letters, problems."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from triomq.client.admin.traffic import Positions
from triomq.client.environment import wall_clock_ms
from triomq.client.nursery import in_parallel
from triomq.dashboard.view import Page, View, slice_of
from triomq.protocol.bodies.group_health import duplicates
from triomq.protocol.errors import REMOTE_ERRORS, ConsumerNotOnlineError
from triomq.protocol.names import dead_letter_topic, is_system_group, retry_topic


async def groups(view: View) -> dict[str, Any]:
    """Return one page of the groups whose names contain the search text."""
    search, shows_all = view.query.get("q", "").strip(), view.query.get("all") == "1"
    view.command("group", "list", *(["--all"] if shows_all else []))
    view.check_brokers()
    names = await view.sampled.remembered("groups", view.admin.groups)
    positions = await view.sampled.remembered("positions", view.admin.positions)
    shown = sorted(name for name in {*names, *positions} if shows_all or not is_system_group(name))
    part = slice_of([name for name in shown if search.lower() in name.lower()], view.page_number)
    diagnosis = await view.sampled.examined()
    problems = Counter(finding.group for finding in diagnosis.findings) if diagnosis else None
    dead = await dead_letters(view, part.rows)
    rows = await view.sampled.remembered(f"rows {part.rows}", partial(_rows, view, part.rows, positions))
    shown_rows = []
    for name in part.rows:
        lags = lags_of(positions.get(name, {}))
        counts = {"lag": sum(lags.values()), "retries": lags[retry_topic(name)], "dead": dead[name]}
        shown_rows.append((name, rows[name] | counts | {"problems": None if problems is None else problems[name]}))
    part = part._replace(rows=shown_rows)
    silent = view.sampled.silent
    return {"search": search, "shows_all": shows_all, "part": part, "total": len(shown), "silent": silent}


def lags_of(positions: Positions) -> Counter[str]:
    """Return the messages that wait in each topic."""
    found: Counter[str] = Counter()
    for queue, position in positions.items():
        found[queue.topic] += position.lag
    return found


async def dead_letters(view: View, names: list[str]) -> Mapping[str, int]:
    """Return the number of dead letters of each group."""
    kinds = await view.sampled.topic_kinds()
    samples = await view.sampled.topics([topic for topic in map(dead_letter_topic, names) if topic in kinds])
    return {
        name: samples[topic].contents.messages if (topic := dead_letter_topic(name)) in samples else 0 for name in names
    }


async def _rows(view: View, names: list[str], positions: Mapping[str, Positions]) -> dict[str, dict[str, Any]]:
    """Return members and age of the backlog of groups by name."""
    rows = await in_parallel(lambda name: _row(view, name, positions.get(name, {})), names)
    return dict(zip(names, rows, strict=True))


async def _row(view: View, name: str, positions: Positions) -> dict[str, Any]:
    """Return members and age of the backlog; ``None``: a broker does not answer, or refuses."""
    found: dict[str, Any] = {"members": None, "doubled": (), "oldest_s": None}
    try:
        client_ids = await _client_ids(view, name)
        found |= {"members": len(client_ids), "doubled": duplicates(client_ids)}
        oldest_ms = await view.admin.oldest_waiting_ms(positions)
    except REMOTE_ERRORS:
        return found
    return found | {"oldest_s": age_s(oldest_ms)}


async def _client_ids(view: View, name: str) -> list[str]:
    """Return the client id of each connection of a group; equal ones are several members."""
    try:
        return [each.client_id for each in (await view.admin.group_members(name)).connection_set]
    except ConsumerNotOnlineError:
        return []


def age_s(time_ms: int | None) -> float | None:
    """Return the age of a time in seconds."""
    return None if time_ms is None else max(0.0, (wall_clock_ms() - time_ms) / 1000)


PAGES: Final = (Page("groups", "Groups", groups, "groups.html", nav="Groups", polls_s=5),)
