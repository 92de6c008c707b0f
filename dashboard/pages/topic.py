"""One topic: its queues, permissions and rate, and the groups that consume it."""

from typing import Any, Final

from triomq.dashboard.view import Page, View, slice_of
from triomq.protocol.codes import Permission
from triomq.protocol.message_queue import MessageQueue

_MOST_GROUPS: Final = 100


async def topic(view: View) -> dict[str, Any]:
    """Return queues and groups of a topic."""
    name = view.required("name")
    view.command("topic", "show", name)
    route = await view.admin.topic_route(name)
    offsets = await view.admin.topic_stats(name)
    sample = (await view.sampled.topics([name])).get(name)
    backlog = (await view.sampled.backlog()).get(name, {})
    groups = sorted(backlog.items(), key=lambda item: (-item[1], item[0]))
    brokers = {data.broker_name: (data, permission(data.perm)) for data in route.queue_datas}
    return {
        "title": f"Topic {name}",
        "topic": name,
        "kind": (await view.sampled.topic_kinds()).get(name, "normal"),
        "part": slice_of(list(offsets.items()), view.page_number),
        "brokers": sorted(brokers.items()),
        "messages": sum(queue.max_offset - queue.min_offset for queue in offsets.values()),
        "sample": sample,
        "groups": groups[:_MOST_GROUPS],
        "more_groups": len(groups[_MOST_GROUPS:]),
        "queue_text": queue_text,
    }


def permission(bits: int) -> str:
    """Return the permission of a topic in words."""
    words = [word for bit, word in ((Permission.READ, "read"), (Permission.WRITE, "write")) if bits & bit]
    return " and ".join(words) or "none"


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as forms send it."""
    return f"{queue.broker_name}:{queue.queue_id}"


PAGES: Final = (Page("topic", "Topic", topic, "topic.html", polls_s=5),)
