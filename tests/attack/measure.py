"""Run an attack against a new broker, with an honest client beside it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from tests.integration.broker_wire import Wire, connected, pull_fields
from tests.processes import Broker, start_triomq
from triomq.protocol.codes import RequestCode, ResponseCode
from triomq.protocol.record.record import decode_records
from triomq.protocol.wire.command import RemotingCommand

HONEST_TOPIC: Final = "HONEST"
MAX_PING_MS: Final = 50
P99_PING_MS: Final = 5
MAX_MEMORY_MIB: Final = 256
MAX_GROWN_MIB: Final = 16
_LIMIT_S: Final = 300
_ENDING_S: Final = 2.0  # the broker has so long to close what the attack left; after long steps it may look 1 s later
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


HEAD: Final = f"{'attack':28} {'p99 ms':>8} {'max ms':>8} {'MiB':>6} {'grown':>6} {'left':>5} {'lost':>5} {'sent':>6}"


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under attack, and for how long to attack it.

    Attributes:
        watched: memory of further processes when their attack began, by process id.
    """

    broker: Broker
    seconds: float
    watched: dict[int, int] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The broker's port, on loopback."""
        return int(self.broker.broker.rsplit(":", 1)[1])

    @property
    def namesrv_port(self) -> int:
        """The port of its name server."""
        return int(self.broker.namesrv.rsplit(":", 1)[1])

    def watch(self, pid: int) -> None:
        """Count what the memory of a process grows from now on, instead of the broker's if that grows less."""
        self.watched[pid] = _resident_bytes(pid)

    def connect(self) -> AbstractAsyncContextManager[Wire]:
        """Open a connection to the broker."""
        return connected(self.port)


async def _nothing(_target: Target) -> None:
    await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What one bad peer does.

    Attributes:
        name: short, for ``--only``.
        run: attacks for about ``target.seconds``; closes its connections.
        by_many: whether it takes many connections; the honest client then may wait longer.
        prepare: runs before the honest client starts.
        options: of the broker.
    """

    name: str
    run: Callable[[Target], Awaitable[None]]
    prepare: Callable[[Target], Awaitable[None]] = _nothing
    options: tuple[str, ...] = ()
    by_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was seen during an attack."""

    name: str
    p99_ms: float
    max_ms: float
    memory_mib: float  # the most above that before the attack
    grown_mib: float  # of the broker's log and tables
    connections_left: int
    lost: int
    stored: int
    by_many: bool

    def __str__(self) -> str:
        """Return the row of the table that begins with :data:`HEAD`."""
        text = (
            f"{self.name:28} {self.p99_ms:8.1f} {self.max_ms:8.1f} {self.memory_mib:6.0f} {self.grown_mib:6.1f}"
            f" {self.connections_left:5} {self.lost:5} {self.stored:6}"
        )
        return f"{text}{'  many connections' if self.by_many else ''}{'' if self.held else '  outside its bar'}"

    @property
    def held(self) -> bool:
        """Whether all is inside the bars."""
        quick = self.by_many or (self.p99_ms <= P99_PING_MS and self.max_ms <= MAX_PING_MS)
        is_small = self.memory_mib <= MAX_MEMORY_MIB and self.grown_mib <= MAX_GROWN_MIB
        return quick and is_small and not self.connections_left and not self.lost


async def measure(attack: Attack, seconds: float) -> Row:
    """Run one attack.

    Raises:
        AssertionError: the broker did not start, end cleanly or serve.
    """
    with tempfile.TemporaryDirectory(prefix="triomq-attack-") as folder:
        with start_triomq(Path(folder), *attack.options) as broker, trio.fail_after(_LIMIT_S):
            target = Target(broker, seconds)
            async with target.connect() as wire:
                await wire.put(HONEST_TOPIC, b"first")
                await _pull(wire, 0)  # so that its group exists
            await attack.prepare(target)
            await trio.sleep(_ENDING_S)
            return await _measure(attack, target)


async def _measure(attack: Attack, target: Target) -> Row:
    pid = target.broker.pid
    before, connections, size = _resident_bytes(pid), _connections(pid), _file_bytes(target)
    peak = before
    honest = _start_ping(target)
    try:
        assert honest.stdout is not None
        await trio.to_thread.run_sync(honest.stdout.readline)

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, _resident_bytes(pid))
                for watched, idle in target.watched.items():
                    peak = max(peak, before + _resident_bytes(watched) - idle)
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await attack.run(target)
            nursery.cancel_scope.cancel()
        output, _ = await trio.to_thread.run_sync(honest.communicate, "")
    finally:
        honest.kill()
        honest.wait()
    seen = json.loads(output)
    latencies = sorted(seen["seen_ms"])
    await trio.sleep(_ENDING_S)
    return Row(
        name=attack.name,
        p99_ms=latencies[len(latencies) * 99 // 100],
        max_ms=latencies[-1],
        memory_mib=(peak - before) / 1024**2,
        grown_mib=(_file_bytes(target) - size) / 1024**2,
        connections_left=_connections(pid) - connections,
        lost=len(set(seen["stored"]) - await _stored(target)),
        stored=len(seen["stored"]),
        by_many=attack.by_many,
    )


def _start_ping(target: Target) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.attack.ping", target.broker.broker, HONEST_TOPIC]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _resident_bytes(pid: int) -> int:
    """Anonymous memory: mapped store files do not count."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _file_bytes(target: Target) -> int:
    """Size of the broker's log and tables."""
    tables = (Path(target.broker.store) / "config").iterdir()
    return sum(path.stat().st_size for path in (target.broker.log, *tables))


def _connections(pid: int) -> int:
    targets = (str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink())
    return sum(target.startswith("socket:") for target in targets)


async def _stored(target: Target) -> set[str]:
    """Read the honest client's queue."""
    bodies: set[str] = set()
    async with target.connect() as wire:
        offset = 0
        while (answer := await _pull(wire, offset)).code == ResponseCode.SUCCESS:
            records = decode_records(answer.body)
            bodies |= {bytes(record.body).decode() for record in records}
            offset += len(records)
    return bodies


async def _pull(wire: Wire, offset: int) -> RemotingCommand:
    return await wire.ask(RequestCode.PULL_MESSAGE, pull_fields(HONEST_TOPIC, offset))
