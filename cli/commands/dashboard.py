"""``triomq dashboard``: serve the pages until a signal ends it."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from triomq.cli.arguments.options import NAMESRV_ADDRESS, DashboardOptions
from triomq.cli.errors import UsageError
from triomq.cli.output import write_text
from triomq.cli.serving import serve_until_signal
from triomq.cli.session import client_config

if TYPE_CHECKING:
    from triomq.dashboard.serving import Dashboard

_PACKAGES: Final = ("starlette", "jinja2", "anycorn")


def run(options: DashboardOptions) -> None:
    """Serve until a signal.

    Raises:
        ConfigError: the packages of the extra are missing, or a setting is invalid, or the address cannot be bound.
    """
    check_packages()
    from triomq.dashboard.serving import open_dashboard  # needs the extra
    from triomq.dashboard.settings import Settings, parse_listen, read_password

    password = options.password_file
    settings = Settings(
        namesrv=options.namesrv,
        client=client_config(options),
        listen=None if options.listen is None else parse_listen(options.listen),
        password=None if password is None else read_password(Path(password).expanduser()),
        read_only=options.read_only,
        cert=_path(options.https_cert),
        key=_path(options.https_key),
        insecure=options.insecure,
        options=_connection_words(options),
    )
    served = _announced(open_dashboard(settings), as_json=options.json)
    serve_until_signal(served, _describe, options, ends_with_stdin=options.end_with_stdin)


@asynccontextmanager
async def _announced(
    opening: AbstractAsyncContextManager["Dashboard"], *, as_json: bool
) -> AsyncGenerator["Dashboard", None]:
    """Serve, and write another address each time when the one-time token was used."""

    async def announce() -> None:
        shown = dashboard.link
        while True:
            while dashboard.link == shown:
                await dashboard.gate.used.wait()
            shown = dashboard.link
            await write_address(shown, as_json=as_json)

    async with opening as dashboard, trio.open_nursery() as nursery:
        nursery.start_soon(announce)
        yield dashboard
        nursery.cancel_scope.cancel()


async def write_address(link: str, *, as_json: bool) -> None:
    """Write the address for the next browser, in a thread, because stdout may be a pipe that is not read.

    If its reader or its terminal has gone, the server continues.
    """
    line = json.dumps({"event": "address", "dashboard": link}) if as_json else f"dashboard for the next browser: {link}"
    with suppress(OSError):
        await trio.to_thread.run_sync(write_text, line + "\n", abandon_on_cancel=True)


def check_packages() -> None:
    """Check that the packages of the extra are there.

    Raises:
        UsageError: one is missing.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise UsageError(f"the dashboard needs {', '.join(missing)}: pip install 'triomq[dashboard]'")


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()


def _connection_words(options: DashboardOptions) -> tuple[str, ...]:
    """Return the options of the connection, for the command lines on the pages."""
    words: list[str] = []
    if options.namesrv != NAMESRV_ADDRESS:
        words += ("--namesrv", options.namesrv)
    for flag, is_given in (("--as-dialled", options.as_dialled), ("--tls", options.tls)):
        words += [flag] if is_given else []
    for name in ("credentials", "namespace", "tls_ca", "tls_cert", "tls_key", "tls_verify"):
        if value := getattr(options, name):
            words += (f"--{name.replace('_', '-')}", value)
    return tuple(words)


def _describe(dashboard: "Dashboard") -> tuple[dict[str, Any], str]:
    return {"dashboard": dashboard.link}, f"dashboard {dashboard.link}, pid {os.getpid()}"
