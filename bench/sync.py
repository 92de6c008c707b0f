"""Durability sync through sockets: one sender, and many that share each fdatasync, beside fdatasync alone.

Each sender is a plain socket that sends its next message when the answer to the one before is there; one process
drives all of them, so that the load generator takes little.  ``--slower-ms`` makes each fdatasync of the broker take
longer, as on a slower disk.  With durability async the same load shows what the broker could do without a disk.
"""

import argparse
import contextlib
import mmap
import os
import select
import socket
import time
from pathlib import Path
from typing import Final

import trio

from bench.processes import Server, triomq_server, work_folder
from bench.report import percentile, print_table, write_json
from triomq.client import Admin
from triomq.protocol.codes import RequestCode
from triomq.protocol.requests.messages import SendMessageRequestHeaderV2
from triomq.protocol.wire.command import RemotingCommand

_TOPIC: Final = "bench-sync"
_QUEUES: Final = 8
_WARM_UP_S: Final = 1.0
_RECORD_EXTRA_BYTES: Final = 180  # of a record besides its body, about
_PROBES: Final = 400
_PROBE_BYTES: Final = 16 * 1024**2
_SLOWER: Final = """
import os, time
real = os.fdatasync
def slower(number):
    real(number)
    time.sleep({seconds})
os.fdatasync = slower
from triomq.cli import main
main()
"""
"""A broker on a disk with a slower fdatasync."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--senders", type=int, default=64, help="senders beside the single one (default 64)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (default 128)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (default 4)")
    parser.add_argument("--slower-ms", type=float, nargs="*", default=[0.0], help="added to each fdatasync (default 0)")
    parser.add_argument("--folder", type=Path, help="folder for the store (default: a temporary one)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def run(options: argparse.Namespace) -> int:
    """Measure all of them; returns the exit code."""
    figures: dict[str, dict[str, float]] = {}
    with work_folder() as temporary:
        folder = options.folder or temporary
        for slower_ms in options.slower_ms:
            program = ("-c", _SLOWER.format(seconds=slower_ms / 1000)) if slower_ms else ("-m", "triomq.cli")
            with triomq_server(folder / f"sync-{slower_ms}", durability="sync", program=program) as server:
                figures[f"sync, fdatasync + {slower_ms:g} ms"] = _measure(options, server, folder, slower_ms)
        with triomq_server(folder / "async") as server:
            figures["async"] = _measure(options, server, folder, None)
    names = list(next(iter(figures.values())))
    rows = [[name, *(f"{found[key]:,.3f}" if key in found else "" for key in names)] for name, found in figures.items()]
    print_table("bench sync", ["durability", *names], rows)
    if options.json:
        write_json(options.json, {"bench": "sync", "size": options.size, **figures})
    return 0


def _measure(options: argparse.Namespace, server: Server, folder: Path, slower_ms: float | None) -> dict[str, float]:
    port = trio.run(make_topic, server.namesrv)
    figures: dict[str, float] = {}
    rates = []
    for senders in (1, options.senders):
        with contextlib.closing(Senders(port, senders, options.size)) as load:
            load.run(_WARM_UP_S)
            cpu_s = server.cpu_s()
            latencies_s = sorted(load.run(options.seconds))
            cpu_s = server.cpu_s() - cpu_s
        disk_s = _fdatasync_s(folder, senders * (options.size + _RECORD_EXTRA_BYTES), (slower_ms or 0) / 1000)
        name = f"{senders}:"
        rates.append(len(latencies_s) / options.seconds)
        figures[f"{name} sends/s"] = rates[-1]
        figures[f"{name} p50 ms"] = percentile(latencies_s, 0.5) * 1000
        figures[f"{name} cpu us"] = cpu_s / len(latencies_s) * 1e6
        if slower_ms is not None:
            figures[f"{name} fdatasync p50 ms"] = disk_s * 1000
    figures["ratio"] = rates[-1] / rates[0]
    return figures


async def make_topic(namesrv: str) -> int:
    """Make the topic of the senders; return the port of the broker, of a pair that of the master."""
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(_TOPIC, queues=_QUEUES)
        route = await admin.topic_route(_TOPIC)
        return int(route.broker_datas[0].broker_addrs[0].rpartition(":")[2])


class _Sender:
    """One connection and its only request."""

    def __init__(self, port: int, number: int, size: int) -> None:
        header = SendMessageRequestHeaderV2(
            producer_group="bench",
            topic=_TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=number % _QUEUES,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=f"UNIQ_KEY\x01{os.urandom(16).hex().upper()}\x02WAIT\x01true",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, number, ext_fields=header.encode(), body=os.urandom(size)
        )
        self._frame = command.encode()
        self._received = b""
        self.sent_at = 0.0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(self._frame)

    def is_answered(self) -> bool:
        """Read the available bytes."""
        data = self.socket.recv(4096)
        if not data:
            raise RuntimeError("the broker closed a connection")
        self._received += data
        if len(self._received) < 4 + int.from_bytes(self._received[:4]):
            return False
        if b'"code":0,' not in self._received:
            raise RuntimeError(f"a message was refused: {self._received!r}")
        self._received = b""
        return True


class Senders:
    """All connections, driven in turns by the thread that calls ``run``."""

    def __init__(self, port: int, count: int, size: int) -> None:
        self._senders = [_Sender(port, number, size) for number in range(count)]

    def run(self, seconds: float) -> list[float]:
        """Send for ``seconds``; return the time of each message, s."""
        taken: list[float] = []
        by_number = {sender.socket.fileno(): sender for sender in self._senders}
        with contextlib.closing(select.epoll()) as poll:
            for number, sender in by_number.items():
                poll.register(number, select.EPOLLIN)
                sender.send()
            end = time.perf_counter() + seconds
            unanswered = len(by_number)
            while unanswered:
                for number, _ in poll.poll():
                    sender = by_number[number]
                    if sender.is_answered():
                        now = time.perf_counter()
                        taken.append(now - sender.sent_at)
                        if now < end:
                            sender.send()
                        else:
                            unanswered -= 1
        return taken

    def close(self) -> None:
        for sender in self._senders:
            sender.socket.close()


def _fdatasync_s(folder: Path, size: int, slower_s: float) -> float:
    """Return the median time of fdatasync after writing ``size`` bytes through a mapping, s."""
    path = folder / "probe"
    with path.open("w+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, _PROBE_BYTES)
        with mmap.mmap(file.fileno(), _PROBE_BYTES) as map_:
            taken = []
            for number in range(_PROBES):
                at = number * size % (_PROBE_BYTES - size)
                map_[at : at + size] = os.urandom(size)
                begin = time.perf_counter()
                os.fdatasync(file.fileno())
                if slower_s:
                    time.sleep(slower_s)
                taken.append(time.perf_counter() - begin)
    path.unlink()
    return percentile(sorted(taken), 0.5)
