"""Messages as lines of text or JSON."""

import base64
import logging
from collections.abc import Callable
from datetime import UTC
from functools import lru_cache
from typing import Any, Final, TypeAlias

from triomq.cli.arguments.values import escape_controls, time_text
from triomq.cli.output import json_bytes
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.message import MessageExt
from triomq.protocol.record.properties import PropertyName

LOGGER: Final = logging.getLogger("triomq.cli.message_text")

Formatter: TypeAlias = Callable[[MessageExt], bytes]


def choose_formatter(*, as_json: bool, as_long: bool, is_terminal: bool) -> Formatter:
    """Return the function that makes the line of a message, with its line break.

    A terminal gets control characters escaped; anything else gets the body unchanged.
    """
    if as_json:
        return json_line
    if as_long:
        return long_line
    return terminal_line if is_terminal else body_line


def shown_body(message: MessageExt) -> bytes:
    """Return the body; if it cannot be decompressed, log a warning and return it as it is stored."""
    try:
        return message.body
    except ProtocolError as exc:
        place = f"{message.topic}:{message.broker_name}:{message.queue_id}@{message.queue_offset}"
        LOGGER.warning("body shown as it is stored message=%s error=%s", place, exc)
        return message.stored_body


def body_line(message: MessageExt) -> bytes:
    """Return the body unchanged."""
    return shown_body(message) + b"\n"


def terminal_line(message: MessageExt) -> bytes:
    """Return the body as text, with control characters escaped."""
    return escape_controls(shown_body(message).decode(errors="replace")).encode() + b"\n"


@lru_cache(maxsize=1024)  # a broker stores many messages in one millisecond
def utc_text(milliseconds: int) -> str:
    """Return a time in UTC, with milliseconds."""
    return time_text(milliseconds, UTC).replace("+00:00", "Z")


def long_line(message: MessageExt) -> bytes:
    """Return the time and place of storage, the tag, the keys, and the body as text."""
    head = [
        utc_text(message.store_timestamp),
        f"{message.broker_name}:{message.queue_id}@{message.queue_offset}",
        f"tag={message.tags or '-'}",
        f"keys={','.join(message.keys) or '-'}",
    ]
    return escape_controls(f"{' '.join(head)} {shown_body(message).decode(errors='replace')}").encode() + b"\n"


def json_line(message: MessageExt) -> bytes:
    """Return all fields as JSON, which ``triomq produce --json-lines`` reads."""
    return json_bytes(message_fields(message))


def message_fields(message: MessageExt) -> dict[str, Any]:
    """Return all fields of a message for JSON.

    A body that is not UTF-8 is in base64.  One that cannot be decompressed has another name and comes with the reason,
    so that ``produce`` does not send it.
    """
    properties, offset_message_id = message.properties, message.offset_message_id
    found: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": properties.get(PropertyName.UNIQUE_KEY) or offset_message_id,
        "offset_message_id": offset_message_id,
        "tags": properties.get(PropertyName.TAGS),
        "keys": properties.get(PropertyName.KEYS, "").split(),
        "properties": message.user_properties,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "tries": message.reconsume_times,
    }
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    except ProtocolError as exc:
        found |= {"body_error": str(exc), "stored_body_base64": base64.b64encode(message.stored_body).decode()}
    return found
