"""Send a test message."""

from typing import Any, Final

from triomq.client import Message, Producer
from triomq.dashboard.formats import to
from triomq.dashboard.view import BadRequestError, Change, Done, Page, View

GROUP: Final = "triomq-dashboard"
_FORM_BYTES: Final = 13 * 1024 * 1024  # a body of 4 MiB, each byte as %XX


async def form(view: View) -> dict[str, Any]:
    """Return the empty form for a topic."""
    topic = view.required("name")
    await view.admin.topic_route(topic)
    view.command("produce", topic)
    return {"title": f"Send to {topic}", "topic": topic}


async def send(view: View) -> Done:
    """Send the message of the form."""
    topic = view.required("name")
    await view.admin.topic_route(topic)  # raises for an unknown topic: a send could create it
    delay = view.form.get("delay", "").strip()
    try:
        delay_s = float(delay) if delay else 0.0
    except ValueError:
        raise BadRequestError(f"delay {delay!r}: it is a number of seconds") from None
    message = Message(
        topic,
        view.required("body").encode(),
        tags=view.form.get("tags", "").strip() or None,
        keys=view.form.get("keys", "").split(),
        properties=dict(_property(line) for line in view.form.get("properties", "").splitlines() if line.strip()),
        delay_s=delay_s,
    )
    async with Producer(GROUP, instance=view.watched.instance) as producer:
        result = await producer.send(message)
    text = f"Message {result.message_id} is sent."
    if message.is_delayed and result.recall_handle is None:
        return Done(
            f"{text} The broker ignores the delay, or cannot take the message back.", to("messages", name=topic)
        )
    if message.is_delayed:
        return Done(text, to("delayed", name=topic, handle=result.recall_handle))
    queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
    return Done(text, to("message", topic=topic, queue=queue, offset=result.queue_offset))


def _property(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals or not name.strip():
        raise BadRequestError(f"property {line!r}: write NAME=VALUE, one in a line")
    return name.strip(), value.strip()


PAGES: Final = (Page("send", "Send a message", form, "send.html"),)
CHANGES: Final = (Change("message-send", "Send a message", send, form_bytes=_FORM_BYTES),)
