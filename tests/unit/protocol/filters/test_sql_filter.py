"""SQL filters: positions of errors, odd verdicts, limits.  The interop suite compares thousands with Apache's."""

import sys

import pytest

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import Sql, SqlFilter, Tags, filter_of
from triomq.protocol.record.properties import encode_properties

MESSAGE = encode_properties(
    {"a": "5", "ts": "1700000000000", "s": "abc", "b": "true", "float": " 5.0 ", "region": "eu"}
)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("a = 5", True),
        ("a > 4 AND region IN ('eu', 'us') AND ts > 5.0", True),
        ("ts > 5", False),  # no 32-bit integer: an error
        ("ts > 2147483648", True),
        ("s > 5 OR a = 5", False),  # an error ends it
        ("a = 5 OR s > 5", True),
        ("NOT a = 5", False),  # (NOT a) = 5
        ("NOT (a = 6)", True),
        ("missing = 5 OR a = 5", True),
        ("missing IS NULL AND a IS NOT NULL", True),
        ("missing = other", True),
        ("a <> missing", True),
        ("missing <> 5", False),
        ("b = TRUE", True),
        ("s = FALSE", True),
        ("TRUE = b", False),
        ("b", False),
        ("NOT b", True),
        ("-a = -5", False),
        ("a = - -5", True),
        ("a BETWEEN 5 AND 5", True),
        ("a NOT BETWEEN 6 AND 4", True),
        ("float = 5.0", True),
        ("float = 5", False),
        ("a = float", False),
        ("a >= float", True),
        ("s = 'abc' -- comment\n", True),
        ("/* **/ s <> 'it''s'", True),
        ("5 = TRUE", False),
        ("1 = '1'", True),
    ],
)
def test_verdicts(expression: str, matches: bool) -> None:
    assert SqlFilter.parse(expression).matches(MESSAGE) is matches


@pytest.mark.parametrize(
    ("properties", "value"),
    [(b"a\x015\x02a\x016", "6"), (b"a\x015\x02a\x01", "5"), (b"xa\x017\x02a\x015\x02", "5"), (b"a\x01b\x02c", "b")],
)
def test_a_property_is_found_as_readers_find_it(properties: bytes, value: str) -> None:
    assert SqlFilter.parse(f"a = '{value}'").matches(properties)


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("a = 5 garbage", 7, "garbage after the end"),
        ("a LIKE 'x%'", 3, "LIKE after the end of the expression (not supported"),
        ("a = 5)", 6, ") after the end"),
        ("a = 007", 6, "0 after the end"),
        ("a = 5 IS NULL > 3", 15, "> after the end"),
        ("a = #", 5, "'#' has no meaning here"),
        ("a = 'x", 5, "no closing quote"),
        ("a IN (5)", 7, "expected a text in single quotes, not 5"),
        ("5 IN ('a')", 1, "name of a property"),
        ("a IS TRUE", 6, "expected NULL, not TRUE"),
        ("a = NULL", 1, "write IS NULL"),
        ("TRUE = 5", 1, "cannot be compared"),
        ("a < 'x'", 1, "only numbers and properties have an order"),
        ("a BETWEEN 5 AND 4", 1, "wrong order"),
        ("b AND a = 0.0", 11, "no 0.0"),
        ("a = 9223372036854775808", 5, "more than 64 bits"),
        ("(a = 5", 7, "expected ), not the end"),
        ("-a", 1, "expected a condition"),
        ("a = 5 AND", 10, "expected a value, not the end"),
    ],
)
def test_a_refusal_names_position_and_reason(expression: str, position: int, reason: str) -> None:
    with pytest.raises(SubscriptionParseError) as refused:
        Sql(expression)
    text = str(refused.value)
    assert text.startswith(f"SQL expression, character {position}: ")
    assert reason in text


@pytest.mark.parametrize("expression", [None, "", "  ", "/* */"])
def test_an_empty_expression_is_refused(expression: str | None) -> None:
    with pytest.raises(SubscriptionParseError, match="it is empty"):
        SqlFilter.parse(expression)


TEXTS = ", ".join(f"'{number}'" for number in range(10_000))


@pytest.mark.parametrize(
    ("expression", "is_taken"),
    [
        ("(" * 200 + "a = 5" + ")" * 200, True),
        ("(" * 201 + "a = 5" + ")" * 201, False),
        ("NOT " * 200 + "(a = 5)", True),
        ("NOT (" * 190 + "a = 5" + ")" * 190, True),
        ("NOT " * 500 + "(a = 5)", False),
        ("- " * 10_000 + "5 = a", False),
        ("NOT NOT NOT (" * 150 + "a = 5" + ")" * 150, False),
        ("a" + " = 5" * 5_000, False),
        ("a = 5 OR " * 11_000 + "a = 5", True),
        ("a = 5 AND " * 9_000 + "a = 5", True),
        (f"a IN ({TEXTS})", True),
        ("a IN (" + ",".join(["'x'"] * 20_000) + ", '5')", True),
        ("a = 5" + " " * 99_995, True),
        ("a = 5" + " " * 99_996, False),
    ],
    ids=lambda value: str(value)[:12],
)
def test_limits_are_refusals(expression: str, is_taken: bool) -> None:
    frames = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        if is_taken:
            assert SqlFilter.parse(expression).matches(MESSAGE)
        else:
            with pytest.raises(SubscriptionParseError):
                SqlFilter.parse(expression)
    finally:
        sys.setrecursionlimit(frames)


def test_filters_are_equal_by_their_expression() -> None:
    assert SqlFilter.parse("a = 5") == SqlFilter.parse("a = 5") != SqlFilter.parse("a = 6")
    assert len({SqlFilter.parse("a = 5"), SqlFilter.parse("a = 5")}) == 1
    assert SqlFilter.parse("a = 5") != filter_of("a")
    assert repr(SqlFilter.parse("a = 5")) == "SqlFilter('a = 5')"


@pytest.mark.parametrize("expression", ["a && b", "a OR b", "a | b"])
def test_tags_say_what_to_write(expression: str) -> None:
    with pytest.raises(SubscriptionParseError, match=r"write TAG \|\| TAG, or Sql\(...\)"):
        Tags(expression)
    assert filter_of(Tags("a || b")) == filter_of("a || b")
