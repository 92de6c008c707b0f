"""The brokers of a run, and the name server that they register with."""

import socket
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.processes import Broker, start_member, start_name_server, start_triomq

_BROKER_OPTIONS: Final = (
    "--commit-log-file-size", "16777216",
    "--consume-queue-file-size", "20000",
    "--delay-levels", " ".join(["1s"] * 18),
    "--transaction-timeout", "1",
    "--transaction-check-interval", "0.5",
    "--transaction-check-max", "10",
)  # fmt: skip
#: Below Linux's ephemeral ports: an outgoing connection could take one of those while the broker is down.
_PORTS: Final = range(20_000, 32_000)


class Brokers:
    """Brokers that are stopped or killed, and start again where they were.

    One has the name server in itself, which ends with it.  Several register with one that comes and goes likewise.

    Attributes:
        count: of the brokers; also the number of the name server of several.
        namesrv: address of the name server.
    """

    def __init__(self, folder: Path, count: int) -> None:
        """Take settings; nothing is started yet."""
        self.count = count
        self._folder = folder
        self._listen = [f"127.0.0.1:{port}" for port in _free_ports(count + 1)]
        self.namesrv = self._listen[-1]
        self._running: dict[int, Broker] = {}
        self._lives = 0

    def start(self) -> None:
        """Start all."""
        for number in reversed(range(self.count if self.count == 1 else self.count + 1)):
            self._running[number] = self._start(number)

    def restart(self, number: int, *, is_crash: bool) -> None:
        """Stop one or kill it, and start it again.

        Raises:
            AssertionError: it did not stop in order, or does not start.
        """
        if is_crash:
            self._running[number].kill()
        else:
            self._running[number].stop()
        self._running[number] = self._start(number)

    def _start(self, number: int) -> Broker:
        is_name_server = number == self.count
        folder = self._folder / ("namesrv" if is_name_server else f"broker-{number}")
        self._lives += 1
        if (log := folder / "broker.log").exists():
            log.rename(folder / f"broker-{self._lives}.log")
        if is_name_server:
            return start_name_server(folder, "--listen", self.namesrv)
        options = ("--listen", self._listen[number], *_BROKER_OPTIONS)
        if self.count > 1:
            return start_member(folder, folder.name, self.namesrv, *options)
        return start_triomq(folder, "--namesrv-listen", self.namesrv, "--broker-name", folder.name, *options)

    def stop(self) -> None:
        """Stop all.

        Raises:
            AssertionError: one did not stop in order.
        """
        for _, process in sorted(self._running.items()):
            process.stop()

    def kill(self) -> None:
        """Kill what still runs."""
        for process in self._running.values():
            if not process.stopped:
                process.kill()


def _free_ports(count: int) -> Iterator[int]:
    """Find unused ports; a broker opens its port again at each restart."""
    random = SystemRandom()
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
    return iter(found)
