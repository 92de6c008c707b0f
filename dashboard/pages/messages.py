"""Messages of a topic: the newest first, or by time, queue and offset, key, or id."""

import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from triomq.client.admin.browsing import Before, NewestMessages
from triomq.client.admin.dead_letters import original_topic
from triomq.client.config import join_address
from triomq.dashboard.pages.bodies import start_of, visible
from triomq.dashboard.view import BadRequestError, NotFoundError, Page, View
from triomq.protocol.errors import ProtocolError, QueryNotFoundError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.message_id import parse_offset_message_id

_COUNT: Final = 32
_FOUND: Final = 64
_MAX_DIGITS: Final = 18
_AGO: Final = re.compile(r"-(\d{1,6})([smhd])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Row(NamedTuple):
    """A message in a list; the message itself, which may be large, is not kept.

    Attributes:
        place: the address of its page, as words of the query.
        original: the topic to which it was sent, if that is another one; "": not known.
        start: of its body; ``None``: no text.
        size: of the stored body in bytes.
        due_ms: when a delayed message is delivered; ``None``: it is not delayed.
        handle: takes the message back while it waits, else "".
        state: of a delayed message that cannot be taken back.
    """

    place: dict[str, str]
    stored_ms: int
    original: str
    tags: str
    keys: str
    start: str | None
    size: int
    due_ms: int | None = None
    handle: str = ""
    state: str = ""


def row_of(message: MessageExt) -> Row:
    """Return a message as lists show it."""
    return Row(
        place_of(message),
        message.store_timestamp,
        original_topic(message) or "",
        visible(message.tags or ""),
        visible(" ".join(message.keys)),
        start_of(message),
        len(message.stored_body),
    )


def place_of(message: MessageExt) -> dict[str, str]:
    """Return the words of the query that name a message."""
    queue = f"{message.broker_name}:{message.queue_id}"
    return {"topic": message.topic, "queue": queue, "offset": str(message.queue_offset)}


async def messages(view: View) -> dict[str, Any]:
    """Return messages by the first of id, key, queue and offset, time that the form has; else the newest."""
    topic = view.required("name")
    queues = sorted({f"{queue.broker_name}:{queue.queue_id}" for queue in await view.admin.topic_stats(topic)})
    values: dict[str, Any] = {"older": {}, "newer": {}, "note": ""}
    word = {name: view.query.get(name, "").strip() for name in ("id", "key", "queue", "offset", "until")}
    if word["id"] or word["key"]:
        found = await _by_key(view, topic, word["id"], word["key"])
    elif word["queue"] and word["offset"]:
        found = await _from_offset(view, topic, word, values)
    else:
        found = await _newest(view, topic, word["until"], values)
    return values | {
        "title": f"Messages of {topic}",
        "topic": topic,
        "queues": queues,
        "word": word,
        "rows": [row_of(message) for message in found],
    }


async def _by_key(view: View, topic: str, message_id: str, key: str) -> list[MessageExt]:
    if message_id:
        view.command("message", "show", message_id, "--topic", topic)
        try:
            return [await by_id(view, message_id, topic)]
        except (NotFoundError, QueryNotFoundError):
            return []
    view.command("message", "find", "--topic", topic, "--key", key)
    return (await view.admin.find_messages(topic, key, max_messages=_FOUND))[::-1]


async def by_id(view: View, message_id: str, topic: str) -> MessageExt:
    """Return a message by the id of its producer, if a topic is given, or by its offset id.

    Raises:
        NotFoundError: its id names a machine that is no broker; nothing is sent there.
        QueryNotFoundError: the message does not exist.
    """
    if topic and (found := await view.admin.find_messages(topic, message_id, unique=True)):
        return found[-1]
    view.check_brokers()
    with suppress(ProtocolError):
        host, port, _ = parse_offset_message_id(message_id)
        if join_address(host, port) not in {sample.answer.address for sample in view.sampled.brokers.values()}:
            raise NotFoundError(f"no message has the id {message_id}")
    return await view.admin.message(message_id)


async def _from_offset(view: View, topic: str, word: dict[str, str], values: dict[str, Any]) -> list[MessageExt]:
    queue, offset = queue_of(topic, word["queue"]), offset_of(word["offset"])
    found = await view.admin.messages_from(queue, offset, _COUNT)
    if found:
        first, last = found[0].queue_offset, found[-1].queue_offset
        values["note"] = f"Queue {word['queue']}, offsets {first} to {last}, the oldest first."
        values["newer"] = {"queue": word["queue"], "offset": last + 1}
        if first:
            values["older"] = {"queue": word["queue"], "offset": max(0, first - _COUNT)}
    _show_command(view, topic, found, ends=True)
    return found


async def _newest(view: View, topic: str, until: str, values: dict[str, Any]) -> list[MessageExt]:
    page = await view.admin.newest_messages(topic, _COUNT, time_before(view))
    values["older"] = older_of(page)
    values["note"] = "The newest first."
    _show_command(view, topic, page.messages[::-1], ends=bool(until))
    return page.messages


def _show_command(view: View, topic: str, found: list[MessageExt], *, ends: bool) -> None:
    """Show the command line that finds messages, the oldest first, by their times; without any, the whole topic."""
    limits = ["--from", _iso(found[0].store_timestamp)] if found else []
    limits += ["--to", _iso(found[-1].store_timestamp)] if found and ends else []
    view.command("message", "find", "--topic", topic, *limits)


def time_before(view: View) -> Before | None:
    """Return where the list of the address begins; ``None``: with the newest message.

    Raises:
        BadRequestError: the address has no time.
    """
    until, skip = view.query.get("until", "").strip(), view.query.get("skip", "0")
    if not until:
        return None
    return Before(time_of(until), int(skip) if skip.isdecimal() and len(skip) < _MAX_DIGITS else 0)


def older_of(page: NewestMessages) -> dict[str, object]:
    """Return the words of the query for the older messages; empty at the end of the list."""
    return {} if page.older is None else {"until": _iso(page.older.stored_ms), "skip": page.older.skip}


def queue_of(topic: str, text: str) -> MessageQueue:
    """Return the queue that a form names as ``broker:number``.

    Raises:
        BadRequestError: it has another form.
    """
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdecimal() or len(number) > len("65535"):
        raise BadRequestError(f"queue {text!r}: it is written broker:number")
    return MessageQueue(topic, broker, int(number))


def offset_of(text: str) -> int:
    """Return the offset in a form.

    Raises:
        BadRequestError: it is no whole number from 0 on.
    """
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise BadRequestError(f"offset {text!r}: it is a whole number from 0 on")
    return int(text)


def time_of(text: str) -> int:
    """Return a time of a form in milliseconds since 1970: ISO 8601, UTC unless it names a zone, or ``-10m``.

    Raises:
        BadRequestError: it is none.
    """
    if ago := _AGO.fullmatch(text):
        return max(0, time.time_ns() // 1_000_000 - int(ago[1]) * _UNITS_S[ago[2]] * 1000)
    try:
        at = datetime.fromisoformat(text)
        return max(0, round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise BadRequestError(f"time {text!r}: write it as 2026-01-31T12:00 (UTC), or -10m") from None


def _iso(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):  # a wrong clock wrote it
        return "1970-01-01T00:00:00.000Z"


PAGES: Final = (Page("messages", "Messages", messages, "messages.html"),)
