"""SQL92 filters: conditions on the properties of messages.

Verdicts are those of Apache 4.9.7's broker, odd ones included.  Source: behaviour.md A.11.
"""

from typing import Final, Self

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.sql_nodes import Node
from triomq.protocol.filters.sql_parser import parse_sql
from triomq.protocol.filters.sql_values import EvaluationError
from triomq.protocol.record.properties import PROPERTY_SEPARATOR


class SqlFilter:
    """A parsed SQL expression.

    Attributes:
        expression: as given.
        codes: ``None``: the expression does not choose by the tags of consume queue units.
        size: the number of its parts, to which the time of :meth:`matches` is proportional.
    """

    __slots__ = ("_evaluate", "expression", "size")

    codes: Final = None

    def __init__(self, expression: str, root: Node) -> None:
        self.expression: Final = expression
        self._evaluate: Final = root.evaluator()
        self.size: Final = root.size

    @classmethod
    def parse(cls, expression: str | None) -> Self:
        """Read an expression.

        Raises:
            SubscriptionParseError: it cannot be read; the text names position and reason.
        """
        if not expression:
            raise SubscriptionParseError("SQL expression: it is empty")
        return cls(expression, parse_sql(expression))

    def matches(self, properties: bytes) -> bool:
        """Whether the message with these encoded properties is wanted."""
        try:
            return self._evaluate(PROPERTY_SEPARATOR + properties) is True
        except EvaluationError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlFilter) and self.expression == other.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"
