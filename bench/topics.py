"""Many topics with one message each: what making them costs, their disk space, and the start after a kill.

The sender is a plain socket that keeps a window of sends open; every topic is made by its first message.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Final

import trio

from bench.processes import Server, anonymous_mib, triomq_server, work_folder
from bench.report import print_table, text_of, write_json
from triomq.protocol.codes import RequestCode
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

_WINDOW: Final = 32
_KIB: Final = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--topics", type=int, nargs="+", default=[2000, 20_000], help="(default 2000 20000)")
    parser.add_argument("--folder", type=Path, help="where the stores are made (default: that for temporary files)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure each number of topics; returns the exit code."""
    columns = {}
    for count in options.topics:
        with work_folder(options.folder) as folder:
            columns[f"{count:,} topics"] = _measure(folder, count)
    names = next(iter(columns.values()))
    rows = [[name, *(text_of(found[name]) for found in columns.values())] for name in names]
    print_table("bench topics", ["figure", *columns], rows)
    if options.json:
        write_json(options.json, columns)
    return 0


def _measure(folder: Path, count: int) -> dict[str, float]:
    with triomq_server(folder) as server:
        began = time.perf_counter()
        trio.run(make_topics, server, count)
        figures = {"making them, s": time.perf_counter() - began, "memory after it, MiB": server.anonymous_mib()}
        os.kill(server.pids[0], signal.SIGKILL)
    figures["disk per topic, KiB"] = _allocated_kib(folder) / count
    figures["of it consume queues, KiB"] = _allocated_kib(folder / "consumequeue") / count
    for name, end in (("start after a kill, s", signal.SIGTERM), ("start after a clean end, s", signal.SIGKILL)):
        with triomq_server(folder) as server:
            figures[name] = server.ready_s
            figures["memory after a start, MiB"] = anonymous_mib(server.pids[0])
            began = time.perf_counter()
            os.kill(server.pids[0], end)
        if end == signal.SIGTERM:
            figures["clean end, s"] = time.perf_counter() - began
    return figures


async def make_topics(server: Server, count: int) -> None:
    host, port = server.broker.rsplit(":", 1)
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        splitter = FrameSplitter()
        sent = answered = 0
        while answered < count:
            more = range(sent, min(sent + _WINDOW - (sent - answered), count))
            if more:
                await stream.send_all(b"".join(map(_send_request, more)))
                sent = more.stop
            frames, _ = splitter.split(await stream.receive_some())
            answered += len(frames)


def _send_request(number: int) -> bytes:
    fields = {"a": "P", "b": f"topic-{number}", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1", "h": "0"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, 0, fields, b"hello").encode()


def _allocated_kib(folder: Path) -> float:
    return sum(path.lstat().st_blocks for path in folder.rglob("*")) * 512 / _KIB
