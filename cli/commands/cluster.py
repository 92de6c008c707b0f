"""``triomq cluster``: run a name server and several brokers, each a process, until a signal ends them all."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from triomq.broker.addresses import Address
from triomq.broker.config import NameServerConfig, default_store_root
from triomq.broker.name_server import open_name_server
from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import BrokerOptions, ClusterOptions
from triomq.cli.commands.broker import check_host, parse_address
from triomq.cli.configuration import collect, typed_settings
from triomq.cli.errors import IncompleteError, UsageError
from triomq.cli.serving import serve_until_signal
from triomq.common.broker_settings import OPTIONS, SECURITY

LOGGER: Final = logging.getLogger("triomq.cli.commands.cluster")

_MAX_BROKERS: Final = 26
_PORT_DISTANCE: Final = 10
_OURS: Final = ("listen", "namesrv_listen", "register", "listener", "root", "broker_name", "admin_listen", "audit")
_STOP_S: Final = 30.0
_READY_LINE_BYTES: Final = 64 * 1024


def run(options: ClusterOptions) -> None:
    """Serve until a signal; the first one stops all in order, a second one the name server at once.

    Raises:
        ConfigError: an invalid setting, or an address that cannot be bound.
        StoreError: the folder cannot be used.
        IncompleteError: a broker ended; the others have been stopped.
    """
    if options.brokers > _MAX_BROKERS:
        raise UsageError(f"--brokers {options.brokers}: at most {_MAX_BROKERS}")
    broker_options = _broker_options(options.options)
    root = Path(options.store).expanduser() if options.store else default_store_root().with_name("cluster")
    cluster = Cluster(options, broker_options, root)
    serve_until_signal(open_cluster(cluster), _describe, options)
    LOGGER.info("stopped store=%s", root)


def _broker_options(words: tuple[str, ...]) -> BrokerOptions:
    """Read the options for all brokers.

    Raises:
        UsageError: one of them is set by the cluster.
        SystemExit: they cannot be read; the text has been written.
    """
    options = parse(["broker", *words])
    if not isinstance(options, BrokerOptions):
        raise UsageError(
            f"{' '.join(words)}: only options of triomq broker may be behind --, not triomq {options.command}"
        )
    for row in OPTIONS:
        if row.field in _OURS and row.field in options.settings:
            raise UsageError(f"--{row.key}: it differs from broker to broker, so it cannot be behind --")
    return options


class Cluster:
    """The brokers of a running cluster; served by :func:`open_cluster`.

    Attributes:
        brokers, metrics: addresses of each broker that is ready, by name.
        name_server: settings of the name server.
        root: folder of all stores.
        namesrv: where the name server listens.
    """

    namesrv: Address

    def __init__(self, options: ClusterOptions, broker_options: BrokerOptions, root: Path) -> None:
        """Check the addresses; nothing is opened.

        Raises:
            ConfigError: an address is malformed, its host is unknown, or others would reach the name server.
        """
        self.root: Final = root
        self.brokers: Final[dict[str, Address]] = {}
        self.metrics: Final[dict[str, str]] = {}
        self.stopping: Final = trio.Event()
        self._options = options
        self._first = parse_address("--listen", options.listen)
        namesrv = parse_address("--namesrv-listen", options.namesrv_listen)
        check_host(self._first)
        check_host(namesrv)
        security = {row.field for row in SECURITY}
        given = {field: value for field, (value, _) in collect(broker_options).items() if field in security}
        self.name_server: Final = NameServerConfig(
            root=root / "namesrv", listen=namesrv, insecure=options.insecure, tls=typed_settings(given, SECURITY)["tls"]
        )

    def commands(self) -> dict[str, list[str]]:
        """Return the command line of each broker by its name."""
        options, host, first = self._options, self._first.host, self._first.port
        register = Address("127.0.0.1", self.namesrv.port) if self.namesrv.is_wildcard else self.namesrv
        common = ["--json", "--end-with-stdin", "--register", str(register)]
        common += ["--insecure"] if options.insecure else []
        common += ["--log-level", options.log_level, "--log-format", options.log_format]
        common += ["--log-max-size", str(options.log_max_size), "--log-backups", str(options.log_backups)]
        commands = {}
        for number in range(options.brokers):
            name = f"broker-{chr(ord('a') + number)}"
            listen = Address(host, first + _PORT_DISTANCE * number if first else 0)
            own = ["--broker-name", name, "--listen", str(listen), "--store", str(self.root / name)]
            own += ["--log-file", str(self.log(name)), "--metrics", "127.0.0.1:0"]
            commands[name] = [sys.executable, "-m", "triomq.cli", "broker", *common, *own, *options.options]
        return commands

    def log(self, name: str) -> Path:
        """Return the log file of a broker."""
        return self.root / f"{name}.log"

    async def start_broker(self, nursery: trio.Nursery, name: str, command: list[str]) -> None:
        """Start a broker and wait until it is ready.

        Raises:
            IncompleteError: it ended.
        """
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                command,
                stdin=subprocess.PIPE,  # it ends when this process closes it, or ends
                stdout=subprocess.PIPE,
                check=False,
                start_new_session=True,  # Ctrl-C in the terminal is for this process only
            )
        )
        assert process.stdout is not None  # it is a pipe
        line = b""
        while not line.endswith(b"\n") and len(line) < _READY_LINE_BYTES:
            data = await process.stdout.receive_some()
            if not data:
                raise await self._ended(name, process)
            line += data
        ready = json.loads(line)
        self.brokers[name] = Address.parse(ready["broker"])
        if "metrics" in ready:
            self.metrics[name] = ready["metrics"]
        nursery.start_soon(self._watch, name, process)

    async def _watch(self, name: str, process: trio.Process) -> None:
        """Stop a broker when the cluster stops.

        Raises:
            IncompleteError: it ended before.
        """

        async def close() -> None:
            assert process.stdin is not None  # it is a pipe
            await self.stopping.wait()
            await process.stdin.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await process.wait()
            nursery.cancel_scope.cancel()
        if not self.stopping.is_set():
            raise await self._ended(name, process)

    async def _ended(self, name: str, process: trio.Process) -> IncompleteError:
        code = await process.wait()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return IncompleteError(f"{name} ended with {how}; its log is {self.log(name)}")


@asynccontextmanager
async def open_cluster(cluster: Cluster) -> AsyncGenerator[Cluster]:
    """Run the name server and the brokers until the block ends.

    Raises:
        ConfigError: an address cannot be bound.
        StoreError: the name server's folder cannot be used.
        IncompleteError: a broker ended; the others have been stopped.
    """
    async with open_name_server(cluster.name_server) as name_server:
        cluster.namesrv = name_server.address
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as starting:
                for name, command in cluster.commands().items():
                    starting.start_soon(cluster.start_broker, nursery, name, command)
            yield cluster
            cluster.stopping.set()
            nursery.cancel_scope.deadline = trio.current_time() + _STOP_S


def _describe(cluster: Cluster) -> tuple[dict[str, Any], str]:
    brokers = {name: str(address) for name, address in sorted(cluster.brokers.items())}
    namesrv, store = str(cluster.namesrv), str(cluster.root)
    text = ", ".join(f"{name} {address}" for name, address in brokers.items())
    text = f"name server {namesrv}, {text}, store {store}, pid {os.getpid()}"
    metrics = dict(sorted(cluster.metrics.items()))
    return {"namesrv": namesrv, "brokers": brokers, "metrics": metrics, "store": store}, text
