"""The typed options of all commands, and of the servers.

Those of the client commands are in another module: each class costs start-up time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of all commands."""

    json: bool
    log_level: str
    log_file: str | None
    log_format: str
    log_max_size: int
    log_backups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions(Options):
    """``triomq completion``."""

    shell: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions(Options):
    """``triomq init``."""

    dir: str
    acl: bool
    tls: bool
    host: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(Options):
    """Options of both servers.

    Attributes:
        settings: fields of the server's configuration, or ``StoreConfig``, that were given; others keep their defaults.
    """

    insecure: bool
    admin_listen: str | None
    brokers_from: str | None
    metrics: str | None
    audit: str | None
    tls: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_client_ca: str | None
    tls_client_auth: str | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions(ServerOptions):
    """``triomq broker``."""

    listen: str
    namesrv_listen: str | None
    register: str | None
    advertise: str | None
    listener: tuple[str, ...]
    store: str | None
    durability: str
    acl: str | None
    quotas: str | None
    broker_name: str
    delay_levels: str | None
    end_with_stdin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvOptions(ServerOptions):
    """``triomq namesrv``."""

    listen: str
    store: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(Options):
    """``triomq cluster``."""

    brokers: int
    listen: str
    namesrv_listen: str
    store: str | None
    insecure: bool
    options: tuple[str, ...]
