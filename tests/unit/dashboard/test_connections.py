"""Connections of browsers on real sockets: at the limit, and when they are slow."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import pytest
import trio
import trio.testing
from anycorn import Config
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.visitor import wait_until
from triomq.dashboard import app, connections
from triomq.dashboard.connections import Connections

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LIMIT_S = 30
Connect: TypeAlias = Callable[[], Awaitable[trio.SocketStream]]


class Pages:
    """Answers with "done"; requests for ``/held`` when the test says so."""

    def __init__(self) -> None:
        self.released = trio.Event()
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/held":
            self.held += 1
            await self.released.wait()
        if scope["method"] == "POST":
            await app._read_form(Request(scope, receive), 100)
        await PlainTextResponse("done")(scope, receive, send)


@asynccontextmanager
async def serving(pages: Pages, keep_alive_s: float = LIMIT_S) -> AsyncGenerator[Connect, None]:
    """Serve; yields a function that connects."""
    config = Config()
    config.keep_alive_timeout = keep_alive_s
    served = Connections(pages, config)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, served.serve, listeners)
            async with AsyncExitStack() as stack:

                async def connect() -> trio.SocketStream:
                    stream = await trio.testing.open_stream_to_socket_listener(listeners[0])
                    return await stack.enter_async_context(stream)

                yield connect
            nursery.cancel_scope.cancel()


async def ask(stream: trio.SocketStream, request: bytes = GET) -> bytes:
    """Return the answer to a request, once the server has done with it."""
    await stream.send_all(request)
    return await answer(stream)


async def answer(stream: trio.SocketStream) -> bytes:
    found = b""
    while not found.endswith(b"done") and (data := await stream.receive_some()):
        found += data
    await trio.testing.wait_all_tasks_blocked()
    return found


async def test_longest_idle_connection_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    async with serving(Pages()) as connect:
        first, second, third = [await connect() for _ in range(3)]
        for stream in (second, third, first):
            assert (await ask(stream)).startswith(b"HTTP/1.1 200")
        fourth = await connect()
        assert (await ask(fourth)).startswith(b"HTTP/1.1 200")
        assert await second.receive_some() == b""
        for stream in (first, third, fourth):
            assert (await ask(stream)).startswith(b"HTTP/1.1 200")


async def test_connection_is_refused_while_all_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 2)
    pages = Pages()
    async with serving(pages) as connect:
        busy = [await connect() for _ in range(2)]
        for stream in busy:
            await stream.send_all(GET.replace(b"/ ", b"/held "))
        await wait_until(lambda: pages.held == 2)
        refusal = await ask(await connect())
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1\r\n" in refusal
        pages.released.set()
        for stream in busy:
            assert (await answer(stream)).startswith(b"HTTP/1.1 200")
        later = await connect()
        assert (await ask(later)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHost", b"\x16\x03\x01\x00garbage\r\n\r\n"])
async def test_connection_without_a_whole_request_ends(begin: bytes) -> None:
    async with serving(Pages(), keep_alive_s=0.05) as connect:
        stream = await connect()
        await stream.send_all(begin)
        while await stream.receive_some():
            pass


async def test_form_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_FORM_S", 0.05)
    async with serving(Pages()) as connect:
        stream = await connect()
        request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\na=1"
        assert (await ask(stream, request)).startswith(b"HTTP/1.1 200")
        while await stream.receive_some():
            pass
