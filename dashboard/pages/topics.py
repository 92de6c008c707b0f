"""The list of topics: rate, messages, and the groups that consume each, with their lag."""

from typing import Any, Final

from triomq.dashboard.view import Page, View, both, slice_of

_MOST_GROUPS: Final = 6


async def topics(view: View) -> dict[str, Any]:
    """Return one page of the topics whose names contain the search text."""
    search, shows_all = view.query.get("q", "").strip(), view.query.get("all") == "1"
    view.command("topic", "list", *(["--all"] if shows_all else []))
    view.check_brokers()
    kinds = await view.sampled.topic_kinds()
    shown = [name for name, kind in kinds.items() if shows_all or kind == "normal"]
    wanted = [name for name in shown if search.lower() in name.lower()]
    part = slice_of(wanted, view.page_number)
    samples, backlog = await both(lambda: view.sampled.topics(part.rows), view.sampled.backlog)
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


PAGES: Final = (Page("topics", "Topics", topics, "topics.html", nav="Topics", polls_s=5),)
