"""Run the client commands: signals, settings of the connections."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Final, Literal, TypeVar, cast

import trio

from triomq.cli.arguments.options import ClientOptions
from triomq.cli.errors import SIGNAL_BASE, ExitCode
from triomq.cli.run import end_at_next_signal, stop_signals
from triomq.client import Admin, ClientInstance
from triomq.client.admin.broker_answers import known_brokers
from triomq.client.config import ClientConfig, TlsConfig, load_credentials
from triomq.client.nursery import open_service_nursery

_O = TypeVar("_O")
_C = TypeVar("_C", bound=ClientOptions)


class Interrupt:
    """The signal that asked a command to end.

    Attributes:
        came: set by the first signal.
        exit_code: the command's exit code after that signal; 0 before.
    """

    def __init__(self) -> None:
        self.came: Final = trio.Event()
        self.exit_code = 0

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Wait for the first signal; the second one ends the process at once."""
        async for number in signals:
            end_at_next_signal()
            self.exit_code = SIGNAL_BASE + number
            self.came.set()
            return


def interruptible_command(work: Callable[[_O, Interrupt], Awaitable[int | None]]) -> Callable[[_O], int]:
    """Turn a coroutine function into the runner of a command that handles a signal itself, and ends soon after it.

    As for all runners, ``None`` means success.
    """

    async def run_watched(options: _O) -> int:
        interrupt = Interrupt()
        with stop_signals() as signals:
            async with open_service_nursery() as nursery:
                nursery.start_soon(interrupt.watch, signals)
                code = await work(options, interrupt)
        return interrupt.exit_code or code or ExitCode.OK

    @wraps(work)
    def run(options: _O) -> int:
        return trio.run(run_watched, options)

    return run


def client_command(work: Callable[[_O], Awaitable[int | None]]) -> Callable[[_O], int]:
    """Turn a coroutine function into the runner of a command that a signal cancels."""

    @interruptible_command
    @wraps(work)
    async def run(options: _O, interrupt: Interrupt) -> int | None:
        with trio.CancelScope() as scope:
            async with open_service_nursery() as nursery:
                nursery.start_soon(cancel_at, interrupt.came, scope)
                return await work(options)
        return interrupt.exit_code  # work was cancelled

    return run


def admin_command(work: Callable[[_C, Admin], Awaitable[int | None]]) -> Callable[[_C], int]:
    """Turn a coroutine function into the runner of a command that uses an administration client while it is open."""

    @client_command
    @wraps(work)
    async def run(options: _C) -> int | None:
        async with open_admin(options) as admin:
            return await work(options, admin)

    return run


async def cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel a scope once an event is set."""
    await event.wait()
    scope.cancel()


def open_admin(options: ClientOptions) -> Admin:
    """Return the administration client of a command."""
    return Admin(namesrv=options.namesrv, config=client_config(options))


@asynccontextmanager
async def open_brokers(options: ClientOptions, address: str | None) -> AsyncGenerator[tuple[ClientInstance, list[str]]]:
    """Connect; return the connections and ``address``, or without one the addresses of all brokers.

    Raises:
        NameServerError: no name server answered, or it knows no broker.
    """
    async with ClientInstance(options.namesrv, client_config(options)) as instance:
        yield instance, [address] if address else [broker.address for broker in await known_brokers(instance)]


def client_config(options: ClientOptions) -> ClientConfig:
    """Return the settings of a command's connections."""
    tls: bool | TlsConfig = options.tls
    files = options.tls_ca, options.tls_cert, options.tls_key
    if options.tls_verify is not None or files != (None, None, None):
        verify = cast("Literal['host', 'ca', 'none']", options.tls_verify or "host")  # argparse has checked it
        tls = TlsConfig(ca=options.tls_ca, cert=options.tls_cert, key=options.tls_key, verify=verify)
    return ClientConfig(
        connect=False,  # a command sends requests at once
        advertise="as-dialled" if options.as_dialled else "as-advertised",
        credentials=None if options.credentials is None else load_credentials(options.credentials),
        namespace=options.namespace,
        tls=tls,
    )
