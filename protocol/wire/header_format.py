"""What a header format is.

Rules: a decoder raises ProtocolError, ValueError, TypeError, ``struct.error`` or RecursionError and nothing else; all
``ext_fields`` names and values are ``str``; memory and time are linear in the length of the header, which the caller
limits, whatever lengths it claims.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from triomq.protocol.codes import LanguageCode
from triomq.protocol.errors import ProtocolError

HeaderValues: TypeAlias = tuple[int, int, int, int, int, str | None, dict[str, str]]
"""Code, language, version, opaque, flag, remark, ext_fields."""

LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}
UNKNOWN_LANGUAGE: Final = -1

INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)


class HeaderFormat(NamedTuple):
    """A way to write headers.

    Attributes:
        serialize_type: its number in frames, a ``SerializeType``.
        encode: writes the values, given one by one in their order.
        decode: reads the values.
        offered_as: its name in heartbeats; ``None`` for a format that every peer reads.
    """

    serialize_type: int
    encode: Callable[[int, int, int, int, int, str | None, dict[str, str]], bytes]
    decode: Callable[[bytes], HeaderValues]
    offered_as: str | None = None


def known_language(language: Any) -> int:
    """Return the language's number, ``UNKNOWN_LANGUAGE`` for an unknown one."""
    return language if type(language) is int and language in LANGUAGE_NAMES else UNKNOWN_LANGUAGE


def read_int32(name: str, value: Any) -> int:
    """Accept a number that fits an int32.

    Raises:
        ProtocolError: it does not; the text names the field.
    """
    if type(value) is not int or not INT32_MIN <= value <= INT32_MAX:
        raise ProtocolError(f"header field {name!r} is not an int32: {value!r:.40}")
    return value
