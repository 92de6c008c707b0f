"""The pages and changes, a module for each family; a new family is one line here."""

from typing import Final

from triomq.dashboard.pages import (
    account,
    accounts,
    brokers,
    dead_letters,
    delayed,
    group,
    groups,
    message,
    messages,
    overview,
    send,
    tail,
    topic,
    topics,
)
from triomq.dashboard.view import Change, Page

_FAMILIES: Final = (
    overview,
    topics,
    topic,
    groups,
    group,
    messages,
    message,
    send,
    tail,
    dead_letters,
    delayed,
    brokers,
    accounts,
    account,
)

#: All pages, in the order of the navigation.
PAGES: Final[tuple[Page, ...]] = tuple(page for family in _FAMILIES for page in family.PAGES)
CHANGES: Final[tuple[Change, ...]] = tuple(change for family in _FAMILIES for change in getattr(family, "CHANGES", ()))
