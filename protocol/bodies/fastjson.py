"""Reader and writer of JSON as fastjson writes it: standard except for object keys.

Java's peers write a map with number keys as ``{0:"10.0.0.5:10911"}`` and one with objects as keys as
``{{"brokerName":"b","queueId":0,"topic":"t"}:5}``.  Everything else must be standard JSON: no trailing commas, no
single quotes, no comments.

orjson reads standard text; the reader below gets only what orjson rejects.  Its time is linear in the length, it nests
no deeper than ``MAX_DEPTH`` and rejects more than ``MAX_IRREGULAR_BYTES``.  The writer emits no blanks, because Go
splits some bodies at commas and colons.

Source: wire.md 9.1, 9.2 and 15.3.
"""

import re
from collections.abc import Hashable
from typing import Any, Final

import orjson

from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue

MAX_DEPTH: Final = 64
MAX_IRREGULAR_BYTES: Final = 4 * 1024**2  # some 20,000 queues; about a second of work at worst

_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*+(?:
      (?P<string>"(?:[^"\\\x00-\x1f]|\\.)*+")
    | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)
    | (?P<name>true|false|null)
    | (?P<mark>[{}\[\]:,])
    )""",
    re.VERBOSE,
)
_FLAT_OBJECT: Final = re.compile(r'[ \t\r\n]*+(\{(?:[^{}\[\]"\\]|"[^"\\]*+")*+\})')
_BLANKS: Final = re.compile(r"[ \t\r\n]*+")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_INT64: Final = range(-(2**63), 2**63)


def loads(data: bytes | bytearray | memoryview, *, irregular: bool = True) -> Any:
    """Read standard JSON or, unless ``irregular`` is false, fastjson's form of it.

    Quoted keys become text and bare numbers ``int``; an object as a key becomes a ``MessageQueue`` if it is one, else a
    tuple of its sorted items.

    Raises:
        ProtocolError: neither form, nested too deep, or too long for the irregular form.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        if not irregular or len(data) > MAX_IRREGULAR_BYTES:
            raise ProtocolError(f"JSON of {len(data)} bytes: {exc}") from exc
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"JSON of {len(data)} bytes: {exc}") from exc
    return _Reader(text).document()


class _Reader:
    """Recursive descent over one text; objects of scalars only go to orjson in one piece."""

    __slots__ = ("_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def document(self) -> Any:
        value = self._value(*self._token(), 1)
        if _BLANKS.fullmatch(self._text, self._position) is None:
            raise self._error("text after the value")
        return value

    def _token(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            raise self._error("not JSON")
        self._position = match.end()
        return match.lastgroup, match[match.lastgroup]

    def _value(self, kind: str, word: str, depth: int) -> Any:
        if kind != "mark":
            return self._scalar(word)
        if word == "{":
            return self._object(depth)
        if word == "[":
            return self._array(depth)
        raise self._error(f"unexpected {word}")

    def _scalar(self, word: str) -> Any:
        try:
            return orjson.loads(word)
        except orjson.JSONDecodeError as exc:
            raise self._error(f"bad {word[:40]!r}") from exc

    def _object(self, depth: int) -> dict[Hashable, Any]:
        if (flat := self._flat_object()) is not None:
            return flat
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        result: dict[Hashable, Any] = {}
        kind, word = self._token()
        while True:
            key = self._key(kind, word, depth)
            if self._token() != ("mark", ":"):
                raise self._error("a colon must follow a key")
            result[key] = self._value(*self._token(), depth + 1)
            if not self._has_next("}"):
                return result
            kind, word = self._token()

    def _flat_object(self) -> dict[Hashable, Any] | None:
        """Read the object whose brace was just read, if orjson accepts it, as it does most."""
        match = _FLAT_OBJECT.match(self._text, self._position - 1)
        if match is None:
            return None
        try:
            flat: dict[Hashable, Any] = orjson.loads(match[1])
        except orjson.JSONDecodeError:
            return None
        self._position = match.end()
        return flat

    def _key(self, kind: str, word: str, depth: int) -> Hashable:
        if kind == "string":
            text: str = self._scalar(word)
            return text
        if kind == "number" and _INTEGER.fullmatch(word) and (number := int(word)) in _INT64:
            return number
        if word == "{":
            return _hashable(self._value(kind, word, depth + 1))
        raise self._error(f"{word[:40]!r} cannot be a key")

    def _array(self, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        result: list[Any] = []
        kind, word = self._token()
        if word == "]":
            return result
        while True:
            result.append(self._value(kind, word, depth + 1))
            if not self._has_next("]"):
                return result
            kind, word = self._token()

    def _has_next(self, end: str) -> bool:
        _, word = self._token()
        if word not in (",", end):
            raise self._error(f"a comma or {end} must follow a value")
        return word == ","

    def _error(self, why: str) -> ProtocolError:
        return ProtocolError(f"JSON of {len(self._text)} characters, at {self._position}: {why}")


def _hashable(value: Any) -> Hashable:
    if isinstance(value, dict):
        topic, broker_name, queue_id = map(value.get, ("topic", "brokerName", "queueId"))
        if isinstance(topic, str) and isinstance(broker_name, str) and type(queue_id) is int:
            return MessageQueue(topic, broker_name, queue_id)
        return tuple(sorted(((key, _hashable(member)) for key, member in value.items()), key=_order))
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    frozen: Hashable = value
    return frozen


def _order(item: tuple[Hashable, Hashable]) -> tuple[str, Any]:
    """Return the sort key of a member; nested values are hashed, since their text would be rebuilt at each level."""
    key = item[0]
    return type(key).__name__, key if isinstance(key, str | int) else hash(key)


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
