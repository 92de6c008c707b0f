"""The life of a command that serves until a signal ends it."""

import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar, cast

import trio

from triomq import __version__
from triomq.broker.addresses import Address, Network, parse_networks
from triomq.broker.config import DEFAULT_METRICS, TlsConfig
from triomq.cli.arguments.options import Options, ServerOptions
from triomq.cli.errors import UsageError
from triomq.cli.process import end_at_next_signal, raise_open_files_limit, settle_garbage_collector, stop_signals
from triomq.common.logs import reopen_log_file
from triomq.protocol.errors import ConfigError

LOGGER: Final = logging.getLogger("triomq.cli.serving")

T = TypeVar("T")
Server = TypeVar("Server")


def serve_until_signal(
    server: AbstractAsyncContextManager[Server],
    describe: Callable[[Server], tuple[Mapping[str, Any], str]],
    options: Options,
    *,
    ends_with_stdin: bool = False,
) -> None:
    """Open a server, write a line when it is ready, and close it at the first signal; a second ends it at once.

    With a log file SIGHUP only reopens that.

    Args:
        server: what to open.
        describe: returns what the line says of it: the members of ``--json``, and the text.
        options: of the command.
        ends_with_stdin: take the end of stdin as a signal.
    """

    def announce(running: Server) -> None:
        members, text = describe(running)
        if options.json:
            _write_ready_line(json.dumps({"event": "ready", **members, "pid": os.getpid()}, separators=(",", ":")))
        else:
            _write_ready_line(f"triomq {__version__} is ready: {text}")

    raise_open_files_limit()
    trio.run(_serve, server, announce, options.log_file is not None, ends_with_stdin)


async def _serve(
    server: AbstractAsyncContextManager[Server],
    announce: Callable[[Server], None],
    reopens_log: bool,  # trio.run passes no keywords
    ends_with_stdin: bool,
) -> None:
    with stop_signals() as signals, trio.CancelScope() as starting:
        life = _Life(starting, reopens_log=reopens_log)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.watch, signals)
            if ends_with_stdin:
                nursery.start_soon(life.watch_stdin)
            async with server as running:
                life.is_ready = True
                settle_garbage_collector()
                announce(running)
                await life.stop.wait()
            nursery.cancel_scope.cancel()


class NetworkSettings(TypedDict):
    """Settings of both servers: what is open to whom, and how that is recorded and encrypted."""

    insecure: bool
    admin_listen: Address | None
    brokers_from: tuple[Network, ...]
    metrics: Address | None
    audit: Path | None
    tls: TlsConfig | None


def network_settings(options: ServerOptions) -> NetworkSettings:
    """Convert the options that protect a server to settings.

    Raises:
        UsageError: one is malformed, or options of TLS contradict each other.
    """
    metrics = options.metrics
    return NetworkSettings(
        insecure=options.insecure,
        admin_listen=_read("--admin-listen", Address.parse, options.admin_listen),
        brokers_from=_read("--brokers-from", parse_networks, options.brokers_from) or (),
        metrics=DEFAULT_METRICS if metrics is None else _read("--metrics", Address.parse, metrics.removeprefix("off")),
        audit=Path(options.audit).expanduser() if options.audit else None,
        tls=tls_config(options),
    )


def _read(option: str, read: Callable[[str], T], text: str | None) -> T | None:
    """Return the value of an option, ``None`` if it has none; an error begins with its name."""
    try:
        return read(text) if text else None
    except ConfigError as exc:
        raise UsageError(f"{option}: {exc}") from None


def tls_config(options: ServerOptions) -> TlsConfig | None:
    """Convert the options of TLS to settings.

    Raises:
        UsageError: they contradict each other.
    """
    cert, key = options.tls_cert, options.tls_key
    if options.tls == "disabled":
        return None
    if cert is None or key is None:
        if (cert, key, options.tls, options.tls_client_ca, options.tls_client_auth) != (None,) * 5:
            missing = " and ".join(name for name, file in (("--tls-cert", cert), ("--tls-key", key)) if file is None)
            raise UsageError(f"TLS needs both a certificate and its private key: add {missing}")
        return None
    ca = options.tls_client_ca
    client_auth = options.tls_client_auth or ("none" if ca is None else "require")
    if (ca is None) != (client_auth == "none"):
        what = "needs --tls-client-ca FILE" if ca is None else "asks for no certificates: leave out --tls-client-ca"
        raise UsageError(f"--tls-client-auth {client_auth}: {what}")
    return TlsConfig(
        cert=Path(cert).expanduser(),
        key=Path(key).expanduser(),
        client_ca=None if ca is None else Path(ca).expanduser(),
        client_auth=cast("Literal['none', 'optional', 'require']", client_auth),  # argparse has checked it
        enforcing=options.tls == "enforcing",
    )


class _Life:
    """Handles signals: the first one cancels the start of the server, or stops it in order once it is ready."""

    def __init__(self, starting: trio.CancelScope, *, reopens_log: bool) -> None:
        self._reopens_log = reopens_log
        self.is_ready = False
        self.stop: Final = trio.Event()
        self._starting = starting

    async def watch(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number == signal.SIGHUP and self._reopens_log:
                reopen_log_file()
                LOGGER.info("log file reopened")
                continue
            LOGGER.info("stopping signal=%s", signal.Signals(number).name)
            self._end()
            return

    async def watch_stdin(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
            async for _ in stdin:
                pass
        LOGGER.info("stopping reason=stdin ended")
        self._end()

    def _end(self) -> None:
        end_at_next_signal()
        if self.is_ready:
            self.stop.set()
        else:
            self._starting.cancel()


def _write_ready_line(line: str) -> None:
    """Write the line that scripts wait for."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        LOGGER.warning("ready line not written: stdout is closed")
