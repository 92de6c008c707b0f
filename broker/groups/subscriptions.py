"""Subscriptions as the broker keeps them: little memory for each, and filters that are parsed once.

Tags and codes beside an expression are not kept, as they follow from it, and equal texts of a group's members are kept
once.  Parsed filters may take a hundred times the memory of their text, so that only some are remembered, for all
groups together.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from sys import getsizeof
from typing import Final, Protocol

from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.errors import SubscriptionParseError
from triomq.protocol.filters.filter_types import SQL92, TAG, MessageFilter, parse_filter

_REMEMBERED_CHARACTERS: Final = 256 * 1024  # each takes up to 180 bytes
_ENTRY_CHARACTERS: Final = 64  # what a short one counts beside its text
_SUBSCRIPTION_BYTES: Final = 192  # of a subscription without its texts
_NO_TAGS: Final[list[str]] = []
_NO_CODES: Final[list[int]] = []


class _Worker(Protocol):
    clock: Callable[[], float]

    def charge(self, work_s: float) -> None: ...


class Filters:
    """Parses the filters of subscriptions, and remembers some: there are clients that send theirs in each pull.

    Args:
        worker: is charged for the time of parsing, which cannot pause.
        max_sql_characters: of an expression.
    """

    def __init__(self, worker: _Worker, max_sql_characters: int) -> None:
        self._worker = worker
        self._max_sql_characters = max_sql_characters
        self._known: dict[tuple[str, str], MessageFilter | SubscriptionParseError] = {}  # the oldest first
        self._room = _REMEMBERED_CHARACTERS

    def parse(self, expression: str | None, expression_type: str | None) -> MessageFilter:
        """Return the filter of a subscription.

        Raises:
            SubscriptionParseError: the expression cannot be read, or is too long for the event loop.
        """
        found = self.find(expression or "", expression_type or TAG)
        if isinstance(found, SubscriptionParseError):
            raise SubscriptionParseError(str(found))  # the remembered one would keep the frames that it passes
        return found

    def find(self, expression: str, expression_type: str) -> MessageFilter | SubscriptionParseError:
        """Return the filter, or why it cannot be read."""
        found = self._known.get((expression, expression_type))
        return self._read(expression, expression_type) if found is None else found

    def _read(self, expression: str, expression_type: str) -> MessageFilter | SubscriptionParseError:
        count, limit = len(expression), self._max_sql_characters
        if expression_type == SQL92 and count > limit:
            return SubscriptionParseError(
                f"SQL expression: {count} characters are too many, the limit is {limit} (max_sql_characters)"
            )
        found: MessageFilter | SubscriptionParseError
        began = self._worker.clock()
        try:
            found = parse_filter(expression, expression_type)
        except SubscriptionParseError as exc:
            found = SubscriptionParseError(str(exc))  # without the frames that it passed
        self._worker.charge(self._worker.clock() - began)
        if (size := _characters(expression, expression_type)) <= _REMEMBERED_CHARACTERS:
            while self._room < size:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._room += _characters(*oldest)
            self._known[expression, expression_type] = found
            self._room -= size
        return found


def _characters(expression: str, expression_type: str) -> int:
    return len(expression) + len(expression_type) + _ENTRY_CHARACTERS


@dataclass(slots=True)
class Subscription:
    """The subscription of a group to a topic."""

    data: SubscriptionData
    _filters: Filters

    @property
    def message_filter(self) -> MessageFilter | SubscriptionParseError:
        """The filter, or why it cannot be read; parsed when first needed, as a heartbeat may carry many."""
        return self._filters.find(self.data.sub_string, self.data.expression_type)


def newest(
    sent: Iterable[SubscriptionData], own: Iterable[SubscriptionData], group: dict[str, Subscription]
) -> list[SubscriptionData]:
    """Return the subscriptions of a member after a heartbeat, one for each topic.

    Args:
        sent: those of the heartbeat; an older one than the member's own, or of the same version, changes nothing.
        own: the member's, so far.
        group: of all members by topic; texts that are equal to the group's become the same objects.
    """
    former = {data.topic: data for data in own}
    wanted: dict[str, SubscriptionData] = {}
    for data in sent:
        known = wanted.get(data.topic) or former.get(data.topic)
        if known is None or data.sub_version > known.sub_version:
            known = _shared(data, group.get(data.topic))
        wanted[known.topic] = known
    return list(wanted.values())


def _shared(data: SubscriptionData, other: Subscription | None) -> SubscriptionData:
    data.tags_set, data.code_set = _NO_TAGS, _NO_CODES
    if other is None:
        return data
    if data == other.data:
        return other.data
    data.topic = other.data.topic
    if data.sub_string == other.data.sub_string:
        data.sub_string = other.data.sub_string
    return data


def size_bytes(data: SubscriptionData) -> int:
    """Return about how much memory a subscription takes; texts that members share count for each of them."""
    return _SUBSCRIPTION_BYTES + sum(map(getsizeof, (data.topic, data.sub_string, data.expression_type)))
