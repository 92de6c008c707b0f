"""The typed options of all commands, and of the servers.

Those of the client commands are in another module: each class costs start-up time.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of all commands."""

    json: bool
    log_level: str
    log_file: str | None
    log_format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions(Options):
    """``triomq completion``."""

    shell: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(Options):
    """Options of both servers."""

    insecure: bool
    tls: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_client_ca: str | None
    tls_client_auth: str | None


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
    acl_like_apache: bool
    cluster_name: str
    broker_name: str
    commit_log_file_size: int
    consume_queue_file_size: int
    retention_hours: float
    retention_bytes: int | None
    delete_when: tuple[int, ...]
    disk_max_used_ratio: int
    disk_clean_ratio: int
    disk_full_ratio: int
    delay_levels: str | None
    timer_max_delay: float
    transaction_timeout: float
    transaction_check_interval: float
    transaction_check_max: int
    stall_after: float
    no_auto_create_topic: bool
    no_index: bool
    index_slots: int
    index_units: int
    end_with_stdin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvOptions(ServerOptions):
    """``triomq namesrv``."""

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
