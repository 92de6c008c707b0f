"""What a dashboard costs: time of each page, requests that an idle broker gets from it, and memory.

The broker has many topics, and some groups.  Each page is first asked for in a dashboard without visitors so far, and
then again and again.  A relay in front of the broker counts the requests.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Final, NamedTuple

import httpx
import trio

from bench.processes import ROOT, free_port, resident_mib, triomq_server, work_folder
from bench.report import print_table, text_of, write_json
from bench.topics import make_topics
from triomq.client import Admin
from triomq.protocol.wire.frame import FrameSplitter

_GROUPS: Final = 20
_LOOKS: Final = 10
_SETTLED_S: Final = 2.0  # until then the dashboard prepares itself, and a visitor has not opened its address yet
_QUEUE: Final = "topic=topic-0&queue=broker-a:0&offset=0"
_PAGES: Final = (
    *("", "topics", "topic?name=topic-0", "messages?name=topic-0", f"message?{_QUEUE}", "tail?name=topic-0"),
    *("send?name=topic-0", "groups", "group?name=group-0", "dead-letters", "dead-letters?name=group-0", "delayed"),
    *("transactions", "brokers", "broker?name=broker-a", "accounts", "account"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--topics", type=int, default=5000, help="(default 5000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="idle seconds that are measured (default 30)")
    parser.add_argument("--connections", type=int, default=1000, help="idle connections (default 1000)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure all pages, then idleness; returns the exit code."""
    port = free_port()
    settings = ("--advertise", f"127.0.0.1:{port}", "--log-level", "warning")
    with work_folder() as folder, triomq_server(folder, *settings) as server:
        trio.run(make_topics, server, options.topics)
        figures = trio.run(_measure, options, server.namesrv, server.broker, port)
    rows = [[f"/{page}", *map(text_of, times)] for page, times in figures["pages_ms"].items()]
    print_table("bench dashboard", ["page", "first look, ms", "median, ms"], rows)
    print_table("", ["figure", "value"], [[name, text_of(value)] for name, value in figures["idle"].items()])
    if options.json:
        write_json(options.json, figures)
    return 0


class _Dashboard(NamedTuple):
    """A dashboard that serves, and a browser that is signed in."""

    process: trio.Process
    browser: httpx.AsyncClient

    def resident_mib(self) -> float:
        return resident_mib(self.process.pid)


@asynccontextmanager
async def _dashboard(namesrv: str) -> AsyncGenerator[_Dashboard, None]:
    command = [sys.executable, "-m", "triomq.cli", "dashboard", "--listen", "127.0.0.1:0", "--namesrv", namesrv]
    command += ["--json", "--log-level", "warning"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        link = httpx.URL(json.loads(await process.stdout.receive_some())["dashboard"])
        async with httpx.AsyncClient(base_url=link.copy_with(query=None), timeout=30) as browser:
            await browser.get(link)
            await trio.sleep(_SETTLED_S)
            yield _Dashboard(process, browser)
    finally:
        process.terminate()
        await process.wait()


async def _measure(options: argparse.Namespace, namesrv: str, broker: str, port: int) -> dict[str, Any]:
    requests = count()
    async with trio.open_nursery() as nursery:
        relay = partial(_relay, int(broker.rpartition(":")[2]), requests)
        await nursery.start(partial(trio.serve_tcp, relay, port, host="127.0.0.1"))
        await _make_groups(namesrv)
        pages = {}
        for page in _PAGES:
            async with _dashboard(namesrv) as dashboard:
                pages[page] = await _look(dashboard, page)
        async with _dashboard(namesrv) as dashboard:
            idle = {"memory at the start, MiB": dashboard.resident_mib()}
            before = next(requests)
            await trio.sleep(options.seconds)
            idle["requests/s while idle"] = (next(requests) - before - 1) / options.seconds
            for page in _PAGES:
                await _look(dashboard, page)
            idle["memory after all pages, MiB"] = dashboard.resident_mib()
            async with _connections(dashboard, options.connections):
                idle[f"memory with {options.connections} idle connections, MiB"] = dashboard.resident_mib()
        nursery.cancel_scope.cancel()
    return {"pages_ms": pages, "idle": idle}


async def _make_groups(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        for number in range(_GROUPS):
            await admin.reset_offsets(f"group-{number}", f"topic-{number}", "earliest")


async def _look(dashboard: _Dashboard, page: str) -> tuple[float, float]:
    """Return the time of the first look at a page, and the median of further ones, in ms."""
    times_ms = []
    for _ in range(1 + _LOOKS):
        began = time.perf_counter()
        (await dashboard.browser.get(page)).raise_for_status()
        times_ms.append((time.perf_counter() - began) * 1000)
    return times_ms[0], median(times_ms[1:])


@asynccontextmanager
async def _connections(dashboard: _Dashboard, number: int) -> AsyncGenerator[None, None]:
    address = dashboard.browser.base_url
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=10))
        await trio.sleep(_SETTLED_S)
        yield


async def _relay(port: int, requests: "count[int]", client: trio.SocketStream) -> None:
    """Connect a client with the broker, and count its requests."""

    async def answer() -> None:
        async for data in server:
            await client.send_all(data)

    splitter = FrameSplitter()
    try:
        async with client, await trio.open_tcp_stream("127.0.0.1", port) as server, trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            async for data in client:
                for _ in splitter.split(data)[0]:
                    next(requests)
                await server.send_all(data)
            nursery.cancel_scope.cancel()
    except* trio.BrokenResourceError:  # the dashboard was stopped
        pass
