"""Trace records: what clients with tracing write about the way of each message.

A record is a line of fields, separated by U+0001 and ended by U+0002.  Versions of a record differ in how many fields
follow at its end: all of 4.9 and 5.x, and of the Go client, are read; missing fields keep their defaults.

Source: TraceDataEncoder.java, trace.go; wire.md 13.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_SEPARATORS: Final = re.compile("[\x01\x02]")
_NULL: Final = "null"


class Published(NamedTuple):
    """A producer sent a message, and a broker stored it.

    Attributes:
        time_ms: when it was sent, by the producer's clock.
        store_host: address of the broker.
        took_ms: until the broker's answer.
        message_type: 0 normal, 1 half of a transaction, 2 commit, 3 delayed, 4 ordered.
        client_host: the producer's address or id; 5.x and Go clients send it.
    """

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    took_ms: int
    message_type: int = 0
    offset_message_id: str = ""
    is_success: bool = True
    client_host: str = ""


class ConsumeBegun(NamedTuple):
    """A handler was called with a message; ``request_id`` is that of the matching :class:`ConsumeEnded`."""

    time_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str
    client_host: str = ""


class ConsumeEnded(NamedTuple):
    """A handler returned or raised.

    Attributes:
        code: 0 success, 1 took too long, 2 raised, 3 returned no status, 4 failed.
        time_ms: when; 0 if the client sent none.
    """

    request_id: str
    message_id: str
    took_ms: int
    is_success: bool
    keys: str
    code: int = 0
    time_ms: int = 0
    group: str = ""


class TransactionEnded(NamedTuple):
    """A producer decided a transaction: ``COMMIT_MESSAGE``, ``ROLLBACK_MESSAGE`` or ``UNKNOW``."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str
    is_from_check: bool


class Recalled(NamedTuple):
    """A producer took a delayed message back (5.x)."""

    time_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    is_success: bool


TraceRecord: TypeAlias = Published | ConsumeBegun | ConsumeEnded | TransactionEnded | Recalled

_NAMES: Final[Mapping[type[TraceRecord], str]] = {
    Published: "Pub",
    ConsumeBegun: "SubBefore",
    ConsumeEnded: "SubAfter",
    TransactionEnded: "EndTransaction",
    Recalled: "Recall",
}
_READERS: Final[Mapping[type, Callable[[str], object]]] = {
    int: int,
    bool: lambda text: text.lower() == "true",
    str: lambda text: "" if text == _NULL else text,
}
_TYPES: Final[Mapping[str, tuple[Callable[..., TraceRecord], Sequence[Callable[[str], object]]]]] = {
    name: (kind, [_READERS[field] for field in kind.__annotations__.values()]) for kind, name in _NAMES.items()
}
#: Clients before 4.4 did not write the offset id of a sent message.
_PUB_WITHOUT_OFFSET_ID: Final = 12
_OFFSET_ID: Final = 11


def encode_trace(record: TraceRecord) -> str:
    """Return a record as RocketMQ writes it; separators in user text become blanks."""
    texts = [_NAMES[type(record)], *map(_text, record)]
    if texts[-1] == _NULL and record._fields[-1] == "client_host":
        del texts[-1]
    return _FIELD_END.join(texts) + _RECORD_END


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Return the records of a trace message; unknown and damaged ones are left out."""
    found = []
    for text in body.decode("utf-8", "replace").split(_RECORD_END):
        name, *values = text.split(_FIELD_END)
        if name not in _TYPES:
            continue
        make, readers = _TYPES[name]
        if make is Published and len(values) == _PUB_WITHOUT_OFFSET_ID:
            values.insert(_OFFSET_ID, "")
        with suppress(ValueError, TypeError):  # a number that is none, or too few fields
            found.append(make(*(read(value) for read, value in zip(readers, values, strict=False))))
    return found


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """Return the ids and keys by which the trace message of these records is found, each once."""
    found: dict[str, None] = {}
    for record in records:
        found[record.message_id] = None
        if not isinstance(record, Recalled):
            found.update(dict.fromkeys(record.keys.split()))
    return list(found)


def _text(value: object) -> str:
    if isinstance(value, str):
        return (value if value.isprintable() else _SEPARATORS.sub(" ", value)) or _NULL  # separators are not printable
    return str(value).lower() if isinstance(value, bool) else str(value)
