"""The list of topics: rate, messages, and the groups that consume each, with their lag."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from triomq.client.admin.sampler import Sampler, TopicSample
from triomq.dashboard.view import Change, Page, View, slice_of

_MOST_GROUPS: Final = 6


async def topics(view: View) -> dict[str, Any]:
    """Return one page of the topics whose names contain the search text."""
    search, shows_all = view.query.get("q", "").strip(), view.query.get("all") == "1"
    view.command("topic", "list", *(["--all"] if shows_all else []))
    view.check_account()
    kinds = await view.sampled.topic_kinds()
    shown = [name for name, kind in kinds.items() if shows_all or kind == "normal"]
    wanted = [name for name in shown if search.lower() in name.lower()]
    part = slice_of(wanted, view.page_number)
    samples, backlog = await contents_and_backlog(view.sampled, part.rows)
    rows = []
    for name in part.rows:
        groups = sorted(backlog.get(name, {}).items(), key=lambda item: (-item[1], item[0]))
        row = {"name": name, "kind": kinds[name], "sample": samples.get(name)}
        rows.append(row | {"groups": groups[:_MOST_GROUPS], "more": len(groups[_MOST_GROUPS:])})
    return {
        "search": search,
        "shows_all": shows_all,
        "part": part._replace(rows=rows),
        "total": len(shown),
        "silent": view.sampled.silent,
    }


async def contents_and_backlog(
    sampled: Sampler, names: list[str]
) -> tuple[Mapping[str, TopicSample], Mapping[str, Mapping[str, int]]]:
    """Ask for both at once."""
    found: dict[str, Any] = {}

    async def read_contents() -> None:
        found["contents"] = await sampled.topics(names)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_contents)
        found["backlog"] = await sampled.backlog()
    return found["contents"], found["backlog"]


PAGES: Final = (Page("topics", "Topics", topics, "topics.html", nav="Topics", polls_s=5),)
CHANGES: Final[tuple[Change, ...]] = ()
