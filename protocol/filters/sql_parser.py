"""Parser of SQL filters, by precedence::

    OR < AND < = <> IS [NOT] NULL < the orders, [NOT] BETWEEN, [NOT] IN < NOT - +

It reads what Apache 4.9.7 reads, and as it does: ``NOT a = 5`` is ``(NOT a) = 5``.  What Apache ignores after the end
of an expression is an error here.

Source: SelectorParser.jj; behaviour.md A.11.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.sql_nodes import (
    ORDERS,
    Constant,
    Long,
    Node,
    Property,
    compare,
    equality,
    inversion,
    logic,
    membership,
    negation,
    order,
)

END: Final = "the end"
_KEYWORDS: Final = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))
_LAST_LINE: Final = r"""
    (?P<blank>[ \t\n\r\f]+ | /\*.*?\*/)
  | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)? | [0-9]+e[+-]?[0-9]+)
  | (?P<integer>0|[1-9][0-9]*l?)
  | (?P<text>'(?:''|[^'])*')
  | (?P<name>[a-z_$][a-z0-9_$]*)
  | (?P<symbol><>|<=|>=|[=<>(),+-])
"""
_FLAGS: Final = re.VERBOSE | re.IGNORECASE | re.ASCII | re.DOTALL
_TOKEN_OF_LAST_LINE: Final = re.compile(_LAST_LINE, _FLAGS)
_TOKEN: Final = re.compile(r"(?P<comment>--[^\n\r]*(?:\r\n|\n|\r)) |" + _LAST_LINE, _FLAGS)


class _Token(NamedTuple):
    """One token.

    Attributes:
        kind: ``float``, ``integer``, ``text``, ``name``, ``END``, or the symbol or keyword itself.
        text: as written.
        position: of its first character, from 1.
    """

    kind: str
    text: str
    position: int


def _tokens_of(expression: str) -> Iterator[_Token]:
    """Yield the tokens, then one of kind ``END``.

    Raises:
        SubscriptionParseError: at a character that begins no token.
    """
    at = 0
    last_line = max(expression.rfind("\n"), expression.rfind("\r")) + 1  # no comment without an end is sought in it
    while found := (_TOKEN if at < last_line else _TOKEN_OF_LAST_LINE).match(expression, at):
        kind, text = found.lastgroup, found[0]
        position = at + 1
        at = found.end()
        if kind == "symbol":
            yield _Token(text, text, position)
        elif kind == "name":
            keyword = text.upper()
            yield _Token(keyword if keyword in _KEYWORDS else kind, text, position)
        elif kind not in ("blank", "comment"):
            yield _Token(str(kind), text, position)
    if at < len(expression):
        character = expression[at]
        reason = "the text has no closing quote" if character == "'" else f"{character!r} has no meaning here"
        raise _sql_error(at + 1, reason)
    yield _Token(END, "", at + 1)


def _sql_error(position: int, reason: str) -> SubscriptionParseError:
    """Return the error about a character of an expression, counted from 1."""
    return SubscriptionParseError(f"SQL expression, character {position}: {reason}")


MAX_CHARACTERS: Final = 100_000
MAX_PARENTHESES: Final = 200
MAX_DEPTH: Final = 400
_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1
_SHOWN: Final = 40

_ANYTHING, _OR, _AND, _EQUALITY, _COMPARISON = range(5)
_POWERS: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys((*ORDERS, "BETWEEN", "IN", "NOT"), _COMPARISON),
}
"""How strongly an operator between two operands binds."""
_NAMES_OF_OTHER_DIALECTS: Final = ("LIKE", "CONTAINS", "STARTSWITH", "ENDSWITH")


class SqlParser:
    """Reads one expression."""

    __slots__ = ("_next_token", "_parentheses", "_token")

    def __init__(self, expression: str) -> None:
        """Take an expression.

        Raises:
            SubscriptionParseError: it is too long, or begins with no token.
        """
        if len(expression) > MAX_CHARACTERS:
            raise SubscriptionParseError(
                f"SQL expression: {len(expression)} characters are too many, the limit is {MAX_CHARACTERS}"
            )
        self._next_token = _tokens_of(expression).__next__
        self._parentheses = 0
        self._token = self._next_token()

    def parse(self) -> Node:
        """Return the tree of the expression.

        Raises:
            SubscriptionParseError: it cannot be read; the text names position and reason.
        """
        if self._token.kind == END:
            raise SubscriptionParseError("SQL expression: it is empty")
        start = self._token
        found = _boolean(self._expression(_ANYTHING), start)
        if self._token.kind != END:
            hint = " (not supported; use =, IN or <)" if self._token.text.upper() in _NAMES_OF_OTHER_DIALECTS else ""
            raise self._error(f"{_shown(self._token)} after the end of the expression{hint}")
        return found

    def _next(self) -> _Token:
        """Return the current token and advance to the next."""
        token = self._token
        if token.kind != END:
            self._token = self._next_token()
        return token

    def _take(self, kind: str) -> _Token:
        if self._token.kind != kind:
            raise self._error(f"expected {kind}, not {_shown(self._token)}")
        return self._next()

    def _error(self, reason: str) -> SubscriptionParseError:
        return _sql_error(self._token.position, reason)

    def _expression(self, power: int) -> Node:
        """Read an expression of operators that bind more strongly than ``power``."""
        start = self._token
        left = self._operand()
        highest = _COMPARISON  # what may follow: after a = 5 no <, which would have belonged to 5
        while power < (own := _POWERS.get(self._token.kind, _ANYTHING)) <= highest:
            operator, highest = self._next(), own
            try:
                left = self._operation(operator, left, start)
            except ValueError as exc:
                raise _sql_error(start.position, str(exc)) from None
            if left.depth > MAX_DEPTH:
                raise _sql_error(operator.position, f"it is nested more than {MAX_DEPTH} deep")
            assert own
        return left

    def _operation(self, operator: _Token, left: Node, start: _Token) -> Node:
        kind = operator.kind
        if kind in ("AND", "OR"):
            return self._logic(operator, left, start)
        if kind == "IS":
            return self._is_null(left)
        if kind in ("=", "<>"):
            found = _equality(left, self._expression(_EQUALITY))
            return found if kind == "=" else inversion(found)
        if kind in ORDERS:
            return order(kind, left, self._operand())
        if is_not := kind == "NOT":
            if self._token.kind not in ("BETWEEN", "IN"):
                raise self._error(f"expected BETWEEN or IN after NOT, not {_shown(self._token)}")
            kind = self._next().kind
        return self._between(left, is_not=is_not) if kind == "BETWEEN" else self._membership(left, is_not=is_not)

    def _logic(self, operator: _Token, left: Node, start: _Token) -> Node:
        """Read the rest of a chain of one operator, so that thousands of parts are one node."""
        parts = [_boolean(left, start)]
        power = _POWERS[operator.kind]
        while True:
            start = self._token
            parts.append(_boolean(self._expression(power), start))
            if self._token.kind != operator.kind:
                return logic(parts, deciding=operator.kind == "OR")
            self._next()

    def _is_null(self, left: Node) -> Node:
        if is_not := self._token.kind == "NOT":
            self._next()
        self._take("NULL")
        found = equality(left, Constant(None))
        return inversion(found) if is_not else found

    def _between(self, left: Node, *, is_not: bool) -> Node:
        low = self._operand()
        self._take("AND")
        high = self._operand()
        if is_not:
            return logic((order("<", left, low), order(">", left, high)), deciding=True)
        parts = order(">=", left, low), order("<=", left, high)
        if isinstance(low, Constant) and isinstance(high, Constant) and compare(high.value, low.value) < 0:  # type: ignore[arg-type]
            raise ValueError("the bounds of BETWEEN are in the wrong order")
        return logic(parts, deciding=False)

    def _membership(self, left: Node, *, is_not: bool) -> Node:
        if not isinstance(left, Property):
            raise ValueError("before IN there must be the name of a property")  # noqa: TRY004  # of the expression
        self._take("(")
        texts = [self._text()]
        while self._token.kind == ",":
            self._next()
            texts.append(self._text())
        self._take(")")
        found = membership(left, texts)
        return inversion(found) if is_not else found

    def _text(self) -> bytes:
        if self._token.kind != "text":
            raise self._error(f"expected a text in single quotes, not {_shown(self._token)}")
        return _unquoted(self._next().text)

    def _operand(self) -> Node:
        """Read an operand with its signs and NOTs, which may be many, so in a loop."""
        prefixes = []
        while self._token.kind in ("NOT", "-", "+"):
            prefixes.append(self._next())
            if len(prefixes) > MAX_DEPTH:
                raise self._error(f"more than {MAX_DEPTH} signs and NOTs")
        start = self._token
        found = self._primary()
        for prefix in reversed(prefixes):
            if prefix.kind == "NOT":
                found = inversion(_boolean(found, start))
            elif prefix.kind == "-":
                found = negation(found)
            if found.depth > MAX_DEPTH:
                raise _sql_error(prefix.position, f"it is nested more than {MAX_DEPTH} deep")
        return found

    def _primary(self) -> Node:
        token = self._token
        if token.kind == "(":
            if self._parentheses >= MAX_PARENTHESES:
                raise self._error(f"more than {MAX_PARENTHESES} parentheses within each other")
            self._parentheses += 1
            self._next()
            found = self._expression(_ANYTHING)
            self._take(")")
            self._parentheses -= 1
            return found
        read = _PRIMARIES.get(token.kind)
        if read is None:
            raise self._error(f"expected a value, not {_shown(token)}")
        self._next()
        try:
            return read(token.text)
        except ValueError as exc:
            raise _sql_error(token.position, str(exc)) from None


def _shown(token: _Token) -> str:
    text = token.text if len(token.text) <= _SHOWN else token.text[:_SHOWN] + "..."
    return text or token.kind


def _boolean(node: Node, start: _Token) -> Node:
    if not node.is_boolean and not isinstance(node, Property):
        raise _sql_error(start.position, "expected a condition, which is true or false")
    return node


def _equality(left: Node, right: Node) -> Node:
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            raise ValueError("NULL cannot be compared: write IS NULL or IS NOT NULL")
    if isinstance(left, Constant) and isinstance(right, Constant) and left.is_boolean and not right.is_boolean:
        raise ValueError("TRUE and FALSE cannot be compared with a number or text")
    return equality(left, right)


# --- literals -----------------------------------------------------------------------------------------------


def _unquoted(text: str) -> bytes:
    return text[1:-1].replace("''", "'").encode("utf-8", "replace")


def _integer(text: str) -> Constant:
    number = int(text.rstrip("lL")) if len(text) < _SHOWN else _MAX_LONG + 1
    if number > _MAX_LONG:
        raise ValueError("the integer has more than 64 bits")
    return Constant(number if number <= _MAX_INT else Long(number))


def _float(text: str) -> Constant:
    number = float(text)
    if number in (0.0, float("inf")):
        raise ValueError("RocketMQ knows no 0.0, and no number too small or too large for a double; write 0")
    return Constant(number)


_PRIMARIES: Final[dict[str, Callable[[str], Node]]] = {
    "name": Property,
    "text": lambda text: Constant(_unquoted(text)),
    "integer": _integer,
    "float": _float,
    "TRUE": lambda _: Constant(True),
    "FALSE": lambda _: Constant(False),
    "NULL": lambda _: Constant(None),
}
