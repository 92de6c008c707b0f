"""The typed options of the client commands."""

from dataclasses import dataclass
from datetime import datetime

from triomq.cli.arguments.options import Options
from triomq.cli.arguments.values import StartAt
from triomq.protocol.filters.expressions import Sql


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """Options of all client commands; ``ping`` has no others."""

    namesrv: str
    as_dialled: bool
    credentials: str | None
    namespace: str | None
    tls: bool
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_verify: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions(ClientOptions):
    """``triomq produce``."""

    topic: str
    group: str
    tag: str | None
    key: tuple[str, ...]
    properties: tuple[tuple[str, str], ...]
    delay: float
    deliver_at: datetime | None
    json_lines: bool
    count: int | None
    size: int
    rate: float | None
    batch: int | None
    in_flight: int | None
    trace: bool
    keep_going: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions(ClientOptions):
    """``triomq request``."""

    topic: str
    body: str
    group: str
    tag: str | None
    key: tuple[str, ...]
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions(ClientOptions):
    """``triomq consume``."""

    topic: str
    group: str | None
    orderly: bool
    broadcast: bool
    instance_name: str | None
    tag: str
    sql: Sql | None
    start: StartAt
    count: int | None
    timeout: float | None
    long: bool
    trace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions(ClientOptions):
    """``triomq topic list`` and ``triomq group list``."""

    all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreateOptions(ClientOptions):
    """``triomq topic create``."""

    topic: str
    queues: int | None
    permission: str | None
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUpdateOptions(ClientOptions):
    """``triomq topic update``."""

    topic: str
    queues: int | None
    read_queues: int | None
    write_queues: int | None
    permission: str | None
    order: str | None
    type: str | None
    broker: str | None
    force: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleteOptions(ClientOptions):
    """``triomq topic delete``."""

    topic: str
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShowOptions(ClientOptions):
    """``triomq topic show``."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCreateOptions(ClientOptions):
    """``triomq group create``."""

    group: str
    retries: int | None
    consume: str | None
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleteOptions(ClientOptions):
    """``triomq group delete``."""

    group: str
    keep_offsets: bool
    force: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShowOptions(ClientOptions):
    """``triomq group show``."""

    group: str
    topic: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResetOffsetOptions(ClientOptions):
    """``triomq group reset-offset``."""

    group: str
    topic: str
    to: StartAt
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReplayOptions(ClientOptions):
    """``triomq group replay``."""

    group: str
    into: str
    begin: datetime
    end: datetime | None
    speed: float  # 0: as fast as possible
    topic: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqListOptions(ClientOptions):
    """``triomq dlq list``."""

    group: str | None
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqRedriveOptions(ClientOptions):
    """``triomq dlq redrive``."""

    group: str
    limit: int | None
    again: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions(ClientOptions):
    """``triomq transaction commit``, ``rollback`` and ``check``."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatusOptions(ClientOptions):
    """``triomq broker status``."""

    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetOptions(ClientOptions):
    """``triomq broker set``."""

    settings: list[str]
    broker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShowOptions(ClientOptions):
    """``triomq message show``."""

    message_id: str
    topic: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTraceOptions(ClientOptions):
    """``triomq message trace``."""

    message_id: str
    trace_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecallOptions(ClientOptions):
    """``triomq message recall``."""

    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFindOptions(ClientOptions):
    """``triomq message find``."""

    topic: str
    key: str | None
    unique_key: str | None
    begin: StartAt
    end: StartAt
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AclListOptions(ClientOptions):
    """``triomq acl list``."""

    broker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDeleteOptions(AclListOptions):
    """``triomq acl delete``."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCheckOptions(AclDeleteOptions):
    """``triomq acl check``."""

    topic: str | None
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSetOptions(AclDeleteOptions):
    """``triomq acl set``."""

    secret: str | None
    admin: str | None
    address: str | None
    topic_default: str | None
    group_default: str | None
    topic: tuple[str, ...]
    group: tuple[str, ...]
