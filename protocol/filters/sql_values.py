"""Values in SQL filters, and how Apache's brokers read and compare them.

A property is text.  Beside a number it is read as Java reads that type: ``'5.0'`` is no integer, ``' 5 '`` is a double.

Source: ComparisonExpression.java; behaviour.md A.11.
"""

import re
from math import copysign
from typing import Final, TypeAlias

from triomq.protocol.java import BLANKS

SHORT_DIGITS: Final = 9
"""Any number of so many digits fits into 32 bits."""
_INTEGER: Final = re.compile(r"[+-]?[^\D\U00010000-\U0010FFFF]+")  # Java: digits of all scripts in the BMP
_DOUBLE: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<named>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hexadecimal>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)


class Long(int):
    """A 64-bit integer of an expression; a plain ``int`` is one of 32 bits."""

    __slots__ = ()


Value: TypeAlias = bool | int | float | bytes | None
"""What a part of an expression yields: text is UTF-8, ``None`` is a missing or unknown value."""


class EvaluationError(Exception):
    """Values cannot be compared: the message does not match, whatever the rest of the expression says."""


def compare(left: bool | float | bytes, right: bool | float | bytes) -> int:
    """Return a number below, equal to or above 0 as Apache's ``compareTo`` does; -1 for types without an order.

    Raises:
        EvaluationError: text cannot be read as the type of the other side.
    """
    left_type, right_type = type(left), type(right)
    if left_type is not right_type:
        if left_type is bytes:
            left = _READERS[right_type](left)  # type: ignore[arg-type]
        elif right_type is bytes:
            if left_type is bool:
                raise EvaluationError("a boolean on the left cannot be compared with text")
            right = _READERS[left_type](right)  # type: ignore[arg-type]
        elif left_type is bool or right_type is bool:
            return -1
        elif left_type is float or right_type is float:
            left, right = float(left), float(right)
    if type(left) is float:
        assert type(right) is float, "the sides were made alike"
        return _compare_doubles(left, right)
    return (left > right) - (left < right)  # type: ignore[operator]


def compare_texts_as_numbers(left: bytes, right: bytes) -> int:
    """Compare two properties by ``<`` and the like, for which both are read as doubles.

    Raises:
        EvaluationError: one is not a number.
    """
    return _compare_doubles(_read_double(left), _read_double(right))


def _compare_doubles(left: float, right: float) -> int:
    """Compare as Double.compareTo: NaN is highest and equal to itself, -0.0 is below 0.0."""
    if left != right or left == 0.0:
        left_key, right_key = _double_key(left), _double_key(right)
        return (left_key > right_key) - (left_key < right_key)
    return 0


def _double_key(number: float) -> tuple[bool, float, float]:
    return (True, 0.0, 0.0) if number != number else (False, number, copysign(1.0, number))  # NaN


def _read_boolean(text: bytes) -> bool:
    return text.lower() == b"true"


def _read_integer(text: bytes) -> int:
    if len(text) <= SHORT_DIGITS and text.isdigit():
        return int(text)
    return _read_digits(text, 32)


def _read_long(text: bytes) -> Long:
    return Long(_read_digits(text, 64))


def _read_digits(text: bytes, bits: int) -> int:
    decoded = text.decode("utf-8", "replace")
    if _INTEGER.fullmatch(decoded) is None:
        raise EvaluationError("not an integer")
    try:
        number = int(decoded)
    except ValueError as exc:  # thousands of digits
        raise EvaluationError("too many digits") from exc
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise EvaluationError(f"not an integer of {bits} bits")
    return number


def _read_double(text: bytes) -> float:
    found = _DOUBLE.fullmatch(text.decode("utf-8", "replace").strip(BLANKS))
    if found is None:
        raise EvaluationError("not a number")
    sign = -1.0 if found["sign"] == "-" else 1.0
    if hexadecimal := found["hexadecimal"]:
        try:
            return sign * float.fromhex(hexadecimal)
        except OverflowError:
            return sign * float("inf")
    return sign * float(found["named"] or found["decimal"])


_READERS: Final = {bool: _read_boolean, int: _read_integer, Long: _read_long, float: _read_double}
