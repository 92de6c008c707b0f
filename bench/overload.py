"""Several times the broker's capacity, for minutes: rejected and stored sends, latencies, and a check of both.

The load are sends of 128 bytes with the long names (code 10) over plain sockets.  First each connection keeps some of
them open and nothing is refused: the rate of answers is the broker's capacity.  Then ``--factor`` times as many
become due, at times that do not depend on the answers; a refused one is not sent again.  A connection with 512
unanswered ones skips sends that are due; "offered" counts those sent.  They cost the broker several times as much as
usual sends, so that one core can offer five times the capacity of the other.

Two producers of ours send beside it, one for each ``on_busy``.  At the end the log is searched: a message that was
refused must not be there, one that was accepted must, once.  A minute takes about half a GiB of disk.
"""

import argparse
import mmap
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import trio

from bench.processes import ROOT, Server, triomq_server, work_folder
from bench.report import print_table, text_of, write_json
from triomq.client import Admin, Message, Producer, ProducerConfig
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.errors import SystemBusyError, TriomqError
from triomq.protocol.wire.command import RemotingCommand
from triomq.protocol.wire.frame import FrameSplitter

_TOPIC: Final = "overload"
_FIRST: Final = 1_000_000_000  # numbers of messages, which are also the opaques; all have ten digits
_BODY: Final = b"<%d>" + bytes(116)
_IN_LOG: Final = re.compile(rb"<(\d{10})>")
_FIELDS: Final = {
    "producerGroup": "overload", "topic": _TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "8",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
    "properties": "TAGS\x01a\x02WAIT\x01true\x02",
}  # fmt: skip
_FRAME: Final = RemotingCommand(RequestCode.SEND_MESSAGE, _FIRST, 0, _FIELDS, _BODY % _FIRST).encode()
_OPEN: Final = 32  # sends of a connection, while it is measured what the broker can do
_MOST_OPEN: Final = 512
_MEASURE_S: Final = 10.0
_WARMUP_S: Final = 2.0  # the broker refuses nothing before it has been late for a second
_LAST_ANSWERS_S: Final = 30.0
_TICK_S: Final = 0.02
_PRINT_EVERY_S: Final = 60
_ON_BUSY: Final[tuple[Literal["wait", "raise"], ...]] = ("wait", "raise")
_SHARES: Final = {"p50": 0.5, "p99": 0.99, "max": 1.0}
_ACCEPTED, _REFUSED, _UNKNOWN, _STORED = 1, 2, 4, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--seconds", type=float, default=600.0, help="(default 600)")
    parser.add_argument("--factor", type=float, default=5.0, help="times what the broker can do (default 5)")
    parser.add_argument("--connections", type=int, default=64, help="(default 64)")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: that for temporary files)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Overload our broker; returns the exit code, 1 if an answer was not true."""
    load = _Load()
    with work_folder(options.folder) as folder:
        with triomq_server(folder) as server:
            trio.run(load.run, options, server)
        load.search(folder / "commitlog")
    print_table("bench overload", ["figure", "value"], [[name, text_of(each)] for name, each in load.figures.items()])
    if options.json:
        write_json(options.json, load.figures)
    return int(load.is_untrue)


def _set_longest_wait(server: Server, wait_ms: int) -> None:
    command = (sys.executable, "-m", "triomq.cli", "broker", "set", f"waitTimeMillsInSendQueue={wait_ms}")
    subprocess.run([*command, "--broker", server.broker], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


class _Load:
    """What all senders did.

    Attributes:
        figures: the measurements.
        is_untrue: whether an answer was not true.
    """

    is_untrue = True

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self._states = bytearray()  # of each message, by its number
        self._sent_at: dict[int, float] = {}  # of those without an answer
        self._begin()

    def _begin(self) -> None:
        self._began = time.perf_counter()
        self._counts: Counter[tuple[str, Any]] = Counter()  # of events and their values

    async def run(self, options: argparse.Namespace, server: Server) -> None:
        """Find out what the broker can do, and offer it more."""
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(_TOPIC, queues=1)
        host, port = server.broker.rsplit(":", 1)
        streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(options.connections)]
        _set_longest_wait(server, 0)  # nothing is refused
        async with self._senders(streams, 0.0, _MEASURE_S):
            await trio.sleep(_MEASURE_S)
            capacity = self._found()["accepted/s"]
        _set_longest_wait(server, 50)
        async with self._senders(streams, options.factor * capacity / len(streams), options.seconds) as nursery:
            for on_busy in _ON_BUSY:
                nursery.start_soon(self._produce, server, on_busy, self._began + options.seconds)
            memory_mib = 0.0
            for second in range(1, round(options.seconds) + 1):
                await trio.sleep(self._began + second - time.perf_counter())
                memory_mib = max(memory_mib, server.anonymous_mib())
                if second % _PRINT_EVERY_S == 0:
                    print(second, "s ", *(f"{name} {value:,.0f} " for name, value in self._found().items()), flush=True)
            found = self._found()
            waits = ", ".join(f"{value} ms" for name, value in self._counts if name == "told to wait")
        self.figures = {"can do/s": capacity, "offered/that": found["offered/s"] / capacity} | found | self.figures
        self.figures |= {"told to wait": waits, "broker's own memory at most, MiB": memory_mib}

    @asynccontextmanager
    async def _senders(
        self, streams: list[trio.SocketStream], rate: float, seconds: float
    ) -> AsyncGenerator[trio.Nursery]:
        """Send from all connections; what happens within the block is counted."""
        async with trio.open_nursery() as nursery:
            for each in streams:
                nursery.start_soon(self._connection, each, rate, time.perf_counter() + _WARMUP_S + seconds)
            await trio.sleep(_WARMUP_S)
            self._begin()
            yield nursery

    def _new(self, count: int) -> range:
        first = _FIRST + len(self._states)
        self._states += bytes(count)
        return range(first, first + count)

    async def _connection(self, stream: trio.SocketStream, rate: float, end: float) -> None:
        """Send so many a second, or with a rate of 0 one for each answer, and read all answers."""
        unanswered = 0
        splitter = FrameSplitter()

        async def send(count: int) -> None:
            nonlocal unanswered
            numbers = self._new(count)
            self._sent_at |= dict.fromkeys(numbers, time.perf_counter())
            self._counts["offered", 0] += count
            unanswered += count
            first = b"%d" % _FIRST
            await stream.send_all(b"".join(_FRAME.replace(first, b"%d" % number) for number in numbers))

        async def send_at_rate() -> None:
            await trio.sleep(random.random() * _TICK_S)
            due_at = time.perf_counter()
            while (now := time.perf_counter()) < end:
                due = int((now - due_at) * rate)
                due_at += due / rate
                count = min(due, _MOST_OPEN - unanswered)
                self._counts["left out", 0] += due - count
                if count:
                    await send(count)
                await trio.sleep(_TICK_S)

        async with trio.open_nursery() as nursery:
            if rate:
                nursery.start_soon(send_at_rate)
            else:
                await send(_OPEN)
            while time.perf_counter() < (end + _LAST_ANSWERS_S if unanswered else end):
                data = b""
                with trio.move_on_after(1):
                    data = await stream.receive_some(256 * 1024)
                frames, _ = splitter.split(data)
                for frame in frames:
                    self._answered(orjson.loads(frame[4:]), time.perf_counter())
                unanswered -= len(frames)
                if not rate and frames and time.perf_counter() < end:
                    await send(len(frames))

    def _answered(self, header: dict[str, Any], now: float) -> None:
        number = header["opaque"]
        is_accepted = header["code"] == ResponseCode.SUCCESS
        if not is_accepted:
            assert header["code"] == ResponseCode.SYSTEM_BUSY, header
            self._counts["told to wait", header["extFields"]["retryAfterMs"]] += 1
        self._states[number - _FIRST] = _ACCEPTED if is_accepted else _REFUSED
        self._counts["accepted" if is_accepted else "refused", int((now - self._sent_at.pop(number)) * 1000)] += 1

    async def _produce(self, server: Server, on_busy: Literal["wait", "raise"], end: float) -> None:
        """Send one message after the other with our client."""
        outcomes: Counter[str] = Counter()
        slowest_s = 0.0
        settings = ProducerConfig(on_busy=on_busy, retries=0)
        async with Producer("overload", namesrv=server.namesrv, settings=settings) as producer:
            while (began := time.perf_counter()) < end:
                (number,) = self._new(1)
                pause_s, state, outcome = _TICK_S, _ACCEPTED, "sent"
                try:
                    await producer.send(Message(_TOPIC, _BODY % number))
                except SystemBusyError as exc:
                    pause_s, state, outcome = exc.retry_after_s or 0.0, _REFUSED, "busy"
                except TriomqError as exc:  # it may be stored or not
                    state, outcome = _UNKNOWN, type(exc).__name__
                self._states[number - _FIRST] = state
                outcomes[outcome] += 1
                slowest_s = max(slowest_s, time.perf_counter() - began)
                await trio.sleep(pause_s)
        self.figures[f"on_busy={on_busy}"] = f"{dict(outcomes)}, slowest {slowest_s * 1000:.0f} ms"

    def _found(self) -> dict[str, float]:
        """Return the counts and latencies (ms) since the last beginning."""
        figures: dict[str, float] = {}
        for kind in ("offered", "left out", "accepted", "refused"):
            values = sorted((value, count) for (name, value), count in self._counts.items() if name == kind)
            total = sum(count for _, count in values)
            figures[f"{kind}/s"] = total / (time.perf_counter() - self._began)
            passed = 0
            for value, count in values if kind in ("accepted", "refused") else ():
                for name, share in _SHARES.items():
                    if passed < share * total <= passed + count:
                        figures[f"{kind} {name} ms"] = float(value)
                passed += count
        return figures

    def search(self, folder: Path) -> None:
        """Compare the answers with the log."""
        states, twice = self._states, 0
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as log:
                for found in _IN_LOG.finditer(log):
                    position = int(found[1]) - _FIRST
                    twice += states[position] & _STORED != 0
                    states[position] |= _STORED
        untrue = {
            "refused and stored": states.count(_REFUSED | _STORED),
            "accepted and missing": states.count(_ACCEPTED),
            "stored twice": twice,
            "never answered": states.count(0) + states.count(_STORED),
        }
        self.figures |= untrue
        self.is_untrue = any(untrue.values())
