"""One of two brokers is killed and restarted while a producer sends: ours, and Apache's Java client.

Each turn has a new producer with some senders, each of which sends one message after the other.
"""

import argparse
import signal
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import trio

from bench.processes import work_folder
from bench.report import print_table, write_json
from tests.interop.broker_pairs import LEAVES, STAYS, Pair, apache_pair, triomq_pair
from tests.interop.kit_driver import ApacheBrokers, java_classpath
from triomq.client import Admin, Message, Producer, ProducerConfig
from triomq.protocol.errors import TriomqError

_TOPIC: Final = "bench-failover"
_PROGRAM: Final = Path(__file__).with_name("Failover.java")
_START_LIMIT_S: Final = 60.0


def _apache(folder: Path, version: str) -> AbstractContextManager[Pair]:
    return apache_pair(ApacheBrokers(folder), folder, version)


#: What starts a pair of brokers, by the name of ``--cluster``.
_CLUSTERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Pair]]]] = {
    "apache-4.9.7": partial(_apache, version="4.9.7"),
    "apache-5.5.0": partial(_apache, version="5.5.0"),
    "triomq": triomq_pair,
}


class Sent(NamedTuple):
    """The end of a send; ``broker`` is "" if it failed."""

    at_s: float
    sender: int
    broker: str


class Sends:
    """What the senders of a turn have done, in order."""

    def __init__(self) -> None:
        self.ended: list[Sent] = []
        self._more = trio.Event()

    def note(self, sender: int, broker: str) -> None:
        """Take the end of a send."""
        self.ended.append(Sent(trio.current_time(), sender, broker))
        self._more.set()

    async def first_at(self, broker: str, since_s: float = 0.0) -> float:
        """Wait until a broker stores a message after a point in time; return when it does."""
        seen = 0
        while True:
            for sent in self.ended[seen:]:
                if sent.broker == broker and sent.at_s >= since_s:
                    return sent.at_s
            seen = len(self.ended)
            self._more = trio.Event()
            await self._more.wait()


async def _ours(options: argparse.Namespace, namesrv: str, is_choosy: bool, sends: Sends) -> None:
    async def send_on(producer: Producer, sender: int) -> None:
        while True:
            broker = ""
            with suppress(TriomqError):
                broker = (await producer.send(Message(_TOPIC, bytes(100)))).queue.broker_name
            sends.note(sender, broker)
            await trio.sleep(options.pause / 1000)

    settings = ProducerConfig(send_latency_fault_enable=is_choosy)
    async with Producer(_TOPIC, namesrv=namesrv, settings=settings) as producer, trio.open_nursery() as nursery:
        for sender in range(options.senders):
            nursery.start_soon(send_on, producer, sender)


async def _java(options: argparse.Namespace, namesrv: str, is_choosy: bool, sends: Sends) -> None:
    words = (namesrv, _TOPIC, options.senders, options.pause, is_choosy)
    command = ["java", "-cp", java_classpath(options.client), str(_PROGRAM), *map(str, words)]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdout=subprocess.PIPE)
        process: trio.Process = await nursery.start(run)
        assert process.stdout is not None
        rest = b""
        async for chunk in process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                sender, _, broker = line.decode().partition(" ")
                if sender.isdigit():  # the client's log may be there, too
                    sends.note(int(sender), broker.removeprefix("-"))


_Client = Callable[[argparse.Namespace, str, bool, Sends], Awaitable[None]]
_CLIENTS: Final[Mapping[str, _Client]] = {"triomq": _ours, "java": _java}


@dataclass(frozen=True, slots=True)
class Turn:
    """Figures of one turn.

    Attributes:
        gap_s: longest time in which one sender got nothing stored, between kill and restart.
        failed: sends that failed, from the kill to the end.
        back_s: from the moment the broker accepts connections again until it stores a message; ``None``: not in time.
    """

    client: str
    is_choosy: bool
    gap_s: float
    failed: int
    back_s: float | None


def longest_gap_s(ended: Sequence[Sent], since_s: float, until_s: float) -> float:
    """Return the longest time in which one sender got nothing stored."""
    longest = 0.0
    for sender in {sent.sender for sent in ended}:
        stored = [sent.at_s for sent in ended if sent.sender == sender and sent.broker]
        moments = [since_s, *(at_s for at_s in stored if since_s < at_s < until_s), until_s]
        longest = max(longest, *(end - begin for begin, end in pairwise(moments)))
    return longest


async def _turn(options: argparse.Namespace, pair: Pair, name: str, is_choosy: bool) -> Turn:
    sends = Sends()
    back_s: float | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_CLIENTS[name], options, pair.namesrv, is_choosy, sends)
        with trio.fail_after(_START_LIMIT_S):
            for broker in (STAYS, LEAVES):
                await sends.first_at(broker)
        await trio.sleep(options.warmup)
        killed_s = trio.current_time()
        await trio.to_thread.run_sync(pair.signal, signal.SIGKILL)
        await trio.sleep(options.away)
        gap_s = longest_gap_s(sends.ended, killed_s, trio.current_time())
        async with trio.open_nursery() as starting:
            starting.start_soon(trio.to_thread.run_sync, pair.restart)
            listening_s = await _listening(pair.leaving)
        with trio.move_on_at(listening_s + options.limit):
            back_s = await sends.first_at(LEAVES, listening_s) - listening_s
        await trio.sleep(options.warmup)
        nursery.cancel_scope.cancel()
    failed = sum(not sent.broker for sent in sends.ended if sent.at_s >= killed_s)
    return Turn(name, is_choosy, gap_s, failed, back_s)


async def _listening(address: str) -> float:
    """Wait until a server accepts connections; return since when."""
    host, _, port = address.rpartition(":")
    with trio.fail_after(_START_LIMIT_S):
        while True:
            try:
                await (await trio.open_tcp_stream(host, int(port))).aclose()
            except OSError:
                await trio.sleep(0.02)
            else:
                return trio.current_time()


async def _create_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(_TOPIC, queues=4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m bench failover``."""
    parser.add_argument(
        "--cluster", choices=_CLUSTERS, default="apache-4.9.7", help="the brokers (default %(default)s)"
    )
    parser.add_argument("--client", default="4.9.7", help="version of the Java client (default %(default)s)")
    parser.add_argument("--only", choices=_CLIENTS, help="leave the other client out")
    parser.add_argument("--turns", type=int, default=3, help="turns of each client and setting (default 3)")
    parser.add_argument("--senders", type=int, default=4, help="that send at the same time (default 4)")
    parser.add_argument("--pause", type=int, default=5, help="milliseconds between the sends of one (default 5)")
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds before the kill, and at the end (default 3)")
    parser.add_argument("--away", type=float, default=10.0, help="seconds between kill and restart (default 10)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to wait for the first send (default 60)")
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE")


def run(options: argparse.Namespace) -> int:
    """Run all turns and print a table; returns the exit code."""
    names = [options.only] if options.only else list(_CLIENTS)
    turns: list[Turn] = []
    with work_folder() as folder, _CLUSTERS[options.cluster](folder) as pair:
        trio.run(_create_topic, pair.namesrv)
        for _ in range(options.turns):
            for is_choosy in (False, True):
                for name in names:
                    turns.append(trio.run(_turn, options, pair, name, is_choosy))
                    print(turns[-1], file=sys.stderr, flush=True)
    rows = [_row(options, name, is_choosy, turns) for is_choosy in (False, True) for name in names]
    head = ["client, send_latency_fault_enable", "longest gap s", "failed sends", "used again after s"]
    print_table(f"Failover, {options.cluster}: medians (worst)", head, rows)
    if options.json:
        write_json(options.json, [asdict(turn) for turn in turns])
    return 0


def _row(options: argparse.Namespace, name: str, is_choosy: bool, turns: list[Turn]) -> list[str]:
    mine = [turn for turn in turns if (turn.client, turn.is_choosy) == (name, is_choosy)]
    backs = [options.limit if turn.back_s is None else turn.back_s for turn in mine]
    missing = sum(turn.back_s is None for turn in mine)
    return [
        f"{name}, {'on' if is_choosy else 'off'}",
        _median_and_worst([turn.gap_s for turn in mine], 2),
        _median_and_worst([turn.failed for turn in mine], 0),
        _median_and_worst(backs, 1) + (f", {missing} of {len(mine)} not at all" if missing else ""),
    ]


def _median_and_worst(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({max(values):,.{digits}f})"
