"""The types of filter that a subscription can name, in one table.

Source: ExpressionType.java, FilterFactory.java; behaviour.md A.11.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.sql_filter import SqlFilter
from triomq.protocol.filters.tags import TagFilter

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
