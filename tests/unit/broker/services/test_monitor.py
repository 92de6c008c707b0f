"""The HTTP server for metrics answers GET and HEAD, and no peer can block it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triomq.broker.addresses import Address
from triomq.broker.network.listeners import listen
from triomq.broker.services.monitor import MAX_CONNECTIONS, MAX_REQUEST_BYTES, TIME_LIMIT_S, HttpServer, Reply

GET = b"GET /path?query HTTP/1.1\r\nHost: h\r\n\r\n"


async def answer(path: str) -> Reply:
    if path == "/broken":
        raise ValueError("broken")
    return Reply(HTTPStatus.OK, f"this is {path}".encode())


@asynccontextmanager
async def serving() -> AsyncGenerator[int]:
    """Serve until the block is left; yields the port."""
    listener = listen(Address("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(answer).run, listener)
        yield port
        nursery.cancel_scope.cancel()


async def receive_all(stream: trio.SocketStream) -> bytes:
    received = b""
    try:
        async for data in stream:
            received += data
    except trio.BrokenResourceError:  # it was closed before all was read
        pass
    return received


async def ask(request: bytes) -> bytes:
    async with serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        return await receive_all(stream)


async def test_get_is_answered_then_connection_ends() -> None:
    head, _, body = (await ask(GET)).partition(b"\r\n\r\n")
    assert head.splitlines() == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; charset=utf-8",
        b"Content-Length: 13",
        b"Connection: close",
    ]
    assert body == b"this is /path"


async def test_head_request_gets_only_header_fields() -> None:
    whole = await ask(GET)
    assert await ask(GET.replace(b"GET", b"HEAD")) == whole.removesuffix(b"this is /path")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST / HTTP/1.1", 405),
        (b"DELETE / HTTP/1.0", 405),
        (b"GET http://elsewhere/ HTTP/1.1", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 400),
        (b"GET / HTTP/2.0", 400),
        (b"get / HTTP/1.1", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"", 400),
        (b"GET /" + b"a" * MAX_REQUEST_BYTES + b" HTTP/1.1", 431),
        (b"GET /broken HTTP/1.1", 500),
    ],
)
async def test_other_requests_are_refused(request_line: bytes, status: int) -> None:
    assert (await ask(request_line + b"\r\n\r\n")).startswith(b"HTTP/1.1 %d " % status)


async def test_request_sent_byte_by_byte_is_answered() -> None:
    async with serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for byte in GET:
            await stream.send_all(bytes((byte,)))
        assert (await receive_all(stream)).endswith(b"this is /path")


async def test_peer_without_request_is_disconnected(autojump_clock: MockClock) -> None:
    async with serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(GET[:-1])
        began = trio.current_time()
        assert await receive_all(stream) == b""
        assert trio.current_time() - began == pytest.approx(TIME_LIMIT_S, abs=0.1)


async def test_idle_peers_exclude_no_other_peer() -> None:
    async with serving() as port:
        idle = []
        for _ in range(2 * MAX_CONNECTIONS):
            idle.append(await trio.open_tcp_stream("127.0.0.1", port))
            await wait_all_tasks_blocked()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(GET)
            assert (await receive_all(stream)).endswith(b"this is /path")
        assert await receive_all(idle[0]) == b""  # the oldest went first
        for each in idle:
            await each.aclose()


async def test_peer_that_leaves_early_changes_nothing() -> None:
    async with serving() as port:
        for request in (b"", GET[:5], GET):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(request)
            await stream.aclose()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(GET)
            assert (await receive_all(stream)).endswith(b"this is /path")
