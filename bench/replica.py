"""A pair of master and slave: sends, the lag of the slave, and how fast a slave that was away catches up.

The load is that of ``sync``.  The lag is how long the slave takes to hold what the master's log held at some moment.
All processes share the machine, so the CPU of master and slave for each message says most.  With ``--apache`` a pair of
Apache's brokers is measured in turns with ours.
"""

import argparse
import contextlib
import json
import mmap
import os
import signal
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import trio

from bench.processes import KIT, cpu_s, triomq_server, work_folder
from bench.report import percentile, print_table, write_json
from bench.sync import Senders, make_topic

_SENDERS: Final = {"async": (4,), "sync": (1, 64)}  # by the role of the master
_LOG_FILE_BYTES: Final = 64 * 1024**2  # of the pairs of the kit
_WARM_UP_S, _SAMPLE_S, _PROBE_S, _LIMIT_S = 3.0, 0.002, 0.005, 60.0
_MISSED_BYTES, _MISSED_BODY = 1_000_000_000, 16 * 1024
_START: Final = Struct(">iI")  # of a record: size and magic number
_MAGIC: Final = (0xDAA320A7, 0xCBD43194)  # a message; the end of a file

Figures: TypeAlias = dict[str, float]


class _Pair(NamedTuple):
    """A master that runs, and how to run its slave for a time; that yields its process id."""

    namesrv: str
    master: int
    slave: Callable[[], AbstractContextManager[int]]
    stores: tuple[Path, Path]


class _LogEnd:
    """Where the commit log of a store ends, seen from outside."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "commitlog"
        self._map: mmap.mmap | None = None
        self._start = self._at = 0

    def now(self) -> int:
        while True:
            if self._map is None:
                self._start = self._start or int(min((path.name for path in self._folder.glob("0*")), default="0"))
                path = self._folder / f"{self._start:020d}"
                if not path.exists() or path.stat().st_size < _LOG_FILE_BYTES:
                    break
                with path.open("rb") as file:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            size, magic = _START.unpack_from(self._map, self._at)
            if magic not in _MAGIC:
                break
            self._at += size
            if self._at == len(self._map):
                self._start, self._at, self._map = self._start + self._at, 0, None
        return self._start + self._at

    def wait(self, end: int) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while self.now() < end:
            if time.monotonic() > deadline:
                raise RuntimeError("the slave does not copy")
            time.sleep(_SAMPLE_S)


def _lags_s(stores: tuple[Path, Path], seconds: float) -> list[float]:
    """Return, for many moments, how long the slave took to hold what the master held, in s; ascending."""
    master, slave = map(_LogEnd, stores)
    waiting: deque[tuple[float, int]] = deque()
    lags: list[float] = []
    ends = time.perf_counter() + seconds
    while (now := time.perf_counter()) < ends or (waiting and now < ends + _LIMIT_S):
        if now < ends:
            waiting.append((now, master.now()))
        copied = slave.now()
        while waiting and waiting[0][1] <= copied:
            lags.append(time.perf_counter() - waiting.popleft()[0])
        time.sleep(_SAMPLE_S)
    return sorted(lags)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m bench replica``."""
    parser.add_argument("--turns", type=int, default=3, help="turns of each pair (default 3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default 10)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (default 1024)")
    parser.add_argument("--apache", metavar="VERSION", help="also a pair of Apache's brokers, such as 4.9.7")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure the pairs in turns and print medians; returns the exit code."""
    found: dict[str, list[Figures]] = {}
    for turn in range(options.turns):
        for version in ("", *([options.apache] if options.apache else [])):
            name = f"Apache {version}" if version else "triomq"
            for role in _SENDERS:
                with work_folder() as folder, _pair(version, folder, role) as pair:
                    for load, figures in _measure(pair, role, options):
                        found.setdefault(f"{name}, {load}", []).append(figures)
                        print(f"turn {turn + 1}: {name}, {load}: {figures}", flush=True)
    medians = {
        name: {key: statistics.median(each[key] for each in turns) for key in turns[0]} for name, turns in found.items()
    }
    names = list(dict.fromkeys(key for figures in medians.values() for key in figures))
    rows = [[name, *(f"{got[key]:,.2f}" if key in got else "" for key in names)] for name, got in medians.items()]
    print_table("bench replica, medians", ["", *names], rows)
    if options.json:
        write_json(options.json, {"bench": "replica", "size": options.size, "turns": found})
    return 0


def _measure(pair: _Pair, role: str, options: argparse.Namespace) -> Iterator[tuple[str, Figures]]:
    port = trio.run(make_topic, pair.namesrv)
    if role == "async":
        yield "alone", _sends(pair, port, _SENDERS[role][0], options)
    with pair.slave() as slave:
        _await_slave(port)
        _LogEnd(pair.stores[1]).wait(_LogEnd(pair.stores[0]).now())
        for senders in _SENDERS[role]:
            yield f"{role}, {senders} senders", _sends(pair, port, senders, options, slave)
    if role == "async":
        yield "catch-up", _catch_up(pair, port)


def _await_slave(port: int) -> None:
    """Return when a synchronous master has a slave: then it accepts a message."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        with contextlib.closing(Senders(port, 1, 1)) as probe:
            try:
                probe.run(0)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            else:
                return
        time.sleep(_PROBE_S)


def _sends(pair: _Pair, port: int, senders: int, options: argparse.Namespace, slave: int | None = None) -> Figures:
    with contextlib.closing(Senders(port, senders, options.size)) as load, ProcessPoolExecutor(1) as pool:
        load.run(_WARM_UP_S)
        lags = pool.submit(_lags_s, pair.stores, options.seconds) if slave else None
        before = [cpu_s(pid) for pid in (pair.master, slave or pair.master)]
        taken = sorted(load.run(options.seconds))
        after = [cpu_s(pid) for pid in (pair.master, slave or pair.master)]
        used = [(end - begin) / len(taken) * 1e6 for begin, end in zip(before, after, strict=True)]
        figures = {"msgs/s": len(taken) / options.seconds, **_ms(taken), "master us": used[0]}
        return figures | {"slave us": used[1], **_ms(lags.result(), "lag ")} if lags else figures


def _ms(taken_s: list[float], prefix: str = "") -> Figures:
    return {f"{prefix}{name} ms": percentile(taken_s, share) * 1000 for name, share in (("p50", 0.5), ("p99", 0.99))}


def _catch_up(pair: _Pair, port: int) -> Figures:
    """Measure how fast a slave catches up, and the latency of a sender meanwhile that sends now and then."""
    master, slave = map(_LogEnd, pair.stores)
    begin = master.now()
    with contextlib.closing(Senders(port, 4, _MISSED_BODY)) as load:
        while master.now() < begin + _MISSED_BYTES:
            load.run(0.2)
    slave_begin, end, taken = slave.now(), master.now(), []
    with contextlib.closing(Senders(port, 1, 1024)) as probe, pair.slave():
        slave.wait(slave_begin + 1)
        slave_begin, began = slave.now(), time.perf_counter()
        while slave.now() < end:
            taken += probe.run(0)
            time.sleep(_PROBE_S)
        return {"MB/s": (end - slave_begin) / (time.perf_counter() - began) / 1e6, **_ms(sorted(taken))}


@contextmanager
def _pair(version: str, folder: Path, role: str) -> Iterator[_Pair]:
    """Run the master of a pair: of ours, or of a version of Apache's."""
    if version:
        with _apache_pair(folder, version, role) as pair:
            yield pair
        return
    size = "--commit-log-file-size", str(_LOG_FILE_BYTES)
    options = "--role", f"{role}-master", "--ha-listen", "127.0.0.1:0", *size
    with triomq_server(folder / "master", *options) as master:

        @contextmanager
        def slave() -> Iterator[int]:
            options = "--role", "slave", "--broker-id", "1", "--register", master.namesrv, *size
            with triomq_server(folder / "slave", *options) as server:
                yield server.pids[0]

        yield _Pair(master.namesrv, master.pids[0], slave, (folder / "master", folder / "slave"))


@contextmanager
def _apache_pair(folder: Path, version: str, role: str) -> Iterator[_Pair]:
    """Run Apache's master; the kit starts the slave, too, so it is ended at once and started by its own command."""
    run, home = partial(subprocess.run, check=True, stdout=subprocess.PIPE, text=True), folder / "pair"
    script = str(KIT / "run-apache.sh")
    ready = json.loads(run([script, "start", str(home), "--slave", "--version", version]).stdout)
    namesrv, pids = ready["namesrv"], ready["pids"]
    running = Path(f"/proc/{pids['slave']}/cmdline")
    command = running.read_text().split("\0")[:-1]

    @contextmanager
    def slave() -> Iterator[int]:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield process.pid
            finally:
                process.terminate()

    try:
        if role == "sync":
            with (home / "home" / "broker.conf").open("a") as settings:
                settings.write("brokerRole=SYNC_MASTER\n")
            pids = json.loads(run([script, "restart-broker", str(home)]).stdout)["pids"]
        os.kill(pids["slave"], signal.SIGTERM)
        with contextlib.suppress(FileNotFoundError):
            while running.read_text():  # it keeps its ports until it ends
                time.sleep(_PROBE_S)
        yield _Pair(namesrv, pids["broker"], slave, (home / "store-broker", home / "store-slave"))
    finally:
        run([script, "stop", str(home), "--purge"])
