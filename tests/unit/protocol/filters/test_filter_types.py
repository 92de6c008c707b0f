"""The table of filter types."""

import pytest

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import SqlFilter, TagFilter, filter_type, parse_filter


@pytest.mark.parametrize("expression_type", [None, "", "TAG"])
def test_tags_are_the_default_type(expression_type: str | None) -> None:
    found = parse_filter("A || B", expression_type)
    assert found == TagFilter.parse("A || B")
    assert filter_type(found) == "TAG"


def test_sql_is_the_other_type() -> None:
    found = parse_filter("a > 1", "SQL92")
    assert found == SqlFilter.parse("a > 1")
    assert filter_type(found) == "SQL92"


@pytest.mark.parametrize("expression_type", ["sql92", "tag", "CLASS", "SQL92 "])
def test_other_types_are_refused_by_name(expression_type: str) -> None:
    with pytest.raises(SubscriptionParseError, match=f"'{expression_type}' is unknown: use TAG or SQL92"):
        parse_filter("a > 1", expression_type)
