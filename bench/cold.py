"""A consumer that reads old messages from the disk, beside one that reads the newest.

A backlog is stored, the broker restarted and its files dropped from memory.  Then messages are sent at a fixed rate and
timed from end to end, alone and while another process drains the backlog.  "inline" is a broker without the worker
threads.  Where the disk is as fast as memory both are alike; a limit shows what a slow one does
(``blkio.throttle.read_bps_device`` of a cgroup).
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from bench.load import end_to_end, fill, with_topic
from bench.processes import ROOT, Server, triomq_server, work_folder
from bench.report import print_table, write_json
from triomq.client import Admin

_TOPIC: Final = "bench-cold"
_INLINE: Final = """
from triomq.storage.files.file_system import FileSystem
FileSystem.is_resident = lambda *_: True
from triomq.cli import main
main()
"""
"""A broker that assumes every page is in memory, so that its only thread waits for the disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--count", type=int, default=500_000, help="messages of the backlog (default 500000)")
    parser.add_argument("--size", type=int, default=2048, help="bytes of a body (default 2048)")
    parser.add_argument("--queues", type=int, default=8, help="queues of the topics (default 8)")
    parser.add_argument("--rate", type=float, default=500.0, help="new messages per second (default 500)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default 8)")
    parser.add_argument("--folder", type=Path, help="folder for the store (default: a temporary one)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure with worker threads and without; returns the exit code."""
    figures: dict[str, dict[str, Any]] = {}
    with work_folder() as temporary:
        folder = options.folder or temporary
        with triomq_server(folder) as server:
            trio.run(_fill, options, server.namesrv)
        for name, program in (("threads", ("-m", "triomq.cli")), ("inline", ("-c", _INLINE))):
            evicted = _evict(folder)
            with triomq_server(folder, program=program) as server:
                figures[f"{name}, alone"] = _measure(options, server)
                reader = _Reader(server, options.count)
                figures[f"{name}, beside cold reads"] = {**_measure(options, server), **reader.stop(options.size)}
            print(f"{name}: {evicted / 1024**2:.0f} MiB dropped from memory before", file=sys.stderr)
    names = ["p50_ms", "p99_ms", "p999_ms", "max_ms", "cold_mib_per_s"]
    rows = [[name, *(f"{found[key]:,.2f}" if key in found else "" for key in names)] for name, found in figures.items()]
    print_table("bench cold", ["end to end", *names], rows)
    if options.json:
        write_json(options.json, {"bench": "cold", "size": options.size, **figures})
    return 0


async def _fill(options: argparse.Namespace, namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(_TOPIC, queues=options.queues)
    await fill(argparse.Namespace(**{**vars(options), "namesrv": namesrv}), _TOPIC)


def _evict(folder: Path) -> int:
    """Drop the store's files from memory; return their bytes."""
    total = 0
    for path in [*folder.glob("commitlog/*"), *folder.glob("consumequeue/*/*/*")]:
        number = os.open(path, os.O_RDWR)
        try:
            os.fdatasync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            total += os.fstat(number).st_blocks * 512
        finally:
            os.close(number)
    return total


def _measure(options: argparse.Namespace, server: Server) -> dict[str, Any]:
    settings = {**vars(options), "namesrv": server.namesrv, "warmup": 1.0, "size": 128}
    figures: dict[str, Any] = trio.run(partial(with_topic, end_to_end, argparse.Namespace(**settings)))
    return figures


class _Reader:
    """Another process that drains the backlog; a thread counts its output lines."""

    def __init__(self, server: Server, count: int) -> None:
        command = [sys.executable, "-m", "triomq.cli", "consume", _TOPIC, "--namesrv", server.namesrv]
        command += ["--count", str(count), "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        self._messages = 0
        self._first = self._last = 0.0
        self._thread = threading.Thread(target=self._count)
        self._thread.start()

    def _count(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 1024 * 1024):
            self._last = time.perf_counter()
            self._first = self._first or self._last
            self._messages += data.count(b"\n")

    def stop(self, size: int) -> dict[str, float]:
        """End the process; return how fast it read."""
        self._process.terminate()
        self._thread.join(15)
        self._process.wait(15)
        return {"cold_mib_per_s": self._messages * size / 1024**2 / max(self._last - self._first, 1e-9)}
