"""Tag expressions: ``*`` for everything, or tags joined by ``||``.

The broker compares hash codes only, as a consume queue entry has nothing else; the client compares the text again.
Source: FilterAPI.java; behaviour.md A.11, wire.md 5.2.
"""

from typing import Final, Self

from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.java import tags_code

SUBSCRIBE_ALL: Final = "*"
_SEPARATOR: Final = "||"
_BLANKS: Final = "".join(map(chr, range(0x21)))  # what Java's trim() removes


class TagFilter:
    """A parsed tag expression.

    Attributes:
        expression: as it was given; ``*`` if nothing was.
        tags: what is wanted, in the order of the expression; empty = everything.
        codes: the hash codes of ``tags``; ``None`` = everything.
    """

    __slots__ = ("_tag_set", "codes", "expression", "tags")

    def __init__(self, expression: str, tags: tuple[str, ...]) -> None:
        self.expression: Final = expression
        self.tags: Final = tags
        self._tag_set: Final = frozenset(tags)
        self.codes: Final = frozenset(map(tags_code, tags)) if tags else None

    @classmethod
    def parse(cls, expression: str | None) -> Self:
        """Read an expression; ``None``, an empty one and ``*`` mean everything.

        Raises:
            SubscriptionParseError: it has parts, but all of them are empty, as in ``||``.
        """
        if not expression or expression == SUBSCRIBE_ALL:
            return cls(SUBSCRIBE_ALL, ())
        tags = dict.fromkeys(tag for part in expression.split(_SEPARATOR) if (tag := part.strip(_BLANKS)))
        if not tags:
            raise SubscriptionParseError(f"tag expression {expression[:80]!r}: there is no tag in it")
        return cls(expression, tuple(tags))

    def matches_code(self, code: int) -> bool:
        """Tell whether a consume queue entry may match; other tags can have an equal code."""
        return self.codes is None or code in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """Tell whether a message with this tag is wanted."""
        return not self._tag_set or tag in self._tag_set

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and self._tag_set == other._tag_set

    def __hash__(self) -> int:
        return hash(self._tag_set)

    def __repr__(self) -> str:
        return f"TagFilter({self.expression!r})"
