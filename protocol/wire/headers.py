"""The base of typed headers: a class declares its fields once, for reading and writing.

The wire name is the camelCase of the attribute unless ``Annotated[..., Wire("a")]`` names another; ``None`` is absent;
unknown fields are ignored; a missing or unreadable one is a ProtocolError that names class and field.

Every request is read and every response is written here, so the loops below look up short numbers in a dict, which
takes half the time of ``int``, and call no function of ours for common values.

Source: wire.md 2.1 (how values are written).
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from string import ascii_lowercase
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from triomq.protocol.errors import ProtocolError

_INT64_LIMIT: Final = 2**63
_INT64_DIGITS: Final = 19
_BOOL_LIMIT: Final = 1

#: Counts, queue ids, flags: most numbers in headers are short and repeat.
_SHORT_NUMBERS: Final[dict[str, int]] = {str(number): number for number in range(-1, 1024)}
_BOOLS: Final[dict[str, int]] = {"true": True, "false": False}


class Wire(str):
    """Name of a field on the wire, where it is not the camelCase of the attribute."""

    __slots__ = ()


class Bits(NamedTuple):
    """Width of an integer field: 32 or 64."""

    width: int


class Resource(Enum):
    """What a field names: ``Annotated[str, Resource.TOPIC]``; rights and the audit read it.

    Source: RocketMQResource.java of 5.x.
    """

    TOPIC = "topic"
    GROUP = "group"
    ACCOUNT = "account"
    BROKER = "broker"
    NAMESPACE = "namespace"
    KEY = "key"
    SETTINGS = "settings"


#: An integer that Java keeps in an ``int``; a plain ``int`` is a Java ``long``.
Int32 = Annotated[int, Bits(32)]


@dataclass(slots=True)
class Header:
    """A typed header; subclasses are slotted dataclasses."""

    has_letters: ClassVar[bool] = False
    """Whether the names on the wire are the letters from a on, in the order of the fields."""

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str]) -> Self:
        """Read the header from a command's fields.

        Raises:
            ProtocolError: a field is missing or has the wrong type.
        """
        header = cls.__new__(cls)
        get = ext_fields.get
        for name, wire, known, safe_digits, limit, default in _READ[cls]:
            text = get(wire)
            if text is None:
                if default is MISSING:
                    raise ProtocolError(f"{cls.__name__}: field {wire!r} is missing")
                setattr(header, name, default)
            elif known is None:  # text
                setattr(header, name, text)
            elif text in known:
                setattr(header, name, known[text])
            elif len(text) <= safe_digits and text.isdecimal():
                setattr(header, name, int(text))
            else:
                setattr(header, name, _unusual(cls, wire, text, limit))
        return header

    def encode(self) -> dict[str, str]:
        """Write the header as a command's fields; ``None`` is left out."""
        ext_fields: dict[str, str] = {}
        for name, wire, kind in _WRITE[type(self)]:
            value = getattr(self, name)
            if value is None:
                continue
            if kind is str:
                ext_fields[wire] = value
            elif kind is int:
                ext_fields[wire] = f"{value}"
            else:
                ext_fields[wire] = "true" if value else "false"
        return ext_fields


def parse_integer(text: str, limit: int) -> int:
    """Read decimal text as Java's ``parseInt`` and ``parseLong`` do: an optional sign and digits.

    ``limit`` is 2**31 or 2**63.  More digits than the greatest ``long`` has are rejected, leading zeros included,
    because the time of ``int`` grows with the square of their number.

    Raises:
        ValueError: not a number, or not within ``-limit`` to ``limit - 1``; the text says which.
    """
    digits = text[1:] if text.startswith(("-", "+")) else text
    if not digits.isdecimal():
        raise ValueError(f"is not a number: {text[:40]!r}")
    if len(digits) > _INT64_DIGITS or not -limit <= (value := int(text)) < limit:
        raise ValueError(f"is out of range: {text[:40]}")
    return value


def _unusual(cls: type[Header], wire: str, text: str, limit: int) -> int:
    """Read the values that :meth:`Header.decode` has no fast path for: signs, long numbers, unusual booleans."""
    if limit == _BOOL_LIMIT:
        return text.lower() == "true"
    try:
        return parse_integer(text, limit)
    except ValueError as exc:
        raise ProtocolError(f"{cls.__name__}: field {wire!r} {exc}") from None


class _Field(NamedTuple):
    name: str
    wire: str
    kind: type
    limit: int
    default: Any
    resource: Resource | None


#: Name, wire name, table of common values (None: text), digits that are always within the limit, limit, default.
#: Plain tuples, because unpacking a NamedTuple takes a third longer.
_ReadRow = tuple[str, str, dict[str, int] | None, int, int, Any]
#: Name, wire name, type.
_WriteRow = tuple[str, str, type]


class _ReadTable(dict[type[Header], tuple[_ReadRow, ...]]):
    """Rows for :meth:`Header.decode`, built at the first use of a class."""

    def __missing__(self, cls: type[Header]) -> tuple[_ReadRow, ...]:
        known: dict[type, dict[str, int] | None] = {str: None, bool: _BOOLS, int: _SHORT_NUMBERS}
        self[cls] = tuple(
            (name, wire, known[kind], len(str(limit)) - 1, limit, default)
            for name, wire, kind, limit, default, _ in _describe_all(cls)
        )
        return self[cls]


class _WriteTable(dict[type[Header], tuple[_WriteRow, ...]]):
    """Rows for :meth:`Header.encode`, built at the first use of a class."""

    def __missing__(self, cls: type[Header]) -> tuple[_WriteRow, ...]:
        self[cls] = tuple((field.name, field.wire, field.kind) for field in _describe_all(cls))
        return self[cls]


class _ResourceTable(dict[type[Header], tuple[tuple[str, Resource, bool], ...]]):
    """The fields that name resources, topics first: wire name, resource, and whether a request must have the field."""

    def __missing__(self, cls: type[Header]) -> tuple[tuple[str, Resource, bool], ...]:
        named = ((each.wire, each.resource, each.default is MISSING) for each in _describe_all(cls) if each.resource)
        order = list(Resource)
        self[cls] = tuple(sorted(named, key=lambda field: order.index(field[1])))
        return self[cls]


_READ: Final = _ReadTable()
_WRITE: Final = _WriteTable()
RESOURCES: Final = _ResourceTable()


def _describe_all(cls: type[Header]) -> list[_Field]:
    hints = get_type_hints(cls, include_extras=True)
    found = [_describe(field.name, hints[field.name], field.default) for field in fields(cls)]
    if cls.has_letters:
        return [each._replace(wire=letter) for each, letter in zip(found, ascii_lowercase, strict=False)]
    return found


def _describe(name: str, hint: Any, default: Any) -> _Field:
    wire, limit, resource = camel_case(name), _INT64_LIMIT, None
    kind, notes = unwrap(hint)
    for note in notes:
        wire = str(note) if isinstance(note, Wire) else wire
        limit = 2 ** (note.width - 1) if isinstance(note, Bits) else limit
        resource = note if isinstance(note, Resource) else resource
    if kind not in (str, bool, int):
        raise TypeError(f"{name}: a header field is str, bool or int, not {kind}")
    return _Field(name, wire, kind, _BOOL_LIMIT if kind is bool else limit, default, resource)


def unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type within ``X | None``, ``Annotated`` and ``NewType``, and the notes of ``Annotated``."""
    notes: tuple[Any, ...] = ()
    while True:
        if get_origin(hint) is Annotated:
            notes += hint.__metadata__
            hint = hint.__origin__
        elif get_origin(hint) in (Union, UnionType):
            (hint,) = (member for member in get_args(hint) if member is not type(None))
        elif hasattr(hint, "__supertype__"):  # a NewType
            hint = hint.__supertype__
        else:
            return hint, notes


def camel_case(name: str) -> str:
    """Return ``queueId`` for ``queue_id``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
