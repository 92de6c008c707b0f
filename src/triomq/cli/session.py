"""Runs the client commands: signals, the shared client settings."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import trio

from triomq.cli.arguments.client_options import ClientOptions
from triomq.cli.exit_codes import SIGNAL_BASE
from triomq.cli.signals import end_at_next_signal, stop_signals
from triomq.client.config import ClientConfig
from triomq.client.connection.credentials import load_credentials
from triomq.client.nursery import open_service_nursery


class Interrupt:
    """The signal that asked a command to end, if one did.

    Attributes:
        came: set with the first signal.
        exit_code: what the command's exit code is then; 0 before.
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


Command = Callable[[Interrupt], Awaitable[int]]
"""Does the work and returns an exit code; ends by itself soon after the interrupt came."""


def run_command(command: Command) -> int:
    """Run a command that ends in its own way when a signal comes; return its exit code, or the signal's."""
    return trio.run(_run_watched, command)


def run_until_signal(work: Callable[[], Awaitable[int]]) -> int:
    """Run work that is cancelled when a signal comes; return its exit code, or the signal's."""

    async def command(interrupt: Interrupt) -> int:
        with trio.CancelScope() as scope:
            async with open_service_nursery() as nursery:
                nursery.start_soon(cancel_at, interrupt.came, scope)
                return await work()
        return interrupt.exit_code  # work was cancelled

    return run_command(command)


async def cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    """Cancel a scope when an event comes."""
    await event.wait()
    scope.cancel()


async def _run_watched(command: Command) -> int:
    interrupt = Interrupt()
    with stop_signals() as signals:
        async with open_service_nursery() as nursery:
            nursery.start_soon(interrupt.watch, signals)
            code = await command(interrupt)
    return interrupt.exit_code or code


def client_config(options: ClientOptions) -> ClientConfig:
    """Return the settings of connections that a command line asks for."""
    return ClientConfig(
        advertise="as-dialled" if options.as_dialled else "as-advertised",
        credentials=None if options.credentials is None else load_credentials(options.credentials),
    )
