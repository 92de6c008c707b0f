"""A message as ``triomq consume`` writes it."""

import base64
from collections.abc import Callable
from datetime import UTC
from typing import Any, Final, TypeAlias

from triomq.cli.output import json_bytes
from triomq.cli.values import escape_controls, time_text
from triomq.protocol.message import MessageExt

Formatter: TypeAlias = Callable[[MessageExt], bytes]


def choose_formatter(*, as_json: bool, as_long: bool, is_terminal: bool) -> Formatter:
    """Return how to write a message; the result ends with a line break.

    To a terminal control characters go made visible, to anything else the body goes as it is.
    """
    if as_json:
        return json_line
    if as_long:
        return long_line
    return terminal_line if is_terminal else body_line


def body_line(message: MessageExt) -> bytes:
    """Return the body as it is."""
    return message.body + b"\n"


def terminal_line(message: MessageExt) -> bytes:
    """Return the body as text that cannot steer a terminal."""
    return escape_controls(message.body.decode(errors="replace")).encode() + b"\n"


def long_line(message: MessageExt) -> bytes:
    """Return when and where the message was stored, its tag and keys, and the body as text."""
    head = [
        time_text(message.store_timestamp, UTC).replace("+00:00", "Z"),
        f"{message.broker_name}:{message.queue_id}@{message.queue_offset}",
        f"tag={message.tags or '-'}",
        f"keys={','.join(message.keys) or '-'}",
    ]
    return escape_controls(f"{' '.join(head)} {message.body.decode(errors='replace')}").encode() + b"\n"


def json_line(message: MessageExt) -> bytes:
    """Return everything; ``triomq produce --json-lines`` reads it."""
    return json_bytes(message_fields(message))


def message_fields(message: MessageExt) -> dict[str, Any]:
    """Return everything, as JSON shows it.  A body that is no UTF-8 stands as base64."""
    body = message.body
    found: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.user_properties,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "tries": message.reconsume_times,
    }
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found[_BASE64] = base64.b64encode(body).decode()
    return found


_BASE64: Final = "body_base64"
