"""The parts of a parsed SQL filter; each evaluates itself on the encoded properties of a message.

The results are true, false, unknown (``None``) and an error, which ends the evaluation of the whole expression.

A property is text.  Beside a number it is read as Java reads that type: ``'5.0'`` is no integer, ``' 5 '`` is a double.

Source: the classes of rocketmq-filter 4.9.7, such as ComparisonExpression.java; behaviour.md A.11.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import copysign
from operator import eq, ge, gt, le, lt
from typing import Final, TypeAlias

from triomq.protocol.java import BLANKS
from triomq.protocol.record.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_SHORT_DIGITS: Final = 9
"""Any number of so many digits fits into 32 bits."""
_SHORT_TEXT: Final = 64  # is read again for each comparison; the numbers of longer texts are remembered
_REMEMBERED: Final = 32
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

Properties: TypeAlias = bytes | dict[bytes, bytes]
"""Of a message: encoded, with 0x02 before them, or as :func:`index` returns them, where many parts are evaluated."""

_PROPERTY: Final = re.compile(
    b"%b([^%b%b]*)%b([^%b]+)"
    % (PROPERTY_SEPARATOR, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
)


def index(properties: bytes) -> dict[bytes, bytes]:
    """Return the values by name; an empty one is missing, of equal names the last counts."""
    return dict(_PROPERTY.findall(properties))


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


def _compare_doubles(left: float, right: float) -> int:
    """Compare as Double.compareTo: NaN is highest and equal to itself, -0.0 is below 0.0."""
    if left != right or left == 0.0:
        left_key, right_key = _double_key(left), _double_key(right)
        return (left_key > right_key) - (left_key < right_key)
    return 0


def _double_key(number: float) -> tuple[bool, float, float]:
    return (True, 0.0, 0.0) if number != number else (False, number, copysign(1.0, number))  # NaN


def _read_integer(text: bytes) -> int:
    if len(text) <= _SHORT_DIGITS and text.isdigit():
        return int(text)
    return _read_digits(text, 32)


@lru_cache(_REMEMBERED)
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
    return _read_short_double(text) if len(text) <= _SHORT_TEXT else _read_long_double(text)


def _read_short_double(text: bytes) -> float:
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


_read_long_double: Final = lru_cache(_REMEMBERED)(_read_short_double)

_READERS: Final[Mapping[type, Callable[[bytes], bool | float]]] = {
    bool: lambda text: len(text) == len(b"true") and text.lower() == b"true",
    int: _read_integer,
    Long: lambda text: Long(_read_digits(text, 64)),
    float: _read_double,
}


# --- parts --------------------------------------------------------------------------------------------------

ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


Evaluator: TypeAlias = Callable[[Properties], Value]


class Node:
    """A part of an expression.

    Attributes:
        evaluate: returns its value for a message, from its properties; raises EvaluationError if two values cannot
            be compared.
        depth: of the tree below, itself included.
        size: the number of parts in it.
        is_boolean: whether it may be an operand of AND, OR and NOT.
    """

    __slots__ = ("depth", "evaluate", "is_boolean", "size")

    def __init__(self, evaluate: Evaluator, *parts: "Node", is_boolean: bool = True) -> None:
        self.evaluate: Final = evaluate
        self.depth: Final[int] = 1 + max((part.depth for part in parts), default=0)
        self.size: Final[int] = 1 + sum(part.size for part in parts)
        self.is_boolean: Final = is_boolean


class Constant(Node):
    """A literal, NULL included."""

    __slots__ = ("is_number", "value")

    def __init__(self, value: Value) -> None:
        super().__init__(lambda _properties: value, is_boolean=value is None or type(value) is bool)
        self.value: Final = value
        self.is_number: Final = isinstance(value, int | float) and not self.is_boolean


class Property(Node):
    """The value of a property; an empty one is missing, of equal names the last counts."""

    __slots__ = ("_key", "_name")

    def __init__(self, name: str) -> None:
        self._name: Final = name.encode()
        self._key: Final = PROPERTY_SEPARATOR + self._name + NAME_VALUE_SEPARATOR
        super().__init__(self.tester(bytes), is_boolean=False)

    def tester(self, test: Callable[[bytes], bool | bytes]) -> Evaluator:
        """Return the test of the property's value, one call for each message; unknown without a value."""
        key, key_length, name = self._key, len(self._key), self._name

        def tested(properties: Properties) -> Value:
            value: bytes | None
            if isinstance(properties, dict):
                value = properties.get(name)
            else:
                at = properties.rfind(key)
                if at < 0:
                    return None
                start = at + key_length
                end = properties.find(PROPERTY_SEPARATOR, start)
                value = (properties[start:] if end < 0 else properties[start:end]) or index(properties).get(name)
            return None if value is None else test(value)

        return tested


def _number_test(holds: Callable[[int, int], bool], constant: float) -> Callable[[bytes], bool]:
    """Return the test of text beside a number."""
    if type(constant) is not int:
        return lambda text: holds(compare(text, constant), 0)

    def test(text: bytes) -> bool:
        if len(text) <= _SHORT_DIGITS and text.isdigit():
            return holds(int(text), constant)
        return holds(compare(text, constant), 0)

    return test


def negation(part: Node) -> Node:
    """Return ``-x``: the number with the other sign, of the same type; unknown, as for every property."""

    def evaluate(properties: Properties) -> Value:
        value = part.evaluate(properties)
        return type(value)(-value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    return Node(evaluate, part, is_boolean=False)


def equality(left: Node, right: Node) -> Node:
    """Return ``a = b``, and ``a IS NULL`` as equality with NULL.

    With a missing left side it is unknown, with two missing sides true.
    """
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        left, right = evaluate_left(properties), evaluate_right(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        return compare(left, right) == 0

    if isinstance(left, Property) and isinstance(right, Constant):  # a short way
        if isinstance(right.value, bytes):
            return Node(left.tester(right.value.__eq__), left, right)
        if right.is_number:
            return Node(left.tester(_number_test(eq, right.value)), left, right)  # type: ignore[arg-type]
    return Node(evaluate, left, right)


def order(operator: str, left: Node, right: Node) -> Node:
    """Return ``a < b`` and the like: of numbers, or of two properties as doubles; unknown if a side is missing.

    Raises:
        ValueError: a side has no order.
    """
    for side in (left, right):
        if side.is_boolean or (isinstance(side, Constant) and not side.is_number):
            raise ValueError("only numbers and properties have an order (<, <=, >, >=, BETWEEN)")
    holds, evaluate_left, evaluate_right = ORDERS[operator], left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        left = evaluate_left(properties)
        if left is None:
            return None
        right = evaluate_right(properties)
        if right is None:
            return None
        if type(left) is bytes and type(right) is bytes:
            return holds(_compare_doubles(_read_double(left), _read_double(right)), 0)
        return holds(compare(left, right), 0)

    if isinstance(left, Property) and isinstance(right, Constant):  # a short way
        return Node(left.tester(_number_test(holds, right.value)), left, right)  # type: ignore[arg-type]
    return Node(evaluate, left, right)


def membership(part: Property, texts: Sequence[bytes]) -> Node:
    """Return ``p IN ('a', 'b')``; unknown if the property is missing."""
    return Node(part.tester(frozenset(texts).__contains__), part)


def inversion(part: Node) -> Node:
    """Return ``NOT x``; a property that exists is never true, and unknown stays unknown."""

    def evaluate(properties: Properties) -> bool | None:
        value = part.evaluate(properties)
        return None if value is None else value is not True

    return Node(evaluate, part)


def logic(parts: Sequence[Node], *, deciding: bool) -> Node:
    """Return a chain of AND, or of OR, from left to right, up to the first part that decides it.

    Args:
        parts: of the chain.
        deciding: the value that ends it: false for AND, true for OR.  Without a part that has it, the chain is unknown
            if a part is, else the other value.
    """
    evaluators = tuple(part.evaluate for part in parts)

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = not deciding
        for evaluate_part in evaluators:
            value = evaluate_part(properties)
            if value is None:
                result = None
            elif (value is True) is deciding:
                return deciding
        return result

    return Node(evaluate, *parts)
