"""The parts of a parsed SQL filter; each evaluates itself on the encoded properties of a message.

The results are true, false, unknown (``None``) and an error, which ends the evaluation of the whole expression.

Source: the classes of rocketmq-filter 4.9.7; behaviour.md A.11.
"""

from collections.abc import Callable, Sequence
from operator import ge, gt, le, lt
from typing import Final

from triomq.protocol.filters.sql_values import Value, compare, compare_texts_as_numbers
from triomq.protocol.record.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_INT_DIGITS: Final = 10  # an int has up to ten
ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


class Node:
    """A part of an expression.

    Attributes:
        depth: of the tree below, itself included.
        size: the number of parts in it.
        is_boolean: whether it may stand beside AND, OR and NOT.
    """

    __slots__ = ("depth", "size")
    is_boolean = True

    def __init__(self, *parts: "Node") -> None:
        self.depth: int = 1 + max((part.depth for part in parts), default=0)
        self.size: int = 1 + sum(part.size for part in parts)

    def evaluate(self, properties: bytes) -> Value:
        """Return the value for a message; ``properties`` begins with 0x02.

        Raises:
            EvaluationError: two values cannot be compared.
        """
        raise NotImplementedError


class Constant(Node):
    """A literal, NULL included."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value: Final = value

    @property
    def is_boolean(self) -> bool:  # type: ignore[override]
        """Whether it is TRUE, FALSE or NULL."""
        return self.value is None or type(self.value) is bool

    @property
    def is_number(self) -> bool:
        """Whether it is an integer or a float."""
        return isinstance(self.value, int | float) and not self.is_boolean

    def evaluate(self, properties: bytes) -> Value:
        """Return the value."""
        return self.value


class Property(Node):
    """The value of a property; an empty one is missing, of equal names the last counts."""

    __slots__ = ("_key", "_key_length")
    is_boolean = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self._key: Final = PROPERTY_SEPARATOR + name.encode() + NAME_VALUE_SEPARATOR
        self._key_length: Final = len(self._key)

    def evaluate(self, properties: bytes) -> bytes | None:
        """Return the text, ``None`` if there is none."""
        key = self._key
        at = properties.rfind(key)
        while at >= 0:
            start = at + self._key_length
            end = properties.find(PROPERTY_SEPARATOR, start)
            if value := properties[start:] if end < 0 else properties[start:end]:
                return value
            at = properties.rfind(key, 0, at)
        return None


class Negation(Node):
    """``-x``: a number, or unknown, as for every property."""

    __slots__ = ("_part",)
    is_boolean = False

    def __init__(self, part: Node) -> None:
        super().__init__(part)
        self._part: Final = part

    def evaluate(self, properties: bytes) -> Value:
        """Return the number with the other sign, of the same type."""
        value = self._part.evaluate(properties)
        return type(value)(-value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Equality(Node):
    """``a = b``, and ``a IS NULL`` as equality with NULL."""

    __slots__ = ("_evaluate_left", "_evaluate_right")

    def __init__(self, left: Node, right: Node) -> None:
        super().__init__(left, right)
        self._evaluate_left: Final = left.evaluate
        self._evaluate_right: Final = right.evaluate

    def evaluate(self, properties: bytes) -> bool | None:
        """Compare; with a missing left side it is unknown, with two missing sides true."""
        left, right = self._evaluate_left(properties), self._evaluate_right(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        return left == right if type(left) is bytes is type(right) else compare(left, right) == 0


class Order(Node):
    """``a < b`` and the like; unknown if a side is missing."""

    __slots__ = ("_constant", "_evaluate_left", "_evaluate_right", "_holds")

    def __init__(self, operator: str, left: Node, right: Node) -> None:
        super().__init__(left, right)
        self._holds: Final = ORDERS[operator]
        self._evaluate_left: Final = left.evaluate
        self._evaluate_right: Final = right.evaluate
        self._constant: Final = right.value if isinstance(right, Constant) else None

    def evaluate(self, properties: bytes) -> bool | None:
        """Compare numbers; two properties are compared as doubles."""
        left = self._evaluate_left(properties)
        if left is None:
            return None
        constant = self._constant
        # the usual case, in short
        if type(constant) is int and type(left) is bytes and left.isdigit() and len(left) < _INT_DIGITS:
            return self._holds(int(left), constant)
        right = self._evaluate_right(properties)
        if right is None:
            return None
        if type(left) is bytes and type(right) is bytes:
            return self._holds(compare_texts_as_numbers(left, right), 0)
        return self._holds(compare(left, right), 0)


class Membership(Node):
    """``p IN ('a', 'b')``; unknown if the property is missing."""

    __slots__ = ("_evaluate_part", "_texts")

    def __init__(self, part: Property, texts: Sequence[bytes]) -> None:
        super().__init__(part)
        self._evaluate_part: Final = part.evaluate
        self._texts: Final = frozenset(texts)

    def evaluate(self, properties: bytes) -> bool | None:
        """Look the text up."""
        value = self._evaluate_part(properties)
        return None if value is None else value in self._texts


class Not(Node):
    """``NOT x``; a property that exists is never true."""

    __slots__ = ("_part",)

    def __init__(self, part: Node) -> None:
        super().__init__(part)
        self._part: Final = part

    def evaluate(self, properties: bytes) -> bool | None:
        """Negate; unknown stays unknown."""
        value = self._part.evaluate(properties)
        return None if value is None else value is not True


class Logic(Node):
    """A chain of AND, or of OR, from left to right, up to the first part that decides it."""

    __slots__ = ("_deciding", "_evaluators")

    def __init__(self, parts: Sequence[Node], *, deciding: bool) -> None:
        """``deciding`` is the value that ends it: false for AND, true for OR."""
        super().__init__(*parts)
        self._evaluators: Final = tuple(part.evaluate for part in parts)
        self._deciding: Final = deciding

    def evaluate(self, properties: bytes) -> bool | None:
        """Return the deciding value if a part has it, else unknown if one is, else the other value."""
        deciding = self._deciding
        result: bool | None = not deciding
        for evaluate in self._evaluators:
            value = evaluate(properties)
            if value is None:
                result = None
            elif (value is True) is deciding:
                return deciding
        return result
