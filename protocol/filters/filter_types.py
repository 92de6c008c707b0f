"""The types of filter that a subscription can name, in one table.

Source: ExpressionType.java, FilterFactory.java; behaviour.md A.11.
"""

from collections.abc import Callable, Mapping
from typing import Final

from triomq.protocol.errors import UnsupportedFilterError
from triomq.protocol.filters.tags import TagFilter

TAG: Final = "TAG"

_PARSERS: Final[Mapping[str, Callable[[str | None], TagFilter]]] = {
    TAG: TagFilter.parse,
}


def parse_filter(expression: str | None, expression_type: str | None) -> TagFilter:
    """Return the filter of a subscription; without a type it is a tag expression.

    Raises:
        SubscriptionParseError: the expression cannot be read.
        UnsupportedFilterError: the type is unknown.
    """
    return _parser(expression_type)(expression)


def check_filter_type(expression_type: str | None) -> None:
    """Accept a type that :func:`parse_filter` knows.

    Raises:
        UnsupportedFilterError: the type is unknown.
    """
    _parser(expression_type)


def _parser(expression_type: str | None) -> Callable[[str | None], TagFilter]:
    parse = _PARSERS.get(expression_type or TAG)
    if parse is None:
        raise UnsupportedFilterError(expression_type)
    return parse
