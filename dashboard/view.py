"""What a page gets and returns: rows of pages and changes, and the view of one visitor.

A page is a row: its handler returns the values of its template.  A change is a row too; it comes by POST, is refused
when the dashboard is read-only, and runs only after the visitor has typed the name that it asks for.
"""

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from triomq.client import Admin
from triomq.client.admin.sampler import Sampler
from triomq.client.nursery import in_parallel
from triomq.dashboard.security import Session
from triomq.dashboard.settings import Settings
from triomq.dashboard.watched import Accounts, Watched
from triomq.protocol.errors import NameServerError, TriomqError

_A = TypeVar("_A")
_B = TypeVar("_B")

PAGE_SIZE: Final = 100
#: How long a page may take; then it says which brokers are silent.
PAGE_LIMIT_S: Final = 2.0
#: How long a change may take.
CHANGE_LIMIT_S: Final = 60.0
_FORM_BYTES: Final = 64 * 1024


class NotFoundError(TriomqError):
    """There is no such page, topic, group or message."""


class BadRequestError(TriomqError):
    """The address or the form lacks something, or has an impossible value."""


class NoRightError(TriomqError):
    """The brokers refuse the account, or want one."""


_MARKS_OF_ACCOUNTS: Final = ("AclException", "accessKey", "access key", "signature", "Authentication", "permission")


def is_about_account(text: str) -> bool:
    """Whether the text of a broker's refusal is about an account or its rights."""
    return any(mark in text for mark in _MARKS_OF_ACCOUNTS)


class Done(NamedTuple):
    """A change that is done: what to say, and the page to show next (:func:`to`)."""

    message: str
    link: str


@dataclass(slots=True, kw_only=True)
class View:
    """One request of a visitor.

    Attributes:
        session: of the browser.
        watched: the cluster, as the visitor's account or the dashboard's own sees it.
        accounts: opens the view of an account.
        settings: of the dashboard.
        query: of the address.
        form: of a change.
        commands: the command lines that do the same.
    """

    session: Session
    watched: Watched
    accounts: Accounts
    settings: Settings
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    @property
    def admin(self) -> Admin:
        """The administration of the cluster, with the account of the visitor."""
        return self.watched.admin

    @property
    def sampled(self) -> Sampler:
        """Rates, findings and backlog, as remembered."""
        return self.watched.sampler

    @property
    def page_number(self) -> int:
        """The page of a long list, from 1 on."""
        return self.number("page")

    def number(self, name: str) -> int:
        """Return a whole number of the address, from 1 on; 1 for other text."""
        text = self.query.get(name, "")
        return max(1, int(text)) if text.isdecimal() and len(text) < 9 else 1  # digits

    def required(self, name: str) -> str:
        """Return a value of the form or of the address.

        Raises:
            BadRequestError: it is missing.
        """
        value = self.form.get(name) or self.query.get(name)
        if not value:
            raise BadRequestError(f"{name} is missing")
        return value

    @property
    def is_limited(self) -> bool:
        """Whether the account is accepted by a broker that reports its counters to administrators alone."""
        if self.session.account is None and self.settings.client.credentials is None:
            return False  # Apache's brokers report none in their first seconds
        answers = [sample.answer for sample in self.sampled.brokers.values()]
        return any(each.reached_at is not None and not each.runtime for each in answers)

    def check_brokers(self) -> None:
        """Check that a name server knows brokers, and that one accepts the account; silent ones are another matter.

        Raises:
            NameServerError: no name server answers, or it knows no broker.
            NoRightError: all refuse it.
        """
        if self.sampled.error is not None:
            raise NameServerError(self.sampled.error)
        brokers = [sample.answer for sample in self.sampled.brokers.values()]
        if brokers and all(each.reached_at is None and is_about_account(each.error or "") for each in brokers):
            raise NoRightError(f"broker {brokers[0].name}: {brokers[0].error}")

    def command(self, *words: str) -> None:
        """Show a command line of ``triomq``; the options of the connection are added."""
        self.commands.append(shlex.join(("triomq", *words, *self.settings.options)))


class Page(NamedTuple):
    """A page.

    Attributes:
        path: one word, without slashes; names are in the query.
        title: its heading, unless the handler returns another ``title``.
        handler: returns the values of the template.
        template: in ``templates/``; it extends ``base.html``.
        nav: how the navigation calls it; "": it is not there.
        polls_s: how often the browser asks for the block ``live`` again; 0: never.
        limit_s: how long it may take.
    """

    path: str
    title: str
    handler: Callable[[View], Awaitable[Mapping[str, Any]]]
    template: str
    nav: str = ""
    polls_s: int = 0
    limit_s: float = PAGE_LIMIT_S


class Change(NamedTuple):
    """A change, by POST.

    Attributes:
        path: one word, as that of a page.
        title: heading of the page that asks for the name or shows the plan.
        handler: does it.
        asks_for: field of the form that has the name that the visitor types again; "": none, nothing is destroyed.
        plan: returns values for the template before the name was typed, as those of a dry run.
        template: shown until the name was typed; it extends ``confirm.html``.
        form_bytes: how long the form may be.
        is_safe: changes only the session, so that a read-only dashboard has it too.
    """

    path: str
    title: str
    handler: Callable[[View], Awaitable[Done]]
    asks_for: str = ""
    plan: Callable[[View], Awaitable[Mapping[str, Any]]] | None = None
    template: str = "confirm.html"
    form_bytes: int = _FORM_BYTES
    is_safe: bool = False


async def both(first: Callable[[], Awaitable[_A]], second: Callable[[], Awaitable[_B]]) -> tuple[_A, _B]:
    """Ask for two answers at once."""
    questions: tuple[Callable[[], Awaitable[Any]], ...] = (first, second)
    one, other = await in_parallel(lambda ask: ask(), questions)
    return one, other


class Slice(NamedTuple):
    """One page of a long list.

    Attributes:
        number: from 1 on.
        pages: how many there are, at least one.
        total: entries of the whole list.
        rows: those of this page.
    """

    number: int
    pages: int
    total: int
    rows: list[Any]


def slice_of(rows: list[Any], number: int, size: int = PAGE_SIZE) -> Slice:
    """Return one page of a list; one beyond the end is the last."""
    pages = max(1, -(-len(rows) // size))
    number = min(number, pages)
    return Slice(number, pages, len(rows), rows[(number - 1) * size : number * size])
