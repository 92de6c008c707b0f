"""The life of a command that serves until a signal ends it."""

import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import trio

from triomq import __version__
from triomq.broker.addresses import Address, parse_networks
from triomq.broker.config import DEFAULT_METRICS, TlsConfig
from triomq.cli.arguments.parser import Options
from triomq.cli.errors import UsageError
from triomq.cli.output import write_text
from triomq.cli.run import end_at_next_signal, stop_signals
from triomq.common.logs import reopen_log_file
from triomq.protocol.errors import ConfigError

LOGGER: Final = logging.getLogger("triomq.cli.serving")

#: New objects before Python looks for garbage cycles.  A broker makes many short-lived objects and hardly any cycle:
#: with Python's 700 it would search several times in each step.
_GC_THRESHOLD: Final = 20_000
#: Then how many of these searches before one among all that was made since: of 60,000 objects each takes some 20 ms.
_GC_MIDDLE: Final = 3
_GC_ALL: Final = 130
_TLS: Final = ("tls", "tls_cert", "tls_key", "tls_client_ca", "tls_client_auth")

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
    raise_open_files_limit()
    trio.run(_serve, server, describe, options, ends_with_stdin)


async def _serve(
    server: AbstractAsyncContextManager[Server],
    describe: Callable[[Server], tuple[Mapping[str, Any], str]],
    options: Options,
    ends_with_stdin: bool,  # trio.run passes no keywords
) -> None:
    with stop_signals() as signals, trio.CancelScope() as starting:
        life = _Life(starting, reopens_log=options.log_file is not None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.watch, signals)
            if ends_with_stdin:
                nursery.start_soon(life.watch_stdin)
            async with server as running:
                life.is_ready = True
                settle_garbage_collector()
                members, text = describe(running)
                line = f"triomq {__version__} is ready: {text}"
                if options.json:
                    line = json.dumps({"event": "ready", **members, "pid": os.getpid()}, separators=(",", ":"))
                try:
                    write_text(line + "\n")
                except BrokenPipeError:
                    LOGGER.warning("ready line not written: stdout is closed")
                await life.stop.wait()
            nursery.cancel_scope.cancel()


def network_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those that protect a server, a broker or a name server, as its configuration has them.

    Raises:
        UsageError: one is malformed, or those of TLS contradict each other.
    """
    metrics: str | None = given.get("metrics")
    others = {field: value for field, value in given.items() if field not in _TLS}
    return others | {
        "insecure": given.get("insecure", False),
        "admin_listen": _read("--admin-listen", Address.parse, given.get("admin_listen")),
        "brokers_from": _read("--brokers-from", parse_networks, given.get("brokers_from")) or (),
        "metrics": DEFAULT_METRICS
        if metrics is None
        else _read("--metrics", Address.parse, metrics.removeprefix("off")),
        "audit": Path(given["audit"]).expanduser() if given.get("audit") else None,
        "tls": tls_config(given),
    }


def _read(option: str, read: Callable[[str], T], text: str | None) -> T | None:
    """Return the value of an option, ``None`` if it has none; an error begins with its name."""
    try:
        return read(text) if text else None
    except ConfigError as exc:
        raise UsageError(f"{option}: {exc}") from None


def tls_config(given: Mapping[str, Any]) -> TlsConfig | None:
    """Convert the settings of TLS.

    Raises:
        UsageError: they contradict each other.
    """
    mode, cert, key, ca, client_auth = map(given.get, _TLS)
    if mode == "disabled":
        return None
    if cert is None or key is None:
        if any(field in given for field in _TLS):
            missing = " and ".join(name for name, file in (("--tls-cert", cert), ("--tls-key", key)) if file is None)
            raise UsageError(f"TLS needs both a certificate and its private key: add {missing}")
        return None
    client_auth = client_auth or ("none" if ca is None else "require")
    if (ca is None) != (client_auth == "none"):
        remedy = "needs --tls-client-ca FILE" if ca is None else "asks for no certificates: leave out --tls-client-ca"
        raise UsageError(f"--tls-client-auth {client_auth}: {remedy}")
    return TlsConfig(
        cert=Path(cert).expanduser(),
        key=Path(key).expanduser(),
        client_ca=None if ca is None else Path(ca).expanduser(),
        client_auth=cast("Literal['none', 'optional', 'require']", client_auth),  # its reader has checked it
        enforcing=mode == "enforcing",
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


def raise_open_files_limit() -> None:
    """Raise the limit of open files to the hard limit: each mapped file and each client needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as exc:
            LOGGER.info("limit of open files not raised limit=%d error=%s", soft, exc)


def settle_garbage_collector() -> None:
    """Exclude the objects that exist now, mostly modules, from garbage collection; free those excluded before."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, _GC_MIDDLE, _GC_ALL)
