"""The options of the commands that reach brokers."""

from datetime import datetime
from typing import Final

from triomq.cli.arguments import values
from triomq.cli.arguments.options import NAMESRV_ADDRESS, Options, option
from triomq.cli.arguments.values import StartAt
from triomq.protocol.filters.filter_types import Sql
from triomq.protocol.names import TRACE_TOPIC

NAMESRV_VARIABLE: Final = "TRIOMQ_NAMESRV"
CREDENTIALS_VARIABLE: Final = "TRIOMQ_CREDENTIALS"
DEFAULT_PRODUCER_GROUP: Final = "triomq-produce"

_DRY_RUN: Final = option("--dry-run", "only print what would be done")
_ONE_BROKER: Final = option("--broker HOST:PORT", "only this broker (all in the name server)")
_GROUP: Final = option("--group GROUP", f"producer group ({DEFAULT_PRODUCER_GROUP})", DEFAULT_PRODUCER_GROUP)
_PERMISSION: Final = "--permission rw|r|w"


class ClientOptions(Options):
    """The options of all client commands."""

    namesrv: str = option(
        "--namesrv HOST:PORT",
        f"name server, several with ; between (${NAMESRV_VARIABLE}, else {NAMESRV_ADDRESS})",
        NAMESRV_ADDRESS,
        variable=NAMESRV_VARIABLE,
        read=values.parse_namesrv,
    )
    as_dialled: bool = option(
        "--as-dialled", "reach brokers at the name server's host, not at the address they advertise"
    )
    credentials: str | None = option(
        "--credentials SOURCE",
        f"account for brokers with ACL: env:NAME or file:PATH (${CREDENTIALS_VARIABLE}, else none)",
        variable=CREDENTIALS_VARIABLE,
    )
    namespace: str | None = option(
        "--namespace NAME", "namespace of all topics and groups", read=values.parse_namespace
    )
    tls: bool = option("--tls", "connect with TLS (useTLS); each of the following options includes it")
    tls_ca: str | None = option(
        "--tls-ca FILE", "certificates to trust (tls.client.trustCertPath; those of the system)"
    )
    tls_cert: str | None = option("--tls-cert FILE", "own certificate, for servers that want one (tls.client.certPath)")
    tls_key: str | None = option("--tls-key FILE", "its private key (tls.client.keyPath)")
    tls_verify: str | None = option(
        "--tls-verify host|ca|none",
        "the check of the server's certificate: signature and host name, or the signature alone (host)",
    )


class PingOptions(ClientOptions):
    """Ask whether name server and brokers answer."""


class DoctorOptions(ClientOptions):
    """Examine name servers, brokers and consumer groups; describe each fault and its remedy."""


class BrokerStatusOptions(ClientOptions):
    """Show settings and counters of running brokers."""

    address: str | None = option("HOST:PORT", "only this broker (all in the name server)", nargs="?")


class BrokerSetOptions(ClientOptions):
    """Change settings of running brokers, until they are started again."""

    settings: tuple[str, ...] = option("NAME=VALUE", "RocketMQ's name and the new value", nargs="+")
    broker: str | None = _ONE_BROKER


class ProduceOptions(ClientOptions):
    """Send the lines of stdin, or generated messages."""

    topic: str = option("TOPIC")
    group: str = _GROUP
    tag: str | None = option("--tag TAG", "tag of every message")
    key: tuple[str, ...] = option("--key KEY...", "key of every message; may be repeated")
    properties: tuple[tuple[str, str], ...] = option(
        "--property NAME=VALUE...", "property of every message; may be repeated"
    )
    delay: float = option(
        "--delay S",
        "deliver every message this long after it was sent: seconds, 10m, 2h (RocketMQ 4.9 delivers at once)",
        0.0,
        group="due",
    )
    deliver_at: datetime | None = option("--deliver-at TIME", "or at this time: 2026-01-31T12:00", group="due")
    json_lines: bool = option(
        "--json-lines",
        "each line is an object with body or body_base64, and optionally tags, keys, properties, as consume --json"
        " writes them",
    )
    count: int | None = option("--count N", "send N generated messages instead of stdin")
    size: int = option("--size BYTES", "length of a generated body (128)", 128)
    rate: float | None = option("--rate N/s", "maximum of messages per second")
    batch: int | None = option(
        "--batch N", "maximum of messages per request (lines: 1000, generated or delayed messages: 1)"
    )
    in_flight: int | None = option(
        "--in-flight N",
        "maximum of concurrent requests (lines: 16, one per queue to keep their order; generated messages: as many as"
        " the round trip needs)",
    )
    keep_going: bool = option("--keep-going", "continue after a message could not be sent")
    trace: bool = option("--trace", "record each message for triomq message trace")


class RequestOptions(ClientOptions):
    """Send one message and write the reply of the consumer that handles it."""

    topic: str = option("TOPIC")
    body: str = option("BODY", "text of the request")
    group: str = _GROUP
    tag: str | None = option("--tag TAG", "tag of the message")
    key: tuple[str, ...] = option("--key KEY...", "key of the message; may be repeated")
    timeout: float = option("--timeout S", "time until the reply must have arrived (3)", 3.0)


class ConsumeOptions(ClientOptions):
    """Write messages as they arrive, until Ctrl-C."""

    topic: str = option("TOPIC")
    group: str | None = option(
        "--group GROUP", "consume as a member of this group and commit offsets (default: read without a group)"
    )
    orderly: bool = option("--orderly", "as a member: consume each queue in order, under its lock")
    broadcast: bool = option("--broadcast", "as a member: get every message, and keep the offsets on this machine")
    instance_name: str | None = option(
        "--instance-name NAME",
        "as a member: name among the clients of this machine (instanceName; random, with --broadcast DEFAULT)",
    )
    tag: str = option("--tag EXPR", 'tags wanted, such as "TagA || TagB" (*)', "*", group="wanted")
    sql: Sql | None = option(
        "--sql SQL", "or a condition on properties: \"amount > 100 AND region IN ('eu', 'us')\"", group="wanted"
    )
    start: StartAt = option(
        "--from WHERE",
        "earliest, latest, a time, or -10m for ten minutes ago (earliest); a group with offsets resumes there",
        "earliest",
    )
    count: int | None = option("--count N", "end after N messages")
    timeout: float | None = option(
        "--timeout S", "end when no message arrives for S seconds; fails if --count was not reached"
    )
    trace: bool = option("--trace", "as a member: record each message for triomq message trace")
    long: bool = option("--long", "print time, place, tag and keys before each body")


class MessageShowOptions(ClientOptions):
    """Show one message."""

    message_id: str = option("ID", "offset message id; with --topic also the message id")
    topic: str | None = option("--topic TOPIC", "topic to search for a message id")


class MessageTraceOptions(ClientOptions):
    """Show who sent a message and who consumed it, as their clients recorded it."""

    message_id: str = option("ID", "message id, or a key of the message")
    trace_topic: str = option("--trace-topic TOPIC", f"topic with the records ({TRACE_TOPIC})", TRACE_TOPIC)


class MessageRecallOptions(ClientOptions):
    """Take a delayed message back before it is due."""

    handle: str = option("HANDLE", "as produce printed it, or the send's recall_handle")


class MessageFindOptions(ClientOptions):
    """Find messages by key, by message id, or by time."""

    topic: str = option("--topic TOPIC", "topic to search", required=True)
    key: str | None = option("--key KEY", "a key of the messages")
    unique_key: str | None = option("--unique-key ID", "the message id assigned by the producer (UNIQ_KEY)")
    begin: StartAt = option(
        "--from WHEN",
        "stored at this time or later: earliest, a time, or -10m for ten minutes ago (earliest)",
        "earliest",
    )
    end: StartAt = option("--to WHEN", "stored at this time or earlier: latest, a time, or -10m (latest)", "latest")
    count: int = option(
        "--count N", "maximum of messages (64); with a key the newest, at most 64 per broker, else the first", 64
    )


class DlqListOptions(ClientOptions):
    """Count the dead letters of all groups, or list those of one."""

    group: str | None = option("GROUP", "list the dead letters of this group", nargs="?")
    limit: int = option("--limit N", "maximum of dead letters to list (100)", 100)


class DlqRedriveOptions(ClientOptions):
    """Send the dead letters of a group back to the topics they came from."""

    group: str = option("GROUP")
    limit: int | None = option("--limit N", "maximum of messages to send (all)")
    again: bool = option("--again", "also send those that were sent back before")
    dry_run: bool = _DRY_RUN


class TransactionListOptions(ClientOptions):
    """List the transactions that no producer has decided."""


class TransactionOptions(ClientOptions):
    """The options of commands for one transaction."""

    id: str = option("ID", "id of the transaction, as the list shows it, or offset id of its half message")


class TransactionCommitOptions(TransactionOptions):
    """Deliver the message of an undecided transaction."""


class TransactionRollbackOptions(TransactionOptions):
    """Drop the message of an undecided transaction."""


class TransactionCheckOptions(TransactionOptions):
    """Have a producer asked now about a transaction that is undecided, or was given up."""


class TopicListOptions(ClientOptions):
    """List the topics."""

    all: bool = option("--all", "also those that brokers and groups have for themselves")


class TopicCreateOptions(ClientOptions):
    """Create a topic where it is missing."""

    topic: str = option("TOPIC")
    queues: int | None = option("--queues N", "queues per broker (4)")
    permission: str | None = option(_PERMISSION, "allowed operations: read, write or both (perm; rw)")
    dry_run: bool = _DRY_RUN


class TopicUpdateOptions(ClientOptions):
    """Change settings of a topic.

    Settings without an option stay as they are on each broker.  Messages in queues that are not read are not consumed:
    for fewer queues, lower --write-queues first, and --read-queues once the others are consumed.
    """

    topic: str = option("TOPIC")
    queues: int | None = option("--queues N", "read and write queues per broker")
    read_queues: int | None = option(
        "--read-queues N",
        "queues that consumers read; lower it after --write-queues, once the others are consumed",
    )
    write_queues: int | None = option("--write-queues N", "queues that producers send to; lower it first")
    permission: str | None = option(_PERMISSION, "allowed operations: read, write or both (perm)")
    order: str | None = option("--order yes|no", "whether it is an order topic; RocketMQ 4.9 and triomq do not keep it")
    type: str | None = option(
        "--type normal|fifo|delay|transaction|mixed",
        "messages that brokers of RocketMQ 5 accept (message.type); others do not keep it",
    )
    broker: str | None = option("--broker NAME", "only on this broker (all that have the topic)")
    force: bool = option("--force", "lower the number of read queues even if that hides messages from consumers")
    dry_run: bool = _DRY_RUN


class TopicDeleteOptions(ClientOptions):
    """Delete a topic everywhere."""

    topic: str = option("TOPIC")
    dry_run: bool = _DRY_RUN


class TopicShowOptions(ClientOptions):
    """Show a topic's queues and offsets."""

    topic: str = option("TOPIC")


class GroupListOptions(ClientOptions):
    """List the consumer groups."""

    all: bool = option("--all", "also those that every broker has")


class GroupShowOptions(ClientOptions):
    """Show members, offsets and lag of a group."""

    group: str = option("GROUP")
    topic: str | None = option("--topic TOPIC", "only this topic")


class GroupCreateOptions(ClientOptions):
    """Create or change a group."""

    group: str = option("GROUP")
    retries: int | None = option(
        "--retries N",
        "how often a message may fail before it becomes a dead letter (retryMaxTimes; 16)",
        read=values.parse_count,
    )
    disable: bool = option("--disable", "forbid the group to consume (consumeEnable)", group="consume")
    enable: bool = option("--enable", "allow it again", group="consume")
    dry_run: bool = _DRY_RUN


class GroupDeleteOptions(ClientOptions):
    """Delete a group everywhere."""

    group: str = option("GROUP")
    keep_offsets: bool = option("--keep-offsets", "keep its committed offsets")
    force: bool = option("--force", "delete it even if it has members online")
    dry_run: bool = _DRY_RUN


class GroupResetOffsetOptions(ClientOptions):
    """Make a group consume a topic from another offset, whether its members are online or not."""

    group: str = option("GROUP")
    topic: str = option("--topic TOPIC", "which of its topics", required=True)
    to: StartAt = option("--to WHERE", "earliest, latest, a time, or -10m for ten minutes ago", required=True)
    dry_run: bool = _DRY_RUN


class GroupReplayOptions(ClientOptions):
    """Deliver the messages of a time span again, from the topics of a group to another group alone.

    The messages go through the retry topic of that group, oldest first; no offset changes.  Each run delivers them once
    more.
    """

    group: str = option("GROUP")
    into: str = option("--into GROUP", "the group that gets the messages", required=True)
    begin: datetime = option("--from TIME", "stored at this time or later: 2026-01-31T12:00, or -10m", required=True)
    end: datetime | None = option("--to TIME", "stored at this time or earlier (now)")
    speed: float = option(
        "--speed X",
        "2 is twice as fast as they were stored; max or 0: as fast as possible (1)",
        1.0,
        read=values.parse_speed,
    )
    topic: tuple[str, ...] = option(
        "--topic TOPIC...", "only this topic, may be repeated (all that the group subscribes to)"
    )
    dry_run: bool = _DRY_RUN


class AclListOptions(ClientOptions):
    """List the accounts."""

    broker: str | None = _ONE_BROKER


class AclDeleteOptions(AclListOptions):
    """Delete an account."""

    key: str = option("KEY", "access key of the account")


class AclCheckOptions(AclDeleteOptions):
    """Show what an account may do, and why."""

    topic: str | None = option("--topic TOPIC", "sending to this topic, and reading it")
    group: str | None = option("--group GROUP", "consuming as this group")


class AclSetOptions(AclDeleteOptions):
    """Add or change an account."""

    secret: str | None = option(
        "--secret SOURCE",
        "its secret, with the lines accessKey: ... and secretKey: ... of --credentials: env:NAME or file:PATH",
    )
    admin: str | None = option("--admin yes|no", "whether it may administer (no for a new account)")
    address: str | None = option("--address PATTERN", "addresses from which its name is enough for everything")
    topic_default: str | None = option(
        "--topic-default RIGHT",
        "its right for topics that it has no entry for: DENY, PUB, SUB or PUB|SUB",
    )
    group_default: str | None = option("--group-default RIGHT", "its right for groups that it has no entry for")
    topic: tuple[str, ...] = option(
        "--topic TOPIC=RIGHT...", "right for a topic; those given replace all it had; may be repeated"
    )
    group: tuple[str, ...] = option(
        "--group GROUP=RIGHT...", "right for a group; those given replace all it had; may be repeated"
    )
