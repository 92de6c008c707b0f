"""A browser without a socket for tests of the dashboard: signed in, it calls the application itself."""

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any, Final

import httpx
import trio

from triomq.client import ClientConfig
from triomq.client.nursery import open_service_nursery
from triomq.client.sync import LitePullConsumer
from triomq.dashboard.app import Application
from triomq.dashboard.security import Gate
from triomq.dashboard.settings import Settings
from triomq.dashboard.watched import Accounts, Watched

BASE: Final = "http://127.0.0.1:8233"


class Visitor:
    """Requests of a browser; cookies are kept.

    Attributes:
        application: the dashboard.
        http: for requests as they are.
    """

    def __init__(self, application: Application, http: httpx.AsyncClient) -> None:
        self.application = application
        self.http = http

    async def get(self, path: str, status: int = 200, **query: str) -> str:
        """Return a page, checked for well-formed HTML; one that a busy machine has not made in time is asked again."""
        response = await self.http.get(f"/{path}", params=query or None)
        with trio.fail_after(60):
            while response.status_code == 504 != status:
                response = await self.http.get(f"/{path}", params=query or None)
        assert response.status_code == status, response.text
        check_html(response.text)
        return response.text

    async def fragment(self, path: str, **query: str) -> str:
        """Return the part of a page that polls."""
        headers = {"hx-request": "true"}
        response = await self.http.get(f"/{path}", params=query or None, headers=headers)
        with trio.fail_after(60):
            while response.status_code == 504:
                response = await self.http.get(f"/{path}", params=query or None, headers=headers)
        assert response.status_code == 200, response.text
        return response.text

    async def post(self, path: str, **form: str) -> httpx.Response:
        """Send a form with the token of the session; the answer of a change that was done is a redirect."""
        return await self.http.post(f"/{path}", data={"form_token": await self.form_token(), **form})

    async def form_token(self) -> str:
        """Return the token that forms of this session have."""
        found = re.search(r'name="form_token" value="([^"]+)"', await self.get("account"))
        assert found is not None
        return found[1]


@asynccontextmanager
async def open_visitor(namesrv: str, *, signs_in: bool = True, **changes: Any) -> AsyncGenerator[Visitor, None]:
    """Open a dashboard for a cluster, and a browser that is signed in; ``changes`` are of ``Settings``."""
    settings = Settings(**{"namesrv": namesrv, "client": ClientConfig(connect=False), "answer_s": 20.0, **changes})
    gate, own = Gate(settings), Watched(settings)
    async with open_service_nursery() as nursery:
        accounts = Accounts(settings, nursery)
        application = Application(settings, gate, own, accounts)
        await nursery.start(own.run)
        transport = httpx.ASGITransport(application.asgi)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
            visitor = Visitor(application, http)
            if signs_in:
                assert (await http.get("/", params={"token": gate.token})).status_code == 200
                with trio.fail_after(30):
                    await own.sampler.sampled.wait()
            yield visitor


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # others set no event
            await trio.sleep(0.05)


async def until_shown(visitor: Visitor, path: str, text: str) -> str:
    """Return a page once it shows a text."""
    with trio.fail_after(30):
        while text not in (page := await visitor.get(path)):  # noqa: ASYNC110  # as a browser does
            await trio.sleep(0.1)
    return page


_VOID: Final = frozenset(("meta", "link", "input", "br", "hr", "img", "wbr"))


def text_of(page: str) -> str:
    """Return the text of a page without tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def consume(namesrv: str, topic: str, count: int, group: str = "billing") -> None:
    """Consume the next messages of a topic as a group, and commit."""
    with LitePullConsumer(group, namesrv=namesrv, start="earliest") as consumer:
        consumer.subscribe(topic)
        found = 0
        while found < count:
            found += len(consumer.poll())
        consumer.commit()


class _Checker(HTMLParser):
    """Checks that elements are closed in order, ids are unique, and nothing is inline that the policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert len(values) == len(attrs), f"repeated attribute in {self.get_starttag_text()}"
        assert "style" not in values, self.get_starttag_text()
        assert not any(name.startswith("on") for name in values), self.get_starttag_text()
        assert tag != "script" or "src" in values, self.get_starttag_text()
        if (found := values.get("id")) is not None:
            assert found not in self.ids, f"id {found!r} twice"
            self.ids.add(found)
        for name in ("href", "src", "action", "hx-get"):
            if (link := values.get(name)) is not None:
                assert not link.startswith(("/", "http:", "https:", "javascript:")), f"{link} is not relative"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def check_html(text: str) -> None:
    """Check a page: well-formed, unique ids, relative links only, nothing inline."""
    checker = _Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open, f"not closed: {checker.open}"
