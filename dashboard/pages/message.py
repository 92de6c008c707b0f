"""One message: where it is, its body, why it was delivered again, who consumed it, and its trace."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from triomq.client.admin.browsing import GroupProgress
from triomq.client.consumer.pull import TOOLS_GROUP
from triomq.dashboard.formats import to
from triomq.dashboard.pages import bodies
from triomq.dashboard.pages.messages import by_id, offset_of, place_of, queue_of
from triomq.dashboard.view import Page, View
from triomq.protocol.errors import REMOTE_ERRORS, NoRouteError, ProtocolError
from triomq.protocol.names import DEAD_LETTER_PREFIX, FORBIDDEN_TOPICS, RETRY_PREFIX
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName

_MOST_GROUPS: Final = 32
#: How long a page waits for groups and trace; later answers are left out, with a sentence.
_WAIT_S: Final = 1.0
_MOST_PARTS: Final = 1024


class Reason(NamedTuple):
    """Why a message is where it is; ``link`` leads to what ``label`` names."""

    text: str
    label: str = ""
    link: str = ""


async def message(view: View) -> dict[str, Any]:
    """Return one message, by its place or by its id."""
    found = await read(view)
    view.command("message", "show", found.offset_message_id)
    kind, part = view.query.get("as", ""), min(_MOST_PARTS, view.number("part"))
    values: dict[str, Any] = {"groups": None, "more_groups": 0, "trace": None}
    async with trio.open_nursery() as nursery:
        for work in (_add_groups, _add_trace):
            nursery.start_soon(_in_time, work, view, found, values)
        body = await trio.to_thread.run_sync(bodies.show, found, kind, part)  # a large one takes a while
    if values["trace"]:
        view.command("message", "trace", found.message_id)
    return values | {
        "title": "Message",
        "topic": found.topic,
        "found": found,
        "place": place_of(found),
        "hosts": _hosts(found),
        "properties": [(bodies.visible(name), bodies.visible(text)) for name, text in found.properties.items()],
        "body": body,
        "kinds": bodies.KINDS,
        "reasons": reasons(found),
        "state_of": state_of,
    }


async def read(view: View) -> MessageExt:
    """Return the message that the address names.

    Raises:
        NotFoundError, QueryNotFoundError: the message does not exist.
    """
    if "offset" in view.query:
        queue = queue_of(view.required("topic"), view.required("queue"))
        return await view.admin.message_at(queue, offset_of(view.required("offset")))
    return await by_id(view, view.required("id").strip(), view.query.get("topic", ""))


async def _in_time(
    work: Callable[[View, MessageExt, dict[str, Any]], Awaitable[None]],
    view: View,
    found: MessageExt,
    values: dict[str, Any],
) -> None:
    with trio.move_on_after(_WAIT_S), suppress(*REMOTE_ERRORS):
        await work(view, found, values)


async def _add_groups(view: View, found: MessageExt, values: dict[str, Any]) -> None:
    if found.topic.startswith(DEAD_LETTER_PREFIX) or found.topic in FORBIDDEN_TOPICS:
        values["groups"] = []
        return
    groups = [group for group in await view.admin.consumers_of(found.topic) if group != TOOLS_GROUP]
    values["groups"] = await view.admin.progress_of(found, groups[:_MOST_GROUPS])
    values["more_groups"] = len(groups[_MOST_GROUPS:])


async def _add_trace(view: View, found: MessageExt, values: dict[str, Any]) -> None:
    with suppress(NoRouteError):
        values["trace"] = []
        values["trace"] = await view.admin.trace(found.message_id)


def _hosts(found: MessageExt) -> dict[str, str]:
    hosts = {}
    for label in ("born_host", "store_host"):
        try:
            hosts[label] = getattr(found, label)
        except ProtocolError as exc:
            hosts[label] = str(exc)
    return hosts


def state_of(progress: GroupProgress, found: MessageExt) -> Reason:
    """Return in words how far a group is with a message, and the copy that shows it."""
    if progress.dead_letter is not None:
        return Reason("gave it up", "dead letter", _link(progress.dead_letter))
    if progress.retries:
        copy, is_past = progress.retries[-1]
        times = f"{copy.reconsume_times} {'time' if copy.reconsume_times == 1 else 'times'}"
        text = f"failed {times}, then moved past it" if is_past else f"failed {times}; it waits for the next try"
        return Reason(text, "newest copy", _link(copy))
    if progress.offset is None:
        return Reason("has not consumed from this queue yet")
    if not progress.is_past:
        ahead = found.queue_offset - progress.offset
        return Reason(f"has not consumed it yet; {ahead} {'message' if ahead == 1 else 'messages'} of the queue first")
    return Reason("moved past it: consumed, not selected by its filter, or waiting for a delayed retry")


def _link(copy: MessageExt) -> str:
    return to("message", **place_of(copy))


def reasons(found: MessageExt) -> list[Reason]:
    """Return why a message was delivered again, or waits in a topic of the broker."""
    properties, reasons, times = found.properties, list[Reason](), found.reconsume_times
    failures = f"{times} {'time' if times == 1 else 'times'}"
    if found.topic.startswith(DEAD_LETTER_PREFIX):
        group = found.topic.removeprefix(DEAD_LETTER_PREFIX)
        reasons.append(Reason(f"Group {group} failed to consume it {failures} and gave it up: it is a dead letter."))
    elif found.topic.startswith(RETRY_PREFIX):
        group = found.topic.removeprefix(RETRY_PREFIX)
        if times:
            text = f"Group {group} failed to consume it {failures}, so this copy is delivered to the group again."
        else:
            text = f"It was delivered to group {group} alone, as by triomq group replay."
        reasons.append(Reason(text))
    elif found.topic in FORBIDDEN_TOPICS and (real := properties.get(PropertyName.REAL_TOPIC)):
        reasons.append(Reason(f"It is kept in a topic of the broker, and belongs to topic {real}."))
    elif times:
        reasons.append(Reason(f"Its consumption failed {failures}."))
    origin = properties.get(PropertyName.ORIGIN_MESSAGE_ID) or properties.get(PropertyName.DLQ_ORIGIN_MESSAGE_ID)
    topic = properties.get(PropertyName.RETRY_TOPIC) or properties.get(PropertyName.DLQ_ORIGIN_TOPIC)
    if topic and found.unique_id:
        link = to("message", topic=topic, id=found.unique_id)
        reasons.append(Reason(f"It was sent to topic {topic}.", "original", link))
    elif origin:
        reasons.append(Reason("It is a copy of another message.", "original", to("message", id=origin)))
    return reasons


PAGES: Final = (Page("message", "Message", message, "message.html"),)
