"""The tokens of SQL filters.  Source: SelectorParser.jj; behaviour.md A.11."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from triomq.protocol.errors import SubscriptionParseError

END: Final = "the end"
_KEYWORDS: Final = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))
_TOKEN: Final = re.compile(
    r"""
    (?P<blank>[ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|\n|\r) | /\*.*?\*/)
  | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)? | [0-9]+e[+-]?[0-9]+)
  | (?P<integer>0|[1-9][0-9]*l?)
  | (?P<text>'(?:''|[^'])*')
  | (?P<name>[a-z_$][a-z0-9_$]*)
  | (?P<symbol><>|<=|>=|[=<>(),+-])
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII | re.DOTALL,
)


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: ``float``, ``integer``, ``text``, ``name``, ``END``, or the symbol or keyword itself.
        text: as written.
        position: of its first character, from 1.
    """

    kind: str
    text: str
    position: int


def tokens_of(expression: str) -> Iterator[Token]:
    """Yield the tokens, then one of kind ``END``.

    Raises:
        SubscriptionParseError: at a character that begins no token.
    """
    at = 0
    for found in _TOKEN.finditer(expression):
        if found.start() != at:
            break
        kind, text = found.lastgroup, found[0]
        position = at + 1
        at = found.end()
        if kind == "symbol":
            yield Token(text, text, position)
        elif kind == "name":
            keyword = text.upper()
            yield Token(keyword if keyword in _KEYWORDS else kind, text, position)
        elif kind != "blank":
            yield Token(str(kind), text, position)
    if at < len(expression):
        character = expression[at]
        reason = "the text has no closing quote" if character == "'" else f"{character!r} has no meaning here"
        raise sql_error(at + 1, reason)
    yield Token(END, "", at + 1)


def sql_error(position: int, reason: str) -> SubscriptionParseError:
    """Return the error about a character of an expression, counted from 1."""
    return SubscriptionParseError(f"SQL expression, character {position}: {reason}")
