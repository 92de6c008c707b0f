"""The settings of a dashboard, and the address where it listens."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from triomq.client.config import ClientConfig, join_address
from triomq.protocol.errors import ConfigError

DEFAULT_PORT: Final = 8233
_MAX_PORT: Final = 0xFFFF
_MIN_PASSWORD: Final = 8


class Address(NamedTuple):
    """Where the dashboard listens; port 0: any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listen(text: str) -> Address:
    """Read ``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises:
        ConfigError: it has another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ConfigError(f"--listen {text!r}: write HOST:PORT, with port 0 for any free port")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def read_password(path: Path) -> str:
    """Return the password in a file: its first line.

    Raises:
        ConfigError: the file cannot be read, or its first line is too short.
    """
    try:
        with path.open(encoding="utf-8") as file:
            password = file.readline(1024).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise ConfigError(f"--password-file: cannot read {path}: {reason}") from None
    if len(password) < _MIN_PASSWORD:
        raise ConfigError(f"--password-file: the first line of {path} must have at least {_MIN_PASSWORD} characters")
    return password


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a dashboard.

    Attributes:
        namesrv: the name servers of the cluster.
        client: how to connect to it; with the dashboard's own account, if it has one.
        listen: ``None``: 127.0.0.1:8233, or any free port if that one is taken.
        password: a fixed one; ``None``: a token that the ready line shows works once.
        read_only: refuse all changes.
        cert, key: serve HTTPS with this certificate.
        insecure: listen beyond loopback without TLS.
        answer_s: how long a server may take to answer; a page that fails takes half a second more.
        options: words that the command lines on the pages end with, such as ``--namesrv``.

    Raises:
        ConfigError: the settings would send passwords and bodies unprotected over a network.
    """

    namesrv: str | Sequence[str]
    client: ClientConfig
    listen: Address | None = None
    password: str | None = None
    read_only: bool = False
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False
    answer_s: float = 1.5
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("HTTPS needs both a certificate and its private key: --https-cert and --https-key")
        if self.listen is not None and not (self.listen.is_loopback or self.cert is not None or self.insecure):
            raise ConfigError(
                f"--listen {self.listen}: beyond loopback the dashboard needs HTTPS (--https-cert, --https-key); "
                "or give --insecure if the network is trusted, or a proxy in front of it has HTTPS"
            )
