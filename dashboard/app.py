"""The application: from requests to pages and changes.  Security, errors and limits are here, in one place."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import trio
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triomq.dashboard import problems
from triomq.dashboard.formats import to
from triomq.dashboard.pages import CHANGES, PAGES
from triomq.dashboard.problems import Problem, TooSlowError, problem_of
from triomq.dashboard.rendering import Renderer
from triomq.dashboard.security import HEADERS, Gate, Session, is_form_token
from triomq.dashboard.settings import Settings
from triomq.dashboard.view import CHANGE_LIMIT_S, Change, Page, View
from triomq.dashboard.watched import Accounts, Watched

LOGGER: Final = logging.getLogger("triomq.dashboard.app")

#: Requests that are worked on at one time; the others wait.
_AT_ONCE: Final = 32
_MAX_FIELDS: Final = 1000
_PART_BYTES: Final = 64 * 1024
_YEAR: Final = "public, max-age=31536000, immutable"
_SIGN_IN_BYTES: Final = 4096
#: After a wrong password the answer waits, and few can wait at one time, so that passwords cannot be tried quickly.
_WRONG_S: Final = 1.0
_TRIES: Final = 5
_MORE_S: Final = 0.5
#: A form has to be there within this time; one that is late is refused as one without fields.
_FORM_S: Final = 30.0

Handler = Callable[[Request], Awaitable[Response]]


class TooLongError(Exception):
    """A form is longer than it may be."""


class Application:
    """Answers requests of browsers.

    Attributes:
        gate: who may see it.
        own: the cluster as the dashboard's own account sees it.
        accounts: the cluster as visitors see it.
        renderer: makes the pages.
        asgi: the application for a server.
    """

    def __init__(
        self, settings: Settings, gate: Gate, own: Watched, accounts: Accounts, *, cookie: str = "triomq_dashboard"
    ) -> None:
        """Make it; ``cookie`` is the name of the cookie, another one for each dashboard of a machine."""
        self.gate = gate
        self.own = own
        self.accounts = accounts
        self.settings = settings
        self._cookie = cookie
        self.renderer = Renderer(frozenset(page.path for page in PAGES))
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._tries = trio.CapacityLimiter(_TRIES)
        routes = [Route("/static/{name}", self._static, methods=["GET"])]
        routes += [Route("/sign-in", self._sign_in, methods=["POST"])]
        routes += [Route("/sign-out", self._behind_gate(self._sign_out), methods=["POST"])]
        rows = [(page.path, partial(self._page, page), "GET") for page in PAGES]
        rows += [(change.path, partial(self._change, change), "POST") for change in CHANGES]
        routes += [Route(f"/{path}", self._behind_gate(work), methods=[method]) for path, work, method in rows]
        found = Starlette(routes=routes, exception_handlers={404: self._no_page, 405: self._no_page})
        found.router.redirect_slashes = False
        self.asgi: ASGIApp = _with_headers(found)

    # --- who ----------------------------------------------------------------------------------------------------

    def _behind_gate(self, work: Callable[[Request, Session], Awaitable[Response]]) -> Handler:
        async def handle(request: Request) -> Response:
            if not self.gate.is_host_known(request.headers.get("host", "")):
                return self._unknown_host(request)
            session = self.gate.session(request.cookies.get(self._cookie, ""))
            token = request.query_params.get("token")
            if token is not None and request.method == "GET":
                return self._enter(token, session)
            if session is None:
                return self._signed_out(request)
            async with self._limiter:
                try:
                    return await work(request, session)
                except TooLongError:
                    return self._problem_page(problems.TOO_LONG, session)
                except Exception:  # boundary: a defect has a page too
                    LOGGER.exception("page failed path=%s", request.url.path)
                    return self._problem_page(problems.DEFECT, session)

        return handle

    def _enter(self, token: str, session: Session | None) -> Response:
        """Open a session for the one-time token; a browser that has one keeps it, whatever the token is.

        The answer is a page that leads to the overview, not a redirect: after a click in another site, such as a
        terminal in the browser, the cookie would not be sent with a redirect.
        """
        if not self.gate.accepts_token(token) and session is None:
            return self._signed_out(None)
        response = HTMLResponse(self.renderer.page("enter.html", {}))
        return response if session is not None else self._with_session(response)

    def _with_session(self, response: Response, origin: str = "") -> Response:
        secure = self.settings.cert is not None or origin.startswith("https:")  # that of a proxy
        response.set_cookie(
            self._cookie, self.gate.open_session(), path=None, secure=secure, httponly=True, samesite="strict"
        )
        return response

    def _signed_out(self, request: Request | None, *, is_wrong: bool = False) -> Response:
        has_password = self.settings.password is not None
        if request is not None and "hx-request" in request.headers:
            return Response(status_code=401, headers={"hx-refresh": "true"})
        text = self.renderer.page("sign_in.html", {"has_password": has_password, "is_wrong": is_wrong})
        return HTMLResponse(text, status_code=401)

    def _unknown_host(self, request: Request) -> Response:
        host = request.headers.get("host", "")
        problem = Problem(
            403,
            "The dashboard is not known by this name",
            f"Your browser calls it {host!r}. Without a password it answers only to IP addresses, localhost and the "
            "host of --listen, because a page of another site could give its own name this address.",
            "Use the address that triomq dashboard printed; behind a proxy start it with --password-file.",
        )
        return self._problem_page(problem, None)

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await _read_form(request, _SIGN_IN_BYTES)
        except TooLongError:
            return self._signed_out(request, is_wrong=True)
        async with self._tries:
            if not _is_same_site(request) or not self.gate.accepts_password(form.get("password", "")):
                await trio.sleep(_WRONG_S)
                return self._signed_out(request, is_wrong=True)
        return self._with_session(RedirectResponse(to(""), status_code=303), request.headers.get("origin", ""))

    async def _sign_out(self, request: Request, session: Session) -> Response:
        form = await _read_form(request, _SIGN_IN_BYTES)
        if not is_form_token(session, form.get("form_token", "")):
            return self._problem_page(problems.OLD_FORM, session)
        self.gate.close_session(request.cookies.get(self._cookie, ""))
        response = RedirectResponse(to(""), status_code=303)
        response.set_cookie(self._cookie, "", max_age=0, path=None, httponly=True, samesite="strict")
        return response

    # --- pages and changes --------------------------------------------------------------------------------------

    def _view(self, request: Request, session: Session, form: Mapping[str, str] | None = None) -> View:
        if session.watched is not None and session.watched.is_stopped:
            session.watched = session.account = None
            session.message = "The account was signed out, because it was not used for half an hour."
        watched = session.watched or self.own
        watched.sampler.look()
        return View(
            session=session,
            watched=watched,
            accounts=self.accounts,
            settings=self.settings,
            query=dict(request.query_params),
            form=form or {},
        )

    async def _page(self, page: Page, request: Request, session: Session) -> Response:
        view = self._view(request, session)
        limit_s = max(page.limit_s, self.settings.answer_s + _MORE_S)
        values = await self._values(view, page.handler, limit_s)
        if isinstance(values, Problem):
            return self._problem_page(values, session, request)
        here = to(page.path, **view.query)
        values = self._common(session) | {"view": view, "title": page.title, "page": page, "here": here} | dict(values)
        if "hx-request" in request.headers:
            return HTMLResponse(self.renderer.block(page.template, values))
        values["message"], session.message = session.message, None
        return HTMLResponse(self.renderer.page(page.template, values))

    async def _change(self, change: Change, request: Request, session: Session) -> Response:
        form = await _read_form(request, change.form_bytes)
        if not _is_same_site(request) or not is_form_token(session, form.get("form_token", "")):
            return self._problem_page(problems.OLD_FORM, session)
        if self.settings.read_only and not change.is_safe:
            return self._problem_page(problems.READ_ONLY, session)
        view = self._view(request, session, form)
        if change.asks_for and not _is_confirmed(change, form):
            return await self._plan(change, view)
        done = await self._values(view, change.handler, CHANGE_LIMIT_S)
        if isinstance(done, Problem):
            return self._problem_page(done, session)
        session.message = done.message
        return RedirectResponse(done.link, status_code=303)

    async def _plan(self, change: Change, view: View) -> Response:
        """Return the page that asks for the name, with the plan of the change."""
        values: dict[str, Any] = {}
        if change.plan is not None:
            found = await self._values(view, change.plan, CHANGE_LIMIT_S)
            if isinstance(found, Problem):
                return self._problem_page(found, view.session)
            values |= found
        kept = {name: value for name, value in view.form.items() if name not in ("form_token", "typed_name")}
        wanted = view.form.get(change.asks_for, "")
        is_wrong = bool(view.form.get("typed_name"))
        common = self._common(view.session) | {"view": view, "title": change.title, "page": None, "message": None}
        common |= {"change": change, "kept": kept, "wanted": wanted, "is_wrong": is_wrong}
        return HTMLResponse(self.renderer.page(change.template, common | values))

    async def _values(self, view: View, handler: Callable[[View], Awaitable[Any]], limit_s: float) -> Any:
        """Return the result of a handler, or its problem."""
        silent = view.sampled.silent
        try:
            with trio.fail_after(limit_s):
                return await handler(view)
        except trio.TooSlowError:
            problem = problem_of(TooSlowError(f"the page was not there after {limit_s:g} s"), silent)
        except Exception as exc:  # boundary: a defect has a page too
            problem = problem_of(exc, silent)
            if problem is None:
                LOGGER.exception("page failed handler=%s", handler.__name__)
        return problem or problems.DEFECT

    def _common(self, session: Session | None) -> dict[str, Any]:
        return {
            "nav": [page for page in PAGES if page.nav],
            "page": None,
            "session": session,
            "settings": self.settings,
            "message": None,
            "view": None,
        }

    def _problem_page(self, problem: Problem, session: Session | None, request: Request | None = None) -> Response:
        values = self._common(session) | {"title": problem.title, "problem": problem}
        if request is not None and "hx-request" in request.headers:
            return HTMLResponse(self.renderer.block("problem.html", values), status_code=problem.status)
        return HTMLResponse(self.renderer.page("problem.html", values), status_code=problem.status)

    async def _no_page(self, request: Request, _error: Exception) -> Response:
        session = self.gate.session(request.cookies.get(self._cookie, ""))
        return self._problem_page(problems.NO_PAGE, session)

    async def _static(self, request: Request) -> Response:
        file = self.renderer.static.get(request.path_params["name"])
        if file is None:
            return Response(status_code=404)
        cache = _YEAR if request.query_params.get("v") == file.version else "no-cache"
        return Response(file.content, media_type=file.media_type, headers={"cache-control": cache})


def _is_confirmed(change: Change, form: Mapping[str, str]) -> bool:
    wanted = form.get(change.asks_for, "")
    return bool(wanted) and form.get("typed_name") == wanted


def _is_same_site(request: Request) -> bool:
    """Whether the browser says that a form is from this site; old browsers say nothing."""
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


async def _read_form(request: Request, limit_bytes: int) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        TooLongError: it is longer than the limit, or has too many fields.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise TooLongError
    body = bytearray()
    try:
        with trio.fail_after(_FORM_S):
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > limit_bytes:
                        raise TooLongError
    except (ClientDisconnect, trio.TooSlowError):
        return {}
    pairs = body.split(b"&", _MAX_FIELDS)
    if len(pairs) > _MAX_FIELDS:
        raise TooLongError
    words = [pair.partition(b"=") for pair in pairs if pair]
    return {await _decoded(name): await _decoded(value) for name, _, value in words}


async def _decoded(text: bytearray) -> str:
    """Decode a word of a form in parts: one of 4 MiB at once would take a second, and a GiB of memory."""
    text, found, begin = text.replace(b"+", b" "), bytearray(), 0
    while begin < len(text):
        end = begin + _PART_BYTES
        if (escape := text.rfind(b"%", end - 2, end)) > begin:  # which is not cut
            end = escape
        found += unquote_to_bytes(bytes(text[begin:end]))
        begin = end
        await trio.lowlevel.checkpoint()
    return found.decode(errors="replace")


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Add the headers of security to each answer."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await app(scope, receive, send_with_headers)

    return call
