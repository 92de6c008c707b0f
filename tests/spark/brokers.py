"""Several brokers as processes, with a relay in front of each, known to one name server."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.processes import Broker, start_triomq
from tests.spark.harness import Topics, make_topic
from tests.spark.tap import OneNameServer, Tap
from triomq.client.sync import Admin


class Brokers:
    """Running brokers.

    Attributes:
        names: of the brokers.
        taps: the relay of each.
        topics: what looks at all of them.
    """

    def __init__(self, stack: ExitStack, folder: Path, names: Sequence[str]) -> None:
        """Start them; ``stack`` ends them."""
        self.names = tuple(names)
        self._folder = folder
        self.taps = {name: stack.enter_context(Tap()) for name in names}
        self._running: dict[str, Broker] = {}
        stack.callback(self._stop)
        for name, tap in self.taps.items():
            (folder / name).mkdir()
            self._start(name)
            tap.target = self._running[name].broker
        self._name_servers = {name: broker.namesrv for name, broker in self._running.items()}
        name_server = stack.enter_context(OneNameServer(list(self._name_servers.values())))
        self.topics = stack.enter_context(Topics(name_server.address))

    def make(self, name: str, queues: int, brokers: Sequence[str]) -> str:
        """Make a topic on some brokers, or give it more queues there."""
        for broker in brokers:
            with Admin(namesrv=self._name_servers[broker]) as admin:
                make_topic(admin, name, queues)
        return name

    def requests(self) -> "Counter[int]":
        return sum((tap.requests for tap in self.taps.values()), Counter())

    def kill(self, name: str) -> None:
        """End a broker as a crash would."""
        self._running[name].kill()

    def restart(self, name: str) -> None:
        """Start a broker that was killed: the same addresses, the same store."""
        killed = self._running[name]
        self._start(name, "--listen", killed.broker, "--namesrv-listen", killed.namesrv)

    def _start(self, name: str, *options: str) -> None:
        relay = ("--broker-name", name, "--advertise", self.taps[name].address)
        self._running[name] = start_triomq(self._folder / name, *relay, *options)

    def _stop(self) -> None:
        for broker in self._running.values():
            broker.stop()
