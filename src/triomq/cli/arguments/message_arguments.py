"""The options of the commands about messages: produce, consume, message, dlq."""

from typing import Final

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, Parser, add_client_command, add_subcommands

DEFAULT_PRODUCER_GROUP: Final = "triomq-produce"


def add_produce(commands: Commands) -> None:
    """Add ``triomq produce``."""
    parser = add_client_command(
        commands, "produce", "produce:run", "ProduceOptions", "send the lines of stdin, or generated messages"
    )
    parser.add_argument("topic", metavar="TOPIC")
    _add_message_fields(parser)
    _add_sending(parser)


def _add_message_fields(parser: Parser) -> None:
    add = parser.add_argument
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
        help="deliver every message this long after it was sent: seconds, 10m, 2h (RocketMQ 4.9 delivers at once)",
    )
    due.add_argument("--deliver-at", metavar="TIME", type=values.parse_time, help="or at this time: 2026-01-31T12:00")


def _add_sending(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--json-lines",
        action="store_true",
        help="each line is an object with body or body_base64, and optionally tags, keys, properties, "
        "as consume --json writes them",
    )
    add("--count", type=values.parse_positive, metavar="N", help="send N generated messages instead of stdin")
    add("--size", type=values.parse_size, metavar="BYTES", default=128, help="length of a generated body (128)")
    add("--rate", type=values.parse_rate, metavar="N/s", help="maximum of messages per second")
    add(
        "--batch",
        type=values.parse_positive,
        metavar="N",
        help="maximum of messages per request (lines: 1000, generated or delayed messages: 1)",
    )
    add(
        "--in-flight",
        type=values.parse_positive,
        metavar="N",
        help="maximum of concurrent requests (lines: 16, one per queue to keep their order; generated messages: 32)",
    )
    add("--keep-going", action="store_true", help="continue after a message could not be sent")


def add_consume(commands: Commands) -> None:
    """Add ``triomq consume``."""
    parser = add_client_command(
        commands, "consume", "consume:run", "ConsumeOptions", "write messages as they arrive, until Ctrl-C"
    )
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add(
        "--group",
        help="consume as a member of this group and commit offsets (default: read without a group)",
    )
    add("--orderly", action="store_true", help="as a member: consume each queue in order, under its lock")
    add(
        "--broadcast",
        action="store_true",
        help="as a member: get every message, and keep the offsets on this machine",
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
    _add_range(parser)


def _add_range(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--from",
        dest="start",
        metavar="WHERE",
        type=values.parse_start,
        default="earliest",
        help="earliest, latest, a time, or -10m for ten minutes ago (earliest); "
        "a group with committed offsets resumes there",
    )
    add("--count", type=values.parse_positive, metavar="N", help="end after N messages")
    add(
        "--timeout",
        type=values.parse_duration,
        metavar="S",
        help="end when no message arrives for S seconds; fails if --count was not reached",
    )
    add("--long", action="store_true", help="print time, place, tag and keys before each body")


def add_message(commands: Commands) -> None:
    """Add ``triomq message`` with its commands."""
    message = add_subcommands(commands, "message", "show or find stored messages")
    show = add_client_command(message, "show", "message:show", "MessageShowOptions", "show one message")
    show.add_argument("message_id", metavar="ID", help="offset message id; with --topic also the message id")
    show.add_argument("--topic", help="topic to search for a message id")
    find = add_client_command(
        message, "find", "message:find", "MessageFindOptions", "find messages by key, by message id, or by time"
    )
    find.add_argument("--topic", required=True, help="topic to search")
    find.add_argument("--key", help="a key of the messages")
    find.add_argument("--unique-key", metavar="ID", help="the message id assigned by the producer (UNIQ_KEY)")
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
        help="maximum of messages (64); with a key the newest, at most 64 per broker, else the first",
    )


def add_dlq(commands: Commands) -> None:
    """Add ``triomq dlq`` with its commands."""
    dlq = add_subcommands(commands, "dlq", "list dead letters, or send them back to their topics")
    listing = add_client_command(
        dlq, "list", "dlq:list_letters", "DlqListOptions", "count the dead letters of all groups, or list those of one"
    )
    listing.add_argument("group", metavar="GROUP", nargs="?", help="list the dead letters of this group")
    listing.add_argument(
        "--limit", type=values.parse_positive, metavar="N", default=100, help="maximum of dead letters to list (100)"
    )
    redrive = add_client_command(
        dlq,
        "redrive",
        "dlq:redrive",
        "DlqRedriveOptions",
        "send the dead letters of a group back to the topics they came from",
    )
    redrive.add_argument("group", metavar="GROUP")
    redrive.add_argument("--limit", type=values.parse_positive, metavar="N", help="maximum of messages to send (all)")
    redrive.add_argument("--again", action="store_true", help="also send those that were sent back before")
    redrive.add_argument("--dry-run", action="store_true", help="only print what would be done")
