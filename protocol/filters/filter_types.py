"""Filters as users write them, ``"a || b"``, ``Tags("a || b")`` or ``Sql("amount > 100")``, and as subscriptions name
them: an expression and its type.

Of a tag expression the broker compares hash codes only, because a consume queue unit holds nothing else; the client
compares the text.  Verdicts of SQL92 filters are those of Apache 4.9.7's broker, odd ones included.

Source: ExpressionType.java, FilterFactory.java, FilterAPI.java; behaviour.md A.11, wire.md 5.2.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.sql_nodes import EvaluationError, Node, index
from triomq.protocol.filters.sql_parser import SqlParser
from triomq.protocol.java import BLANKS, tags_code
from triomq.protocol.record.properties import PROPERTY_SEPARATOR

TAG: Final = "TAG"
SQL92: Final = "SQL92"
SUBSCRIBE_ALL: Final = "*"
MAX_TAGS: Final = 2048  # of one expression, some ms to read; RocketMQ has no limit
MAX_CHARACTERS: Final = 32_768
_SCANNED_BYTES: Final = 4096  # by all parts of an SQL filter; beyond it, it costs less to read all properties once
_SEPARATOR: Final = "||"
_PLAIN_TAG: Final = re.compile(r"(?:[^\x00-\x20&|]|&(?!&))+")  # R&D is a tag


class TagFilter:
    """A parsed tag expression.

    Attributes:
        expression: as given; ``*`` if it was empty.
        tags: the wanted tags in the expression's order; empty for everything.
        codes: the hash codes of ``tags``; ``None`` for everything.
    """

    __slots__ = ("_tag_set", "codes", "expression", "tags")

    def __init__(self, expression: str, tags: tuple[str, ...]) -> None:
        self.expression: Final = expression
        self.tags: Final = tags
        self._tag_set: Final = frozenset(tags)
        self.codes: Final = frozenset(map(tags_code, tags)) if tags else None

    @classmethod
    def parse(cls, expression: str | None) -> Self:
        """Read an expression as Apache's broker does; ``None``, an empty one and ``*`` mean everything.

        Raises:
            SubscriptionParseError: it has only empty parts, as in ``||``, or is too long.
        """
        if not expression or expression == SUBSCRIBE_ALL:
            return cls(SUBSCRIBE_ALL, ())
        count = expression.count(_SEPARATOR) + 1
        if count > MAX_TAGS or len(expression) > MAX_CHARACTERS:
            raise SubscriptionParseError(
                f"tag expression: {count} tags in {len(expression)} characters are too many, the limits are {MAX_TAGS} "
                f"and {MAX_CHARACTERS}"
            )
        tags = dict.fromkeys(tag for part in expression.split(_SEPARATOR) if (tag := part.strip(BLANKS)))
        if not tags:
            raise SubscriptionParseError(f"tag expression {expression[:80]!r}: it contains no tag")
        return cls(expression, tuple(tags))

    @classmethod
    def parse_strictly(cls, expression: str | None) -> Self:
        """Read an expression as :meth:`parse` does, but refuse expressions in another language.

        ``a && b``, ``a OR b`` and ``a | b`` are each one tag to a broker, which no message has.

        Raises:
            SubscriptionParseError: a tag contains a blank, ``&&`` or ``|``, or all are empty.
        """
        found = cls.parse(expression)
        for tag in found.tags:
            if _PLAIN_TAG.fullmatch(tag) is None:
                raise SubscriptionParseError(
                    f"tag expression {found.expression[:80]!r}: {tag[:80]!r} contains a blank, && or |; "
                    "write TAG || TAG, or Sql(...) for a condition on properties"
                )
        return found

    def matches_code(self, code: int) -> bool:
        """Whether a consume queue unit may match; other tags can have the same code."""
        return self.codes is None or code in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted."""
        return not self._tag_set or tag in self._tag_set

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and self._tag_set == other._tag_set

    def __hash__(self) -> int:
        return hash(self._tag_set)

    def __repr__(self) -> str:
        return f"TagFilter({self.expression!r})"


class SqlFilter:
    """A parsed SQL expression.

    Attributes:
        expression: as given.
        codes: ``None``: the expression does not choose by the tags of consume queue units.
        size: the number of its parts; the time of :meth:`matches` grows with it and with the length of the properties.
    """

    __slots__ = ("_evaluate", "_short", "expression", "size")

    codes: Final = None

    def __init__(self, expression: str, root: Node) -> None:
        self.expression: Final = expression
        self._evaluate: Final = root.evaluate
        self.size: Final = root.size
        self._short: Final = _SCANNED_BYTES // root.size

    @classmethod
    def parse(cls, expression: str | None) -> Self:
        """Read an expression.

        Raises:
            SubscriptionParseError: it cannot be read; the text names position and reason.
        """
        return cls(expression or "", SqlParser(expression or "").parse())

    def matches(self, properties: bytes) -> bool:
        """Whether the message with these encoded properties is wanted."""
        encoded = PROPERTY_SEPARATOR + properties
        try:
            return self._evaluate(encoded if len(encoded) <= self._short else index(encoded)) is True
        except EvaluationError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlFilter) and self.expression == other.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


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


EVERYTHING: Final = TagFilter.parse(SUBSCRIBE_ALL)


@dataclass(frozen=True, slots=True)
class Tags:
    """A tag expression: ``*`` for every message, or ``TAG || TAG``; a plain ``str`` means the same.

    Raises:
        SubscriptionParseError: it is none; the text says what to write.
    """

    expression: str

    def __post_init__(self) -> None:
        filter_of(self)


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition on the properties of messages, such as ``amount > 100 AND region IN ('eu', 'us')``.

    Brokers evaluate it; Apache's need ``enablePropertyFilter``.  An integer is compared in 32 bits, as in RocketMQ: for
    times in milliseconds write ``ts > 5.0`` or a number that needs 64 bits.

    Raises:
        SubscriptionParseError: it cannot be read; the text names position and reason.
    """

    expression: str

    def __post_init__(self) -> None:
        filter_of(self)


FilterExpression: TypeAlias = str | Tags | Sql
"""What consumers accept."""


def filter_of(expression: FilterExpression) -> MessageFilter:
    """Return the parsed filter.

    Raises:
        SubscriptionParseError: it cannot be read.
    """
    if isinstance(expression, Sql):
        return SqlFilter.parse(expression.expression)
    return TagFilter.parse_strictly(expression.expression if isinstance(expression, Tags) else expression)
