"""Tag expressions: ``*`` for everything, or tags joined by ``||``.

The broker compares hash codes only, because a consume queue unit holds nothing else; the client compares the text.
Source: FilterAPI.java; behaviour.md A.11, wire.md 5.2.
"""

import re
from typing import Final, Self

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.java import BLANKS, tags_code

SUBSCRIBE_ALL: Final = "*"
MAX_TAGS: Final = 2048  # of one expression, some ms to read; RocketMQ has no limit
MAX_CHARACTERS: Final = 32_768
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
