"""SQL filters as laws: the work of reading an expression grows with its length only."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import example, given, settings

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters import filter_types, sql_parser
from triomq.protocol.filters.filter_types import SqlFilter

_PIECES = st.sampled_from(("/*", "*/", "--", "\n", "'", "''", "@", "a=1 OR ", "a=--1 OR ", "1", "0", ".", "e", " "))
_TEXTS = st.builds(
    lambda before, pieces, count: before + "".join(pieces) * count,
    st.sampled_from(("", "a=1 OR ")),
    st.lists(_PIECES, min_size=1, max_size=3),
    st.sampled_from((1, 200)),
)
_OPENERS = (("/*", r"/\*", re.compile(r"\*/")), ("--", "--", re.compile(r"\n")), ("'", "'", re.compile("'")))
_PATTERNS = [name for name, value in vars(sql_parser).items() if isinstance(value, re.Pattern)]


class CountingPattern:
    """A pattern of tokens that counts the characters it looks at."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.looked_at = 0

    def match(self, text: str, at: int = 0) -> re.Match[str] | None:
        found = self._pattern.match(text, at)
        self.looked_at += 1 if found is None else found.end() - at
        for begin, expression, end in _OPENERS:
            if text.startswith(begin, at) and expression in self._pattern.pattern:
                stop = end.search(text, at + len(begin))
                self.looked_at += (stop.end() if stop else len(text)) - at
        return found

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(text):
            found = self.match(text, at)
            if found is not None:
                yield found
            at = at + 1 if found is None else found.end()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(_TEXTS)
@example("/*@" * 2048)
@example("a=--1 OR " * 600)
def test_each_character_is_looked_at_some_times(text: str) -> None:
    counting: dict[str, Any] = {name: CountingPattern(getattr(sql_parser, name)) for name in _PATTERNS}
    with patch.multiple(sql_parser, **counting), suppress(SubscriptionParseError):
        SqlFilter.parse(text)
    assert sum(each.looked_at for each in counting.values()) <= 3 * len(text) + 16


_NAMES = st.sampled_from(("a", "b", "ab", ""))
_PROPERTIES = st.lists(st.tuples(_NAMES, st.sampled_from(("", "1", "2.5", "x", "\x01", "a\x01")))).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
)
_CONDITIONS = st.sampled_from(
    ("a = 1", "b > 2.0", "ab = 'x'", "a IN ('1', 'x')", "b IS NULL", "a = b", "NOT (ab <> '1')", "a BETWEEN 0 AND 2")
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(_CONDITIONS, min_size=1, max_size=3), st.sampled_from((" AND ", " OR ")), _PROPERTIES)
def test_verdict_is_same_if_all_properties_read(conditions: list[str], operator: str, properties: bytes) -> None:
    expression = operator.join(conditions)
    with patch.object(filter_types, "_SCANNED_BYTES", 0):
        indexing = SqlFilter.parse(expression)
    assert SqlFilter.parse(expression).matches(properties) == indexing.matches(properties)
