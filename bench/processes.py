"""Servers under load: started on free ports, watched, and ended by process id."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KIT: Final = ROOT / "tests" / "interop" / "kit"
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S: Final = 15.0
_START_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running broker with its name server."""

    name: str
    namesrv: str
    pids: tuple[int, ...]
    ready_s: float
    broker: str = ""  # address of ours

    def cpu_s(self) -> float:
        """Return the CPU time that the processes used so far."""
        return sum(cpu_s(pid) for pid in self.pids)

    def memory_mib(self) -> float:
        """Return the resident memory of the processes, in MiB."""
        return sum(map(resident_mib, self.pids))

    def anonymous_mib(self) -> float:
        """Return the processes' private memory without page cache, in MiB."""
        return sum(map(anonymous_mib, self.pids))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    return _status_kib(pid, "VmRSS") / 1024


def anonymous_mib(pid: int) -> float:
    """Return the memory of a process that is not the page cache's, in MiB."""
    return _status_kib(pid, "RssAnon") / 1024


def high_water_mib(pid: int) -> float:
    """Return the most resident memory that a process ever had, in MiB."""
    return _status_kib(pid, "VmHWM") / 1024


def descendants() -> set[int]:
    """Return this process and those below it."""
    stats = _all_stats()
    parents = {pid: int(fields[1]) for pid, fields in stats.items()}
    return {pid for pid in parents if os.getpid() in _with_parents(pid, parents)}


def tree_cpu_s() -> float:
    """Return the CPU time of this process and all below it so far, with those that have ended."""
    stats = _all_stats()
    return sum(sum(map(int, stats[pid][11:15])) / _TICKS_PER_SECOND for pid in descendants() & stats.keys())


def _all_stats() -> dict[int, list[str]]:
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            stats[int(path.parent.name)] = _stat(path)
    return stats


def _with_parents(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid:
        yield pid
        pid = parents.get(pid, 0)


def processes_with(text: str) -> Iterator[int]:
    """Yield the processes that have ``text`` in their command."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in command.read_text():
                yield int(command.parent.name)
        except OSError:
            continue  # it has ended


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process used so far."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _stat(path: Path) -> list[str]:
    """Return the fields behind the name: state, parent, and so on."""
    return path.read_text().rpartition(")")[2].split()


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


@contextmanager
def triomq_server(
    folder: Path, *options: str, durability: str = "async", program: Sequence[str] = ("-m", "triomq.cli")
) -> Iterator[Server]:
    """Run our broker, with its store below ``folder`` and further options; ``program`` is what Python runs."""
    started = time.perf_counter()
    address = "127.0.0.1:0"
    command = [sys.executable, *program, "broker", "--listen", address, "--namesrv-listen", address]
    command += ["--store", str(folder), "--durability", durability, "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("our broker did not start; its own words are above")
            ready = json.loads(line)
            yield Server("triomq", ready["namesrv"], (process.pid,), time.perf_counter() - started, ready["broker"])
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def apache_server(folder: Path, version: str, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run Apache's name server and broker, with further settings, by the interop kit's script."""
    script = str(KIT / "run-apache.sh")
    subprocess.run([script, "fetch", "--version", version], check=True, stdout=subprocess.DEVNULL)
    started = time.perf_counter()
    wanted = {"mappedFileSizeCommitLog": "1073741824", "mappedFileSizeConsumeQueue": "6000000", **(settings or {})}
    command = [script, "start", str(folder), "--version", version]
    for name, value in wanted.items():
        command += ["--set", f"{name}={value}"]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    ready_s = time.perf_counter() - started
    try:
        ready = json.loads(result.stdout)
        yield Server(f"apache-{version}", ready["namesrv"], tuple(ready["pids"].values()), ready_s)
    finally:
        subprocess.run([script, "stop", str(folder), "--purge"], check=False, stdout=subprocess.DEVNULL)


def free_port() -> int:
    """Return an unused port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def listening_server(command: Sequence[str], log: Path, port: int) -> Iterator[None]:
    """Run a server until the block ends; it is ready when it accepts a connection."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent) as process:
        try:
            deadline = time.monotonic() + _START_LIMIT_S
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-500:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def work_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for stores and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="triomq-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
