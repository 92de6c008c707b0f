"""The table of filter types."""

import pytest

from triomq.protocol.errors import UnsupportedFilterError
from triomq.protocol.filters.filter_types import check_filter_type, parse_filter
from triomq.protocol.filters.tags import TagFilter


@pytest.mark.parametrize("expression_type", [None, "", "TAG"])
def test_tags_are_the_default_type(expression_type: str | None) -> None:
    check_filter_type(expression_type)
    assert parse_filter("A || B", expression_type) == TagFilter.parse("A || B")


@pytest.mark.parametrize("expression_type", ["SQL92", "tag", "CLASS"])
def test_other_types_are_refused_by_name(expression_type: str) -> None:
    with pytest.raises(UnsupportedFilterError, match=f"does not support .* by {expression_type}"):
        check_filter_type(expression_type)
    with pytest.raises(UnsupportedFilterError):
        parse_filter("a > 1", expression_type)
