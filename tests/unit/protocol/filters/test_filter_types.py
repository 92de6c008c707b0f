"""Filters by tags and by SQL, and their types.  The interop suite compares thousands of SQL verdicts with Apache's."""

import sys

import pytest

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import (
    MAX_CHARACTERS,
    MAX_TAGS,
    Sql,
    SqlFilter,
    TagFilter,
    filter_type,
    parse_filter,
)
from triomq.protocol.filters.sql_nodes import _read_long_double, index
from triomq.protocol.record.message import is_selectable
from triomq.protocol.record.properties import encode_properties


@pytest.mark.parametrize(
    ("named", "kind", "name"), [(None, TagFilter, "TAG"), ("", TagFilter, "TAG"), ("SQL92", SqlFilter, "SQL92")]
)
def test_filter_has_its_type(named: str | None, kind: type[TagFilter | SqlFilter], name: str) -> None:
    found = parse_filter("a > 1", named)
    assert found == parse_filter("a > 1", name) == kind.parse("a > 1")
    assert filter_type(found) == name


@pytest.mark.parametrize("expression_type", ["sql92", "tag", "CLASS", "SQL92 "])
def test_other_types_are_refused_by_name(expression_type: str) -> None:
    with pytest.raises(SubscriptionParseError, match=f"'{expression_type}' is unknown: use TAG or SQL92"):
        parse_filter("a > 1", expression_type)


# --- tags ---


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_star_and_nothing_match_everything(expression: str | None) -> None:
    tag_filter = TagFilter.parse(expression)
    assert (tag_filter.codes, tag_filter.tags, tag_filter.expression) == (None, (), "*")
    assert all(map(tag_filter.matches_code, (0, -5)))
    assert all(map(tag_filter.matches_tag, (None, "x")))


@pytest.mark.parametrize("expression", ["TagA||TagB", "  TagA ||  TagB", "||TagA||||TagB||", "TagA || TagB || TagA"])
def test_tags_are_split_trimmed_and_counted_once(expression: str) -> None:
    tag_filter = TagFilter.parse(expression)
    assert tag_filter.tags == ("TagA", "TagB")
    assert tag_filter.codes == frozenset((2598919, 2598920))
    assert tag_filter == TagFilter.parse("TagB || TagA")
    assert hash(tag_filter) == hash(TagFilter.parse("TagB || TagA"))


def test_other_codes_and_tags_do_not_match() -> None:
    tag_filter = TagFilter.parse("Aa")
    assert [tag_filter.matches_code(code) for code in (2112, 0)] == [True, False]
    assert [tag_filter.matches_tag(tag) for tag in ("Aa", "BB", None)] == [True, False, False]  # BB has the same code
    assert tag_filter != TagFilter.parse("BB")


@pytest.mark.parametrize("expression", ["||", " || ", " ", "|| ||"])
def test_expression_of_empty_parts_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionParseError):
        TagFilter.parse(expression)


@pytest.mark.parametrize(("tags", "padding"), [(MAX_TAGS + 1, 0), (1, MAX_CHARACTERS)])
def test_too_long_expressions_are_refused(tags: int, padding: int) -> None:
    with pytest.raises(SubscriptionParseError, match="too many"):
        TagFilter.parse("||".join(["a"] * tags) + "b" * padding)
    assert len(TagFilter.parse("||".join(map(str, range(MAX_TAGS)))).tags) == MAX_TAGS


def test_only_javas_blanks_are_trimmed() -> None:
    assert TagFilter.parse("\u3000A\t||\x00B\n").tags == ("\u3000A", "B")


@pytest.mark.parametrize("expression", ["a && b", "a&&b", "a OR b", "a | b", "a|b", "a ||| b", "a || b c", "a\tb"])
def test_strict_parsing_refuses_other_languages(expression: str) -> None:
    with pytest.raises(SubscriptionParseError, match=r"contains a blank, && or \|; write TAG \|\| TAG, or Sql\(...\)"):
        TagFilter.parse_strictly(expression)
    assert TagFilter.parse(expression).tags  # a broker accepts it, as Apache's does


@pytest.mark.parametrize("expression", [None, "", "*", "a", " a || b ", "a||b", "R&D", "\u3000A || \u4e2d-_.%"])
def test_strict_parsing_accepts_tag_expressions(expression: str | None) -> None:
    assert TagFilter.parse_strictly(expression) == TagFilter.parse(expression)


@pytest.mark.parametrize("tag", ["a", "a b", "a|b", "*", "a||b", " \t", " a", "a "])
def test_tag_is_selectable_if_expression_can_hold_it(tag: str) -> None:
    assert is_selectable(tag) is (tag in TagFilter.parse(f"{tag} || b").tags) is (tag in ("a", "a b", "a|b", "*"))


# --- SQL ---

MESSAGE = encode_properties(
    {"a": "5", "ts": "1700000000000", "s": "abc", "b": "true", "float": " 5.0 ", "region": "eu"}
)


MATCHING = (
    *("a = 5", "a > 4 AND region IN ('eu', 'us') AND ts > 5.0", "ts > 2147483648", "a = 5 OR s > 5", "NOT (a = 6)"),
    *("missing = 5 OR a = 5", "missing IS NULL AND a IS NOT NULL", "missing = other", "a <> missing"),
    *("b = TRUE", "s = FALSE", "NOT b", "a = - -5", "a BETWEEN 5 AND 5", "a NOT BETWEEN 6 AND 4"),
    *("float = 5.0", "a >= float", "s = 'abc' -- comment\n", "/* **/ s <> 'it''s'", "1 = '1'"),
)
OTHERS = (
    "ts > 5",  # no 32-bit integer: an error
    "s > 5 OR a = 5",  # an error ends it
    "NOT a = 5",  # (NOT a) = 5
    *("missing <> 5", "TRUE = b", "b", "b AND a = 5", "-a = -5", "float = 5", "a = float", "5 = TRUE"),
)


@pytest.mark.parametrize(
    ("expression", "matches"), [*((each, True) for each in MATCHING), *((each, False) for each in OTHERS)]
)
def test_verdicts(expression: str, matches: bool) -> None:
    assert SqlFilter.parse(expression).matches(MESSAGE) is matches


@pytest.mark.parametrize("value", [b"\x02" * 30_000, b"x" * 32_000, b"0" * 4200 + b"5", b" " * 32_000 + b"7"])
def test_long_properties_are_read_once_for_all_parts(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def counted(properties: bytes) -> dict[bytes, bytes]:
        read.append(properties)
        return index(properties)

    monkeypatch.setattr("triomq.protocol.filters.filter_types.index", counted)
    properties = b"b\x011\x02a\x01" + value
    conversions = _read_long_double.cache_info().misses
    assert not SqlFilter.parse(" OR ".join(["c = 1", "b = 2", "a = '3'", "a = 6.5"] * 200)).matches(properties)
    assert read == [b"\x02" + properties]
    assert _read_long_double.cache_info().misses <= conversions + 1


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
