"""The base of JSON bodies: a dataclass declares its members once, for reading and writing.

The wire name is the camelCase of the attribute unless ``Annotated[..., Wire("clientID")]`` names another.

Reading is as tolerant as in Java: unknown members are ignored, missing ones and nulls become the default, numbers may
be text, enums may be ordinals, and an unknown enum name becomes the default.  Anything else is a ProtocolError.

Source: wire.md 9.1.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, Self, get_args, get_origin, get_type_hints

from triomq.protocol.bodies.fastjson import MAX_IRREGULAR_BYTES, dumps, loads, queue_to_json, written_key
from triomq.protocol.errors import ProtocolError
from triomq.protocol.message_queue import MessageQueue
from triomq.protocol.wire.headers import Wire as Wire
from triomq.protocol.wire.headers import camel_case, parse_integer, unwrap

_Convert = Callable[[Any], Any]
_PIECE: Final = 64  # members of an object or list that are written at once
_PART: Final = 256  # likewise, read at once
_INT64_LIMIT: Final = 2**63
_INT64: Final = range(-_INT64_LIMIT, _INT64_LIMIT)


class _MismatchError(ValueError):
    """A value has the wrong type for its member."""


class _Member(NamedTuple):
    name: str
    wire_name: str
    read: _Convert
    write: _Convert | None  # None: as it is
    may_be_long: bool  # a container or a body


class JsonBody:
    """Base of all bodies; subclasses are dataclasses whose fields all have defaults."""

    __slots__ = ()

    irregular: ClassVar[bool] = False
    """Whether a member has keys other than text: only such bodies are read in fastjson's irregular form."""
    max_irregular_bytes: ClassVar[int] = MAX_IRREGULAR_BYTES
    """Limit for a body in that form, as reading it is slow."""

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read a body.

        Raises:
            ProtocolError: not JSON, or a member has the wrong type.
        """
        return cls.from_json(cls._load(data))

    @classmethod
    def parts(cls, data: bytes | memoryview, *path: str) -> Iterator[Self]:
        """Read a long body as several: each has a part of the container at ``path``, and all other members.

        Raises:
            ProtocolError: as for :meth:`decode`.
        """
        return map(cls.from_json, _split(cls._load(data), path))

    @classmethod
    def _load(cls, data: bytes | bytearray | memoryview) -> Any:
        return loads(data, irregular=cls.irregular and len(data) <= cls.max_irregular_bytes)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the value that a JSON reader returned.

        Raises:
            ProtocolError: a member has the wrong type.
        """
        if not isinstance(value, dict):
            raise ProtocolError(f"{cls.__name__}: {type(value).__name__} instead of an object")
        arguments = {}
        for name, wire_name, read, _, _ in _members(cls):
            raw = value.get(wire_name)
            if raw is None:
                continue
            try:
                converted = read(raw)
            except _MismatchError as exc:
                raise ProtocolError(f"{cls.__name__}: member {wire_name!r}: {exc}") from exc
            if converted is not None:
                arguments[name] = converted
        return cls(**arguments)

    def to_json(self, *, shallow: bool = False) -> dict[str, Any]:
        """Return the members in Java's order, without those that are ``None``; keys of maps stay as they are.

        ``shallow`` leaves containers and bodies as they are, too.
        """
        written = {}
        for name, wire_name, _, write, _ in _members(type(self)):
            value = getattr(self, name)
            if value is not None:
                written[wire_name] = value if write is None or (shallow and _is_nested(value)) else write(value)
        return written

    def encode(self, *, quoted_ids: bool = False) -> bytes:
        """Return compact JSON; with ``quoted_ids`` number keys are text, as in standard JSON."""
        return dumps(self.to_json(), quoted_ids=quoted_ids)


def json_pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value, with bodies anywhere in it, in pieces: each takes little time, however long it is."""
    if isinstance(value, JsonBody):
        value = value.to_json(shallow=True)
    if not _is_nested(value):
        yield dumps(value)
        return
    is_dict = isinstance(value, dict)
    before, end = (b"{", b"}") if is_dict else (b"[", b"]")
    items = iter(value.items() if is_dict else value)
    while part := list(islice(items, _PIECE)):
        if not any(map(_is_nested, (item for _, item in part) if is_dict else part)):
            plain: Any = {key: _plain(item) for key, item in part} if is_dict else list(map(_plain, part))
            yield before + dumps(plain)[1:-1]
            before = b","
            continue
        for item in part:
            yield before + written_key(item[0]) + b":" if is_dict else before
            yield from json_pieces(item[1] if is_dict else item)
            before = b","
    yield end if before == b"," else before + end


def _split(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the value once for each part of the container at ``path``, with this part in place of the whole."""
    inner = value.get(path[0]) if path and isinstance(value, dict) else None
    if path and inner:
        yield from ({**value, path[0]: part} for part in _split(inner, path[1:]))
    elif path or not isinstance(value, dict | list):
        yield value
    else:
        items = iter(value.items() if isinstance(value, dict) else value)
        while part := list(islice(items, _PART)):
            yield dict(part) if isinstance(value, dict) else part


def _is_nested(value: object) -> bool:
    """Whether a value may be long; a body without other members than scalars is not."""
    if isinstance(value, JsonBody):
        return any(getattr(value, member.name) for member in _members(type(value)) if member.may_be_long)
    return isinstance(value, dict | list)


def _plain(value: object) -> object:
    return value.to_json() if isinstance(value, JsonBody) else value


_KNOWN: Final[dict[type[JsonBody], tuple[_Member, ...]]] = {}


def _members(cls: type[JsonBody]) -> tuple[_Member, ...]:
    """Return the members of a body in the order of their wire names; computed once."""
    if cls in _KNOWN:
        return _KNOWN[cls]
    hints = get_type_hints(cls, include_extras=True)
    members = []
    for field in fields(cls):  # type: ignore[arg-type]  # subclasses are dataclasses
        kind, notes = unwrap(hints[field.name])
        wire_name = str(notes[0]) if notes else camel_case(field.name)
        may_be_long = get_origin(kind) in (list, dict) or issubclass(kind, JsonBody)
        members.append(_Member(field.name, wire_name, *_converters(kind), may_be_long))
    table = _KNOWN[cls] = tuple(sorted(members, key=attrgetter("wire_name")))
    return table


def _converters(kind: Any) -> tuple[_Convert, _Convert | None]:
    """Return reader and writer for a type; a writer of ``None`` keeps the value."""
    origin = get_origin(kind)
    if origin is list:
        read_item, write_item = _converters(*get_args(kind))
        return _list_reader(read_item), write_item and (lambda value: list(map(write_item, value)))
    if origin is dict:
        key, value = get_args(kind)
        read_value, write_value = _converters(value)
        write = write_value and (lambda table: {key: write_value(value) for key, value in table.items()})
        return _dict_reader(_KEY_READERS[key], read_value), write
    if kind in _SCALAR_READERS:
        return _SCALAR_READERS[kind], queue_to_json if kind is MessageQueue else None
    if issubclass(kind, JsonBody):
        return kind.from_json, JsonBody.to_json
    if issubclass(kind, Enum):
        return _enum_reader(kind), attrgetter("name")
    raise TypeError(f"{kind}: no JSON form is known")


def _list_reader(read: _Convert) -> _Convert:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _MismatchError(f"{_shown(value)} is not a list")
        return [read(item) for item in value]

    return read_list


def _dict_reader(read_key: _Convert, read_value: _Convert) -> _Convert:
    def read_dict(value: Any) -> dict[Any, Any]:
        if isinstance(value, list) and read_key is _read_queue_key:
            return dict(_read_entry(entry, read_value) for entry in value)
        if not isinstance(value, dict):
            raise _MismatchError(f"{_shown(value)} is not an object")
        return {read_key(key): read_value(member) for key, member in value.items()}

    return read_dict


def _read_entry(entry: Any, read_value: _Convert) -> tuple[MessageQueue, Any]:
    """Read one queue and its offset from a list: a pair, or the queue's members and ``offset`` in one object."""
    if isinstance(entry, list) and len(entry) == 2:
        return _read_queue(entry[0]), read_value(entry[1])
    if isinstance(entry, dict) and "offset" in entry:
        return _read_queue(entry), read_value(entry["offset"])
    raise _MismatchError(f"{_shown(entry)} is not a queue with an offset")


def _enum_reader(kind: type[Enum]) -> _Convert:
    members = tuple(kind)

    def read_enum(value: Any) -> Enum | None:
        if isinstance(value, str):
            return kind.__members__.get(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return members[value] if 0 <= value < len(members) else None
        raise _MismatchError(f"{_shown(value)} is not a name of {kind.__name__}")

    return read_enum


def _read_int(value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_integer(value, _INT64_LIMIT)
        except ValueError as exc:
            raise _MismatchError(str(exc)) from None
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
        raise _MismatchError(f"{_shown(value)} is not a 64-bit number")
    return value


def _read_float(value: Any) -> float:
    with contextlib.suppress(ValueError, TypeError):
        number = float(value)
        if math.isfinite(number) and not isinstance(value, bool):
            return number
    raise _MismatchError(f"{_shown(value)} is not a number")


def _read_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    if isinstance(value, int):
        return bool(value)
    raise _MismatchError(f"{_shown(value)} is neither true nor false")


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return dumps(value).decode()  # true and false, too
    raise _MismatchError(f"{_shown(value)} is not text")


def _read_queue(value: Any) -> MessageQueue:
    if isinstance(value, MessageQueue):
        return value
    if not isinstance(value, dict):
        raise _MismatchError(f"{_shown(value)} is not a message queue")
    return MessageQueue(
        _read_str(value.get("topic", "")), _read_str(value.get("brokerName", "")), _read_int(value.get("queueId", 0))
    )


def _read_queue_key(key: Any) -> MessageQueue:
    """Read a key that is a queue: text with JSON in it, also as it came, because some of Java's readers accept that."""
    return _read_queue(loads(key.encode()))


def _shown(value: Any) -> str:
    return repr(value)[:60] if isinstance(value, str | int | float | bool) else type(value).__name__


_SCALAR_READERS: Final[dict[Any, _Convert]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
    MessageQueue: _read_queue,
}
_KEY_READERS: Final[dict[Any, _Convert]] = {str: _read_str, int: _read_int, MessageQueue: _read_queue_key}
