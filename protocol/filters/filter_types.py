"""Filters as users write them, ``"a || b"``, ``Tags("a || b")`` or ``Sql("amount > 100")``, and as subscriptions name
them: an expression and its type.

Source: ExpressionType.java, FilterFactory.java; behaviour.md A.11.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.sql_filter import SqlFilter
from triomq.protocol.filters.tags import SUBSCRIBE_ALL, TagFilter

TAG: Final = "TAG"
SQL92: Final = "SQL92"

MessageFilter: TypeAlias = TagFilter | SqlFilter
"""Either chooses by ``codes``, the hash codes of tags in consume queue units, or by the properties of messages."""

_PARSERS: Final[Mapping[str, Callable[[str | None], MessageFilter]]] = {
    TAG: TagFilter.parse,
    SQL92: SqlFilter.parse,
}


def parse_filter(expression: str | None, expression_type: str | None) -> MessageFilter:
    """Return the filter of a subscription; without a type it is a tag expression.

    Raises:
        SubscriptionParseError: the expression cannot be read, or the type is unknown.
    """
    parse = _PARSERS.get(expression_type or TAG)
    if parse is None:
        raise SubscriptionParseError(
            f"filter type {str(expression_type)[:80]!r} is unknown: use {' or '.join(_PARSERS)}"
        )
    return parse(expression)


def filter_type(message_filter: MessageFilter) -> str:
    """Return the name of a filter's type."""
    return SQL92 if isinstance(message_filter, SqlFilter) else TAG


EVERYTHING: Final = TagFilter.parse(SUBSCRIBE_ALL)


@dataclass(frozen=True, slots=True)
class Tags:
    """A tag expression: ``*`` for every message, or ``TAG || TAG``; a plain ``str`` means the same.

    Raises:
        SubscriptionParseError: it is none; the text says what to write.
    """

    expression: str

    def __post_init__(self) -> None:
        filter_of(self)


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition on the properties of messages, such as ``amount > 100 AND region IN ('eu', 'us')``.

    Brokers evaluate it; Apache's need ``enablePropertyFilter``.  An integer is compared in 32 bits, as in RocketMQ: for
    times in milliseconds write ``ts > 5.0`` or a number that needs 64 bits.

    Raises:
        SubscriptionParseError: it cannot be read; the text names position and reason.
    """

    expression: str

    def __post_init__(self) -> None:
        filter_of(self)


FilterExpression: TypeAlias = str | Tags | Sql
"""What consumers accept."""


def filter_of(expression: FilterExpression) -> MessageFilter:
    """Return the parsed filter.

    Raises:
        SubscriptionParseError: it cannot be read.
    """
    if isinstance(expression, Sql):
        return SqlFilter.parse(expression.expression)
    return TagFilter.parse_strictly(expression.expression if isinstance(expression, Tags) else expression)
