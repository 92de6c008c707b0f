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
class BrokerOptions(Options):
    """``triomq broker``.

    Attributes:
        settings: the settings on the command line, by the fields of their rows.
    """

    settings: Mapping[str, Any]
    config: str | None
    print_config: bool
    end_with_stdin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvOptions(Options):
    """``triomq namesrv``; ``settings`` are those that it shares with a broker."""

    settings: Mapping[str, Any]
    listen: str
    store: str | None
    order_messages: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(Options):
    """``triomq cluster``."""

    brokers: int
    listen: str
    namesrv_listen: str
    store: str | None
    insecure: bool
    options: tuple[str, ...]
