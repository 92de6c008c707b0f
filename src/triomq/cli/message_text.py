"""A message as ``triomq consume`` writes it."""

import base64
import logging
from collections.abc import Callable
from datetime import UTC
from typing import Any, Final, TypeAlias

from triomq.cli.arguments.values import escape_controls, time_text
from triomq.cli.output import json_bytes
from triomq.protocol.errors import ProtocolError
from triomq.protocol.record.message import MessageExt

LOGGER: Final = logging.getLogger("triomq.cli.message_text")

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


def shown_body(message: MessageExt) -> bytes:
    """Return the body; one that cannot be decompressed as it is stored, with a warning: others are to be shown, too."""
    try:
        return message.body
    except ProtocolError as exc:
        place = f"{message.topic}:{message.broker_name}:{message.queue_id}@{message.queue_offset}"
        LOGGER.warning("body shown as it is stored message=%s error=%s", place, exc)
        return message.stored_body


def body_line(message: MessageExt) -> bytes:
    """Return the body as it is."""
    return shown_body(message) + b"\n"


def terminal_line(message: MessageExt) -> bytes:
    """Return the body as text that cannot steer a terminal."""
    return escape_controls(shown_body(message).decode(errors="replace")).encode() + b"\n"


def long_line(message: MessageExt) -> bytes:
    """Return when and where the message was stored, its tag and keys, and the body as text."""
    head = [
        time_text(message.store_timestamp, UTC).replace("+00:00", "Z"),
        f"{message.broker_name}:{message.queue_id}@{message.queue_offset}",
        f"tag={message.tags or '-'}",
        f"keys={','.join(message.keys) or '-'}",
    ]
    return escape_controls(f"{' '.join(head)} {shown_body(message).decode(errors='replace')}").encode() + b"\n"


def json_line(message: MessageExt) -> bytes:
    """Return everything; ``triomq produce --json-lines`` reads it."""
    return json_bytes(message_fields(message))


def message_fields(message: MessageExt) -> dict[str, Any]:
    """Return everything, as JSON shows it.

    A body that is no UTF-8 stands as base64; one that cannot be decompressed under another name, with the reason, so
    that nobody sends it as if it were one.
    """
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
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found[_BASE64] = base64.b64encode(message.body).decode()
    except ProtocolError as exc:
        found |= {"body_error": str(exc), "stored_body_base64": base64.b64encode(message.stored_body).decode()}
    return found


_BASE64: Final = "body_base64"
