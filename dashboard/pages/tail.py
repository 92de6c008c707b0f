"""A topic as it grows: the messages that arrive while the page is open, by tag or SQL."""

from collections import OrderedDict, deque
from typing import Any, Final
from weakref import WeakKeyDictionary

from triomq.client import Sql
from triomq.client.admin.browsing import Tail
from triomq.dashboard.pages.messages import Row, row_of
from triomq.dashboard.view import BadRequestError, Page, View
from triomq.dashboard.watched import Watched

_KEPT: Final = 100
_MOST: Final = 32


class Followed:
    """An open tail, with the last messages that it found, the newest first."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.rows: deque[Row] = deque(maxlen=_KEPT)

    async def look(self) -> None:
        """Add the messages that have arrived."""
        self.rows.extendleft(row_of(message) for message in await self.tail.look())


_FOLLOWED: Final[WeakKeyDictionary[Watched, OrderedDict[tuple[str, ...], Followed]]] = WeakKeyDictionary()


async def tail(view: View) -> dict[str, Any]:
    """Return the newest messages that arrived since the page was opened."""
    topic = view.required("name")
    tags, sql = view.query.get("tags", "").strip(), view.query.get("sql", "").strip()
    if tags and sql:
        raise BadRequestError("filter by tags or by SQL, not by both")
    words = ["--sql", sql] if sql else ["--tag", tags] if tags else []
    view.command("consume", topic, "--from", "latest", *words)
    known = _FOLLOWED.setdefault(view.watched, OrderedDict())
    key = (view.session.form_token, topic, tags, sql)
    followed = known.pop(key, None) or Followed(Tail(view.watched.instance, topic, Sql(sql) if sql else tags or "*"))
    known[key] = followed  # also if the look fails: the next one continues from there
    while len(known) > _MOST:
        known.popitem(last=False)
    await followed.look()
    return {
        "title": f"Live: {topic}",
        "topic": topic,
        "tags": tags,
        "sql": sql,
        "rows": list(followed.rows),
        "passed_by": followed.tail.passed_by,
    }


PAGES: Final = (Page("tail", "Live", tail, "tail.html", polls_s=2),)
