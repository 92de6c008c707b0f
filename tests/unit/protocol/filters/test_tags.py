"""filter: tag expressions."""

import pytest

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import MAX_CHARACTERS, MAX_TAGS, TagFilter
from triomq.protocol.record.message import is_selectable


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_star_and_nothing_match_everything(expression: str | None) -> None:
    tag_filter = TagFilter.parse(expression)
    assert tag_filter.codes is None
    assert tag_filter.tags == ()
    assert tag_filter.expression == "*"
    assert tag_filter.matches_code(0)
    assert tag_filter.matches_code(-5)
    assert tag_filter.matches_tag(None)
    assert tag_filter.matches_tag("x")


@pytest.mark.parametrize("expression", ["TagA||TagB", "  TagA ||  TagB", "||TagA||||TagB||", "TagA || TagB || TagA"])
def test_tags_are_split_trimmed_and_counted_once(expression: str) -> None:
    tag_filter = TagFilter.parse(expression)
    assert tag_filter.tags == ("TagA", "TagB")
    assert tag_filter.codes == frozenset((2598919, 2598920))
    assert tag_filter == TagFilter.parse("TagB || TagA")
    assert hash(tag_filter) == hash(TagFilter.parse("TagB || TagA"))


def test_other_codes_and_tags_do_not_match() -> None:
    tag_filter = TagFilter.parse("TagA")
    assert tag_filter.matches_code(2598919)
    assert not tag_filter.matches_code(0)
    assert tag_filter.matches_tag("TagA")
    assert not tag_filter.matches_tag("TagB")
    assert not tag_filter.matches_tag(None)
    assert tag_filter != TagFilter.parse("TagB")


def test_tags_with_equal_code_differ_by_text() -> None:
    tag_filter = TagFilter.parse("Aa")
    assert tag_filter.matches_code(2112)  # of "BB" too
    assert not tag_filter.matches_tag("BB")


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


def test_repr_shows_the_expression() -> None:
    assert repr(TagFilter.parse("a||b")) == "TagFilter('a||b')"


@pytest.mark.parametrize("expression", ["a && b", "a&&b", "a OR b", "a | b", "a|b", "a ||| b", "a || b c", "a\tb"])
def test_strict_parsing_refuses_other_languages(expression: str) -> None:
    with pytest.raises(SubscriptionParseError, match=r"contains a blank, && or \|; write TAG \|\| TAG, or Sql\(...\)"):
        TagFilter.parse_strictly(expression)
    assert TagFilter.parse(expression).tags  # a broker accepts it, as Apache's does


@pytest.mark.parametrize("expression", [None, "", "*", "a", " a || b ", "a||b", "R&D", "\u3000A || \u4e2d-_.%"])
def test_strict_parsing_accepts_tag_expressions(expression: str | None) -> None:
    assert TagFilter.parse_strictly(expression) == TagFilter.parse(expression)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("a", True),
        ("a b", True),
        ("a|b", True),
        ("*", True),
        ("a||b", False),
        (" \t", False),
        (" a", False),
        ("a ", False),
    ],
)
def test_tag_is_selectable_if_expression_can_hold_it(tag: str, *, expected: bool) -> None:
    assert is_selectable(tag) is expected
    assert expected is (tag in TagFilter.parse(f"{tag} || b").tags)
