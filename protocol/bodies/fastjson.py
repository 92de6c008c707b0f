"""Reader and writer of JSON as fastjson writes it: standard except for object keys.

Java's peers write a map with number keys as ``{0:"10.0.0.5:10911"}`` and one with objects as keys as
``{{"brokerName":"b","queueId":0,"topic":"t"}:5}``.  Everything else must be standard JSON: no trailing commas, no
single quotes, no comments.

orjson reads standard text.  In text that it rejects, such keys are quoted, in linear time, and orjson reads the result.
The writer emits no blanks, because Go splits some bodies at commas and colons.

Source: wire.md 9.1, 9.2 and 15.3.
"""

import re
from typing import Any, Final

import orjson

from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue

MAX_IRREGULAR_BYTES: Final = 4 * 1024**2  # some 20,000 queues

#: Quoted texts, the last one perhaps without its end; a number or an object of scalars before a colon; another number.
_KEY: Final = re.compile(
    r"""  (?:"(?:[^"\\]++|\\.)*+"?[^"{0-9-]*+)++
      | (?P<key>-?[0-9]++|\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+")*+\})(?=\s*+:)
      | [0-9]++""",
    re.VERBOSE | re.DOTALL,
)


def loads(data: bytes | bytearray | memoryview, *, irregular: bool = True) -> Any:
    """Read standard JSON or, unless ``irregular`` is false, fastjson's form of it.

    All keys become text: that of an object is its JSON.

    Raises:
        ProtocolError: neither form, nested too deep, or too long for the irregular form.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        if not irregular or len(data) > MAX_IRREGULAR_BYTES:
            raise ProtocolError(f"JSON of {len(data)} bytes: {exc}") from exc
    try:
        return orjson.loads(_KEY.sub(_quoted_key, str(data, "utf-8")))
    except ValueError as exc:
        raise ProtocolError(f"JSON of {len(data)} bytes, not even with fastjson's keys: {exc}") from exc


def _quoted_key(found: re.Match[str]) -> str:
    return found[0] if found["key"] is None else orjson.dumps(found[0]).decode()


def dumps(value: Any, *, quoted_ids: bool = False) -> bytes:
    """Write compact JSON with number keys bare and ``MessageQueue`` keys as objects, as fastjson does.

    Args:
        value: dicts, lists and scalars; a ``MessageQueue`` may also be a value.
        quoted_ids: write number keys as text: standard JSON, which every peer reads.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS if quoted_ids else None)
    except TypeError:  # irregular keys: by hand
        return _irregular(value, quoted_ids)


def _irregular(value: Any, quoted_ids: bool) -> bytes:
    if isinstance(value, dict):
        members = (written_key(key, quoted_ids) + b":" + _irregular(value[key], quoted_ids) for key in value)
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, MessageQueue):
        return orjson.dumps(queue_to_json(value))
    if isinstance(value, list | tuple):
        return b"[" + b",".join([_irregular(member, quoted_ids) for member in value]) + b"]"
    return orjson.dumps(value)


def written_key(key: Any, quoted_ids: bool = False) -> bytes:
    """Return a key as ``dumps`` writes it."""
    if isinstance(key, MessageQueue):
        return orjson.dumps(queue_to_json(key))
    written = orjson.dumps(key)
    return b'"%b"' % written if quoted_ids and isinstance(key, int) else written


def queue_to_json(queue: MessageQueue) -> dict[str, str | int]:
    """Return the members Java writes for a queue, in its order."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
