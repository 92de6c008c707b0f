"""Dead letters: by group, look at them, send chosen ones or all back."""

from contextlib import suppress
from typing import Any, Final

from triomq.client.admin.dead_letters import DeadLetterCount
from triomq.dashboard.formats import to
from triomq.dashboard.pages.messages import offset_of, older_of, queue_of, row_of, time_before
from triomq.dashboard.view import BadRequestError, Change, Done, Page, View, slice_of
from triomq.protocol.errors import NoRouteError
from triomq.protocol.names import dead_letter_topic

_CHOSEN: Final = "chosen:"


async def dead_letters(view: View) -> dict[str, Any]:
    """Return the numbers of dead letters of groups, and the newest ones of one group."""
    group = view.query.get("name", "")
    view.command("dlq", "list", *([group] if group else []))
    view.check_brokers()
    counts = await view.admin.dead_letter_counts()
    values: dict[str, Any] = {"group": group, "rows": [], "older": {}}
    if group:
        with suppress(NoRouteError):  # it never had any
            page = await view.admin.newest_messages(dead_letter_topic(group), before=time_before(view))
            values |= {"rows": [row_of(message) for message in page.messages], "older": older_of(page)}
        values["title"] = f"Dead letters of {group}"
        values["count"] = next((count for count in counts if count.group == group), DeadLetterCount(group, 0, 0))
    found = [count for count in counts if count.messages]
    return values | {"part": slice_of(found, view.page_number), "chosen": _CHOSEN}


async def plan(view: View) -> dict[str, Any]:
    """Return the plan: the dead letters to send back."""
    group, chosen = view.required("name"), _chosen(view)
    if chosen:
        places = [word for place in chosen for word in ("--at", ":".join(map(str, place)))]
        view.command("dlq", "redrive", group, *places, "--dry-run")
        view.command("dlq", "redrive", group, *places)
        return {"plan": await view.admin.redrive_chosen(group, chosen, dry_run=True), "is_chosen": True}
    view.command("dlq", "redrive", group, "--dry-run")
    view.command("dlq", "redrive", group)
    return {"plan": await view.admin.redrive(group, dry_run=True), "is_chosen": False}


async def redrive(view: View) -> Done:
    """Send dead letters back to their original topics."""
    group, chosen = view.required("name"), _chosen(view)
    done = await (view.admin.redrive_chosen(group, chosen) if chosen else view.admin.redrive(group))
    skipped = f" Skipped: {done.skipped}." if done.skipped else ""
    sent = "1 dead letter" if done.sent == 1 else f"{done.sent} dead letters"
    return Done(f"Sent back: {sent} of {group}.{skipped}", to("dead-letters", name=group))


def _chosen(view: View) -> list[tuple[str, int, int]]:
    """Return the places that the form has; none: all dead letters are meant.

    Raises:
        BadRequestError: a place has another form, or none was chosen.
    """
    if view.form.get("which") == "all":
        return []
    places = []
    for field in view.form:
        if field.startswith(_CHOSEN):
            queue_text, _, offset = field.removeprefix(_CHOSEN).rpartition("@")
            queue = queue_of(dead_letter_topic(view.required("name")), queue_text)
            places.append((queue.broker_name, queue.queue_id, offset_of(offset)))
    if not places:
        raise BadRequestError("no dead letter is chosen")
    return places


PAGES: Final = (Page("dead-letters", "Dead letters", dead_letters, "dead_letters.html", nav="Dead letters"),)
CHANGES: Final = (
    Change("redrive", "Send dead letters back", redrive, asks_for="name", plan=plan, template="redrive.html"),
)
