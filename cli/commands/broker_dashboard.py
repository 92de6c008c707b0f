"""The dashboard of ``triomq broker --dashboard``: a child process, which ends with the broker, however that ends."""

import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

import trio

from triomq.broker import Address, BrokerConfig, KeptBroker
from triomq.cli.arguments.options import BrokerOptions
from triomq.cli.commands.dashboard import check_packages, write_address
from triomq.cli.errors import IncompleteError, UsageError

LOGGER: Final = logging.getLogger("triomq.cli.commands.broker_dashboard")

_STOP_S: Final = 5.0


class Served(NamedTuple):
    """A broker, and the address of its dashboard with the one-time token, if it has one."""

    kept: KeptBroker
    dashboard: str | None = None


@asynccontextmanager
async def without_dashboard(broker: AbstractAsyncContextManager[KeptBroker]) -> AsyncGenerator[Served, None]:
    """Run the broker alone."""
    async with broker as kept:
        yield Served(kept)


def check_dashboard(config: BrokerConfig) -> None:
    """Check that a dashboard could talk to the broker.

    Raises:
        UsageError: packages are missing, or the broker wants certificates of clients.
    """
    check_packages()
    if config.tls is not None and config.tls.enforcing and config.tls.client_auth == "require":
        raise UsageError(
            "--dashboard has no certificate, which --tls-client-auth require wants: start triomq dashboard with one"
        )


@asynccontextmanager
async def with_dashboard(
    broker: AbstractAsyncContextManager[KeptBroker], options: BrokerOptions
) -> AsyncGenerator[Served, None]:
    """Run the broker, and a dashboard as a child.

    Raises:
        IncompleteError: the dashboard did not start; the broker has been stopped.
    """
    async with broker as kept:
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    _command(kept, options),
                    stdin=subprocess.PIPE,  # it ends when this process closes it, or ends
                    stdout=subprocess.PIPE,
                    check=False,
                    start_new_session=True,  # Ctrl-C in the terminal is for this process only
                )
            )
            leaving = trio.Event()
            link: str = await nursery.start(partial(_follow, process, leaving, as_json=options.json))
            yield Served(kept, link)
            leaving.set()
            assert process.stdin is not None  # it is a pipe
            await process.stdin.aclose()
            nursery.cancel_scope.deadline = trio.current_time() + _STOP_S


def _command(kept: KeptBroker, options: BrokerOptions) -> list[str]:
    config = kept.broker.config
    namesrv = _dialled(kept.broker.addresses[config.listeners[0].name][1])
    if config.listeners[0].namesrv is None:
        namesrv = ";".join(map(str, config.register))
    if kept.broker.admin_address is not None:  # the other ports refuse administration
        namesrv = _dialled(kept.broker.admin_address)
    words = ["--json", "--end-with-stdin", "--namesrv", namesrv, "--log-format", options.log_format]
    words += ["--log-level", "warning"]
    if config.tls is not None and config.tls.enforcing:
        words += ["--tls-verify", "none"]  # it is this broker, at an address that it has itself
    return [sys.executable, "-m", "triomq.cli", "dashboard", *words]


def _dialled(address: Address) -> str:
    """Return where this machine reaches a listener."""
    return str(Address("127.0.0.1", address.port) if address.is_wildcard else address)


async def _follow(
    process: trio.Process, leaving: trio.Event, *, as_json: bool, task_status: trio.TaskStatus[str]
) -> None:
    """Start with the address of the dashboard once it serves, and pass on those for further browsers.

    The broker continues without a dashboard that ends.

    Raises:
        IncompleteError: the dashboard ended before it was ready.
    """
    assert process.stdout is not None  # it is a pipe
    is_ready, rest = False, b""
    async for data in process.stdout:
        *lines, rest = (rest + data).split(b"\n")
        for link in (json.loads(line)["dashboard"] for line in lines):
            if is_ready:
                await write_address(link, as_json=as_json)
            else:
                task_status.started(link)
                is_ready = True
    code = await process.wait()
    if not is_ready:
        raise IncompleteError(f"the dashboard ended with exit code {code} before it was ready")
    if not leaving.is_set():
        LOGGER.warning("dashboard ended code=%d", code)
