"""What users write to choose messages: ``"a || b"``, ``Tags("a || b")`` or ``Sql("amount > 100")``."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from triomq.protocol.filters.filter_types import MessageFilter
from triomq.protocol.filters.sql_filter import SqlFilter
from triomq.protocol.filters.tags import SUBSCRIBE_ALL, TagFilter

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
