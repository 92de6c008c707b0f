"""The commands that administer topics, groups, accounts, messages and stores, with their options."""

from datetime import datetime
from typing import Final

from triomq.cli.arguments import values
from triomq.cli.arguments.options import ONE_BROKER, ClientOptions, TopicOptions
from triomq.cli.arguments.parser import Options, option
from triomq.cli.arguments.values import StartAt
from triomq.protocol.names import TRACE_TOPIC

_DRY_RUN: Final = option("--dry-run", "only print what would be done")
_PERMISSION: Final = "--permission rw|r|w"


class GroupOptions(ClientOptions):
    """The options of commands for one consumer group."""

    group: str = option("GROUP")


class TopicListOptions(ClientOptions, run="topic:list_topics"):
    """List the topics."""

    all: bool = option("--all", "also those that brokers and groups have for themselves")


class TopicCreateOptions(TopicOptions, run="topic:create"):
    """Create a topic where it is missing."""

    queues: int | None = option("--queues N", "queues per broker (4)")
    permission: str | None = option(_PERMISSION, "allowed operations: read, write or both (perm; rw)")
    dry_run: bool = _DRY_RUN


class TopicUpdateOptions(TopicOptions, run="topic:update"):
    """Change settings of a topic.

    Settings without an option stay as they are on each broker.  Messages in queues that are not read are not consumed:
    for fewer queues, lower --write-queues first, and --read-queues once the others are consumed.
    """

    queues: int | None = option("--queues N", "read and write queues per broker")
    read_queues: int | None = option(
        "--read-queues N", "queues that consumers read; lower it after --write-queues, once the others are consumed"
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


class TopicDeleteOptions(TopicOptions, run="topic:delete"):
    """Delete a topic everywhere."""

    dry_run: bool = _DRY_RUN


class TopicShowOptions(TopicOptions, run="topic:show"):
    """Show a topic's queues and offsets."""


class GroupListOptions(ClientOptions, run="group:list_groups"):
    """List the consumer groups."""

    all: bool = option("--all", "also those that every broker has")


class GroupShowOptions(GroupOptions, run="group:show"):
    """Show members, offsets and lag of a group."""

    topic: str | None = option("--topic TOPIC", "only this topic")


class GroupCreateOptions(GroupOptions, run="group:create"):
    """Create or change a group."""

    retries: int | None = option(
        "--retries N",
        "how often a message may fail before it becomes a dead letter (retryMaxTimes; 16)",
        read=values.parse_count,
    )
    disable: bool = option("--disable", "forbid the group to consume (consumeEnable)", group="consume")
    enable: bool = option("--enable", "allow it again", group="consume")
    dry_run: bool = _DRY_RUN


class GroupDeleteOptions(GroupOptions, run="group:delete"):
    """Delete a group everywhere."""

    keep_offsets: bool = option("--keep-offsets", "keep its committed offsets")
    force: bool = option("--force", "delete it even if it has members online")
    dry_run: bool = _DRY_RUN


class GroupResetOffsetOptions(GroupOptions, run="group:reset_offset"):
    """Make a group consume a topic from another offset, whether its members are online or not."""

    topic: str = option("--topic TOPIC", "which of its topics", required=True)
    to: StartAt = option("--to WHERE", "earliest, latest, a time, or -10m for ten minutes ago", required=True)
    dry_run: bool = _DRY_RUN


class GroupReplayOptions(GroupOptions, run="redelivery:replay"):
    """Deliver the messages of a time span again, from the topics of a group to another group alone.

    The messages go through the retry topic of that group, oldest first; no offset changes.  Each run delivers them once
    more.
    """

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


class AclListOptions(ClientOptions, run="acl:list_accounts"):
    """List the accounts."""

    broker: str | None = ONE_BROKER


class AclAccountOptions(AclListOptions):
    """The options of commands for one account."""

    key: str = option("KEY", "access key of the account")


class AclSetOptions(AclAccountOptions, run="acl:set_one"):
    """Add or change an account."""

    secret: str | None = option(
        "--secret SOURCE",
        "its secret, with the lines accessKey: ... and secretKey: ... of --credentials: env:NAME or file:PATH",
    )
    admin: str | None = option("--admin yes|no", "whether it may administer (no for a new account)")
    address: str | None = option("--address PATTERN", "addresses from which its name is enough for everything")
    topic_default: str | None = option(
        "--topic-default RIGHT", "its right for topics that it has no entry for: DENY, PUB, SUB or PUB|SUB"
    )
    group_default: str | None = option("--group-default RIGHT", "its right for groups that it has no entry for")
    topic: tuple[str, ...] = option(
        "--topic TOPIC=RIGHT...", "right for a topic; those given replace all it had; may be repeated"
    )
    group: tuple[str, ...] = option(
        "--group GROUP=RIGHT...", "right for a group; those given replace all it had; may be repeated"
    )


class AclDeleteOptions(AclAccountOptions, run="acl:delete"):
    """Delete an account."""


class AclCheckOptions(AclAccountOptions, run="acl:check"):
    """Show what an account may do, and why."""

    topic: str | None = option("--topic TOPIC", "sending to this topic, and reading it")
    group: str | None = option("--group GROUP", "consuming as this group")


class MessageShowOptions(ClientOptions, run="message:show"):
    """Show one message."""

    message_id: str = option("ID", "offset message id; with --topic also the message id")
    topic: str | None = option("--topic TOPIC", "topic to search for a message id")


class MessageTraceOptions(ClientOptions, run="message:trace"):
    """Show who sent a message and who consumed it, as their clients recorded it."""

    message_id: str = option("ID", "message id, or a key of the message")
    trace_topic: str = option("--trace-topic TOPIC", f"topic with the records ({TRACE_TOPIC})", TRACE_TOPIC)


class MessageRecallOptions(ClientOptions, run="message:recall"):
    """Take a delayed message back before it is due."""

    handle: str = option("HANDLE", "as produce printed it, or the send's recall_handle")


class MessageFindOptions(ClientOptions, run="message:find"):
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


class DlqListOptions(ClientOptions, run="redelivery:list_letters"):
    """Count the dead letters of all groups, or list those of one."""

    group: str | None = option("[GROUP]", "list the dead letters of this group")
    limit: int = option("--limit N", "maximum of dead letters to list (100)", 100)


class DlqRedriveOptions(GroupOptions, run="redelivery:redrive"):
    """Send the dead letters of a group back to the topics they came from."""

    limit: int | None = option("--limit N", "maximum of messages to send (all)")
    again: bool = option("--again", "also send those that were sent back before")
    at: tuple[tuple[str, int, int], ...] = option(
        "--at BROKER:QUEUE:OFFSET...", "only the dead letter at this place, may be repeated; its progress is not noted"
    )
    dry_run: bool = _DRY_RUN


class TransactionListOptions(ClientOptions, run="message:list_undecided"):
    """List the transactions that no producer has decided."""


class TransactionOptions(ClientOptions):
    """The options of commands for one transaction."""

    id: str = option("ID", "id of the transaction, as the list shows it, or offset id of its half message")


class TransactionCommitOptions(TransactionOptions, run="message:decide"):
    """Deliver the message of an undecided transaction."""


class TransactionRollbackOptions(TransactionOptions, run="message:decide"):
    """Drop the message of an undecided transaction."""


class TransactionCheckOptions(TransactionOptions, run="message:decide"):
    """Have a producer asked now about a transaction that is undecided, or was given up."""


class ReplicaStatusOptions(ClientOptions, run="replica:status"):
    """Show masters and slaves, and how far each copy is."""


class ReplicaPromoteOptions(ClientOptions, run="replica:promote"):
    """Make a slave the master, after its master was lost or stopped."""

    broker: str | None = option("--broker HOST:PORT", "the slave (the only one in the name server)")
    role: str = option("--role async-master|sync-master", "its new role (async-master)", "async-master")
    force: bool = option("--force", "do so although its master answers, or it has copied nothing")


class StoreOptions(Options):
    """Options of the commands for stopped stores."""

    store: str | None = option("--store DIR", "folder of the store (that of triomq broker)")


class StoreInfoOptions(StoreOptions, run="store:info"):
    """Show sizes, files and queues."""


class StoreCheckOptions(StoreOptions, run="store:check"):
    """Verify every record, queue and stored offset."""


class StoreDumpOptions(StoreOptions, run="store:dump"):
    """Write the messages of the commit log."""

    topic: str | None = option("--topic TOPIC", "only this topic")
    queue_id: int | None = option("--queue N", "only queues with this id", read=values.parse_count)
    key: str | None = option("--key KEY", "only messages with this key or message id")
    begin: datetime | None = option("--from TIME", "only messages stored at or after this time")
    end: datetime | None = option("--to TIME", "only messages stored before: 2026-01-31T12:00, or -10m")
    count: int | None = option("--count N", "end after N messages")


class CompletionOptions(Options, run="completion:run"):
    """Print a script that completes commands and options in your shell."""

    shell: str = option("bash|zsh|fish")


class PingOptions(ClientOptions, run="health:ping"):
    """Ask whether name server and brokers answer."""


class TopOptions(ClientOptions, run="top:top"):
    """Show rates, lag and faults of a cluster until q or Ctrl-C.

    Keys sort the groups: l by lag, c by its change, n by name; p pauses, q quits.
    """

    interval: float = option("--interval S", "seconds between two frames (2)", 2.0)
    sort: str = option("--sort lag|change|name", "the order of the groups at first (lag)", "lag")
    once: bool = option("--once", "write one frame as text, or with --json as one line")


class DoctorOptions(ClientOptions, run="health:doctor"):
    """Examine name servers, brokers and consumer groups; describe each fault and its remedy."""
