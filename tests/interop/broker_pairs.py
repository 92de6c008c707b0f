"""Two brokers of one cluster, "broker-a" and "broker-b", of which the second can be killed, frozen and restarted."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.interop.kit_driver import ApacheBrokers
from tests.processes import Broker, start_broker

STAYS: Final = "broker-a"
LEAVES: Final = "broker-b"
_FREE: Final = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Pair:
    """The running brokers.

    Attributes:
        leaving: address of "broker-b".
        pid: returns its process id while it runs.
        restart: starts it again after it was killed, at the same address with the same store.
    """

    namesrv: str
    leaving: str
    pid: Callable[[], int]
    restart: Callable[[], None]

    def signal(self, number: int) -> None:
        """Send a signal to "broker-b"."""
        os.kill(self.pid(), number)


@contextmanager
def apache_pair(brokers: ApacheBrokers, folder: Path, version: str) -> Iterator[Pair]:
    """Run two Apache brokers under the name server of the first."""
    homes = folder / STAYS, folder / LEAVES

    def pid() -> int:
        return brokers.pids(homes[1])["broker"]

    try:
        namesrv = brokers.start(version, homes[0], {"brokerName": STAYS}).namesrv
        leaving = brokers.start(version, homes[1], {"brokerName": LEAVES}, join=namesrv)
        yield Pair(namesrv, leaving.broker, pid, partial(brokers.start_broker, homes[1]))
    finally:
        for home in reversed(homes):
            brokers.stop(home)


@contextmanager
def triomq_pair(folder: Path) -> Iterator[Pair]:
    """Run two of our brokers under a name server of ours."""
    running: dict[str, Broker] = {}

    def start(name: str, role: str, listen: str, *options: str) -> Broker:
        home = folder / name
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "triomq.cli", role, "--listen", listen, "--store", str(home / "store")]
        running[name] = start_broker([*command, "--json", *options], home)
        return running[name]

    def join(name: str, listen: str) -> str:
        return start(name, "broker", listen, "--broker-name", name, "--register", namesrv).broker

    def restart() -> None:
        running[LEAVES].kill()  # it is dead: take its exit code
        join(LEAVES, leaving)

    try:
        namesrv = start("namesrv", "namesrv", _FREE).namesrv
        join(STAYS, _FREE)
        leaving = join(LEAVES, _FREE)
        yield Pair(namesrv, leaving, lambda: running[LEAVES].pid, restart)
    finally:
        for process in running.values():
            process.kill()
