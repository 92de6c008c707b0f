"""Run our broker as a separate process, started as by a user."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from triomq.testing.host import SlowDisk

READY_TIMEOUT_S: Final = 30
STOP_TIMEOUT_S: Final = 30
_FREE_PORT: Final = ("--listen", "127.0.0.1:0")
ANY_DISK: Final = ("--disk-full-ratio", "100", "--disk-clean-ratio", "100")  # whatever other programs use


#: Environment variable: by how much each sync of our brokers is slowed down, in seconds.
SLOW_DISK: Final = "TRIOMQ_TESTS_SLOW_DISK"


def tests_disk() -> SlowDisk:
    """Return the disk of a broker in this process."""
    return SlowDisk(float(os.environ.get(SLOW_DISK, "0")))


@dataclass(kw_only=True)
class Broker:
    """A running broker with its addresses, ``HOST:PORT``.  Of a name server alone ``broker`` is ""."""

    broker: str
    namesrv: str
    store: str
    pid: int
    log: Path  # its stderr
    process: subprocess.Popen[str] = field(repr=False)
    admin: str = ""  # where administration has a separate listener
    ha: str = ""  # of a master with a port for slaves
    stopped: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Stop it and check its exit; if the block failed, only kill it."""
        if kind is None:
            self.stop()
        elif not self.stopped:
            self.kill()

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self.stopped = True
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        """Stop it with SIGTERM; a second call does nothing.

        Raises:
            AssertionError: it did not exit with code 0 within 30 s, or logged a traceback; the text contains the log.
        """
        if self.stopped:
            return
        self.stopped = True
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise AssertionError(
                f"the broker did not end within {STOP_TIMEOUT_S} s of SIGTERM\n{self.tail()}"
            ) from None
        took = time.monotonic() - began
        assert self.process.returncode == 0, f"exit code {self.process.returncode} after {took:.1f} s\n{self.tail()}"
        assert "Traceback" not in self.log.read_text(encoding="utf-8"), self.tail()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


def start_broker(
    command: Sequence[str | Path], folder: Path, *, environment: Mapping[str, str] | None = None
) -> Broker:
    """Start ``command``, which must print the ready line of ``triomq broker --json`` or ``triomq namesrv --json``.

    ``folder`` gets the log.

    Raises:
        AssertionError: no such line within 30 s; the text contains the log.
    """
    log = folder / "broker.log"
    with log.open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_TIMEOUT_S)
    line = process.stdout.readline() if readable else ""
    try:
        ready = json.loads(line)
        assert ready["event"] == "ready"
        return Broker(
            broker=ready.get("broker", ""),
            namesrv=ready["namesrv"],
            store=ready["store"],
            pid=ready["pid"],
            log=log,
            process=process,
            admin=ready.get("admin", ""),
            ha=ready.get("ha", ""),
        )
    except (ValueError, KeyError, TypeError, AssertionError):
        process.kill()
        process.communicate()
        raise AssertionError(f"no ready line but {line!r}; log:\n{log.read_text(encoding='utf-8')}") from None


def start_triomq(folder: Path, *options: str) -> Broker:
    """Start our broker with its name server on free loopback ports with its store in ``folder / "store"``."""
    return _start_command(folder, "broker", *_FREE_PORT, *ANY_DISK, "--namesrv-listen", "127.0.0.1:0", *options)


def start_member(folder: Path, name: str, register: str, *options: str) -> Broker:
    """Start our broker as one of several that register with these name servers."""
    return _start_command(
        folder, "broker", *_FREE_PORT, *ANY_DISK, "--broker-name", name, "--register", register, *options
    )


def start_name_server(folder: Path, *options: str) -> Broker:
    """Start our name server alone; it has no broker's address."""
    return _start_command(folder, "namesrv", *_FREE_PORT, *options)


def _start_command(folder: Path, command: str, *options: str) -> Broker:
    folder.mkdir(exist_ok=True)
    slow = ("tests.slow_disk", os.environ[SLOW_DISK]) if SLOW_DISK in os.environ else ("triomq.cli",)
    return start_broker(
        (sys.executable, "-m", *slow, command, *options, "--store", str(folder / "store"), "--json"), folder
    )
