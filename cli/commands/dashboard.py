"""``triomq dashboard``: serve the pages until a signal ends it."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from triomq.cli.arguments.options import NAMESRV_ADDRESS, DashboardOptions
from triomq.cli.errors import UsageError
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
    serve_until_signal(open_dashboard(settings), _describe, options, ends_with_stdin=options.end_with_stdin)


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
