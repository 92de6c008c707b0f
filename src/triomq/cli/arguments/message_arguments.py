"""The options of the commands about messages: produce, consume, message, dlq."""

from typing import Final

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, add_client_command, add_subcommands

DEFAULT_PRODUCER_GROUP: Final = "triomq-produce"


def add_produce(commands: Commands) -> None:
    """Add ``triomq produce``."""
    parser = add_client_command(
        commands, "produce", "produce:run", "ProduceOptions", "send the lines of stdin, or generated messages"
    )
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("--group", default=DEFAULT_PRODUCER_GROUP, help=f"producer group ({DEFAULT_PRODUCER_GROUP})")
    add("--tag", type=values.parse_tag, help="tag of every message")
    add("--key", action="append", default=[], help="key of every message; may be repeated")
    add(
        "--property",
        dest="properties",
        metavar="NAME=VALUE",
        type=values.parse_property,
        action="append",
        default=[],
        help="property of every message; may be repeated",
    )
    due = parser.add_mutually_exclusive_group()
    due.add_argument(
        "--delay",
        metavar="S",
        type=values.parse_duration,
        default=0.0,
        help="consumers shall see every message S seconds after it was sent; 10m, 2h and the like "
        "(brokers of RocketMQ 4.9 deliver at once)",
    )
    due.add_argument(
        "--deliver-at", metavar="TIME", type=values.parse_time, help="or at a time, such as 2026-01-31T12:00"
    )
    add(
        "--json-lines",
        action="store_true",
        help="each line is an object with body (or body_base64) and perhaps tags, keys, properties: "
        "what consume --json writes",
    )
    add("--count", type=values.parse_positive, metavar="N", help="send N generated messages instead of stdin")
    add("--size", type=values.parse_size, metavar="BYTES", default=128, help="length of a generated body (128)")
    add("--rate", type=values.parse_rate, metavar="N/s", help="messages per second at most")
    add(
        "--batch",
        type=values.parse_positive,
        metavar="N",
        help="messages in one request at most (1000 for lines, 1 for generated messages; delayed messages: 1)",
    )
    add(
        "--in-flight",
        type=values.parse_positive,
        metavar="N",
        help="requests at once (for lines at most one per queue, which keeps their order: 16; generated messages: 32)",
    )
    add("--keep-going", action="store_true", help="go on after a message could not be sent")


def add_consume(commands: Commands) -> None:
    """Add ``triomq consume``."""
    parser = add_client_command(
        commands, "consume", "consume:run", "ConsumeOptions", "write messages as they come, until Ctrl-C"
    )
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add(
        "--group",
        help="consume as a member of this group and store its offsets; without it: read on one's own, storing nothing",
    )
    add("--orderly", action="store_true", help="as a member: the messages of each queue in order, with its lock")
    add(
        "--broadcast",
        action="store_true",
        help="as a member: get every message of the group's, and keep the offsets on this machine",
    )
    add(
        "--instance-name",
        metavar="NAME",
        help="as a member: name among the clients of this machine (instanceName; random, with --broadcast DEFAULT)",
    )
    add(
        "--tag",
        type=values.parse_tag_expression,
        metavar="EXPR",
        default="*",
        help='tags wanted, such as "TagA || TagB" (*)',
    )
    add(
        "--from",
        dest="start",
        metavar="WHERE",
        type=values.parse_start,
        default="earliest",
        help="earliest, latest, a time, or -10m for ten minutes ago (earliest); "
        "a group that has offsets goes on where it was",
    )
    add("--count", type=values.parse_positive, metavar="N", help="end after N messages")
    add(
        "--timeout",
        type=values.parse_duration,
        metavar="S",
        help="end when no message came for S seconds; a failure if --count was not reached",
    )
    add("--long", action="store_true", help="before each body: when it was stored, where, tag and keys")


def add_message(commands: Commands) -> None:
    """Add ``triomq message`` with its commands."""
    message = add_subcommands(commands, "message", "show or find messages that are stored")
    show = add_client_command(message, "show", "message:show", "MessageShowOptions", "show one message")
    show.add_argument("message_id", metavar="ID", help="its offset message id; with --topic also its message id")
    show.add_argument("--topic", help="where to look for a message id")
    find = add_client_command(
        message, "find", "message:find", "MessageFindOptions", "find messages by key, by message id, or by time"
    )
    find.add_argument("--topic", required=True, help="where to look")
    find.add_argument("--key", help="one of their keys")
    find.add_argument("--unique-key", metavar="ID", help="the message id that their producer gave them (UNIQ_KEY)")
    for option, name, default, text in (
        ("--from", "begin", "earliest", "stored at this time or later: earliest, a time, or -10m for ten minutes ago"),
        ("--to", "end", "latest", "stored at this time or earlier: latest, a time, or -10m"),
    ):
        find.add_argument(
            option, dest=name, metavar="WHEN", type=values.parse_start, default=default, help=f"{text} ({default})"
        )
    find.add_argument(
        "--count",
        type=values.parse_positive,
        metavar="N",
        default=64,
        help="N at most (64): with a key the newest, of which a broker tells 64 at most; else the first",
    )


def add_dlq(commands: Commands) -> None:
    """Add ``triomq dlq`` with its commands."""
    dlq = add_subcommands(commands, "dlq", "list dead letters, or send them back to their topics")
    listing = add_client_command(
        dlq, "list", "dlq:list_letters", "DlqListOptions", "count the dead letters of all groups, or list those of one"
    )
    listing.add_argument("group", metavar="GROUP", nargs="?", help="list the dead letters of this group")
    listing.add_argument(
        "--limit", type=values.parse_positive, metavar="N", default=100, help="list N dead letters at most (100)"
    )
    redrive = add_client_command(
        dlq,
        "redrive",
        "dlq:redrive",
        "DlqRedriveOptions",
        "send the dead letters of a group back to the topics they came from",
    )
    redrive.add_argument("group", metavar="GROUP")
    redrive.add_argument("--limit", type=values.parse_positive, metavar="N", help="send N messages at most (all)")
    redrive.add_argument("--again", action="store_true", help="also those that were sent back before")
    redrive.add_argument("--dry-run", action="store_true", help="only tell what would be done")
