"""The options of the commands about messages: produce, request, consume, message, dlq, transaction."""

from functools import partial
from typing import Final

from triomq.cli.arguments.parser import Commands, Parser, add_client_command, add_option, add_subcommands
from triomq.protocol.names import TRACE_TOPIC

DEFAULT_PRODUCER_GROUP: Final = "triomq-produce"


def add_produce(commands: Commands) -> None:
    """Add ``triomq produce``."""
    text = "send the lines of stdin, or generated messages"
    parser = add_client_command(commands, "produce", "produce:run", "ProduceOptions", text)
    add_option(parser, "TOPIC")
    _add_message_fields(parser)
    _add_sending(parser)


def _add_message_fields(parser: Parser) -> None:
    add = partial(add_option, parser)
    add("--group GROUP", f"producer group ({DEFAULT_PRODUCER_GROUP})", DEFAULT_PRODUCER_GROUP)
    add("--tag TAG", "tag of every message")
    add("--key KEY...", "key of every message; may be repeated")
    add("--property NAME=VALUE...", "property of every message; may be repeated", dest="properties")
    due = parser.add_mutually_exclusive_group()
    text = "deliver every message this long after it was sent: seconds, 10m, 2h (RocketMQ 4.9 delivers at once)"
    add_option(due, "--delay S", text, 0.0)
    add_option(due, "--deliver-at TIME", "or at this time: 2026-01-31T12:00")


def _add_sending(parser: Parser) -> None:
    add = partial(add_option, parser)
    text = "each line is an object with body or body_base64, and optionally tags, keys, properties, "
    add("--json-lines", f"{text}as consume --json writes them")
    add("--count N", "send N generated messages instead of stdin")
    add("--size BYTES", "length of a generated body (128)", 128)
    add("--rate N/s", "maximum of messages per second")
    add("--batch N", "maximum of messages per request (lines: 1000, generated or delayed messages: 1)")
    text = "maximum of concurrent requests (lines: 16, one per queue to keep their order; "
    add("--in-flight N", f"{text}generated messages: as many as the round trip needs)")
    add("--keep-going", "continue after a message could not be sent")
    add("--trace", "record each message for triomq message trace")


def add_request(commands: Commands) -> None:
    """Add ``triomq request``."""
    text = "send one message and write the reply of the consumer that handles it"
    add = partial(add_option, add_client_command(commands, "request", "request:run", "RequestOptions", text))
    add("TOPIC")
    add("BODY", "text of the request")
    add("--group GROUP", f"producer group ({DEFAULT_PRODUCER_GROUP})", DEFAULT_PRODUCER_GROUP)
    add("--tag TAG", "tag of the message")
    add("--key KEY...", "key of the message; may be repeated")
    add("--timeout S", "time until the reply must have arrived (3)", 3.0)


def add_consume(commands: Commands) -> None:
    """Add ``triomq consume``."""
    text = "write messages as they arrive, until Ctrl-C"
    parser = add_client_command(commands, "consume", "consume:run", "ConsumeOptions", text)
    add = partial(add_option, parser)
    add("TOPIC")
    add("--group GROUP", "consume as a member of this group and commit offsets (default: read without a group)")
    add("--orderly", "as a member: consume each queue in order, under its lock")
    add("--broadcast", "as a member: get every message, and keep the offsets on this machine")
    text = "as a member: name among the clients of this machine (instanceName; random, with --broadcast DEFAULT)"
    add("--instance-name NAME", text)
    wanted = parser.add_mutually_exclusive_group()
    add_option(wanted, "--tag EXPR", 'tags wanted, such as "TagA || TagB" (*)', "*")
    add_option(wanted, "--sql SQL", "or a condition on properties: \"amount > 100 AND region IN ('eu', 'us')\"")
    text = "earliest, latest, a time, or -10m for ten minutes ago (earliest); "
    add("--from WHERE", f"{text}a group with committed offsets resumes there", "earliest", dest="start")
    add("--count N", "end after N messages")
    add("--timeout S", "end when no message arrives for S seconds; fails if --count was not reached")
    add("--trace", "as a member: record each message for triomq message trace")
    add("--long", "print time, place, tag and keys before each body")


def add_message(commands: Commands) -> None:
    """Add ``triomq message`` with its commands."""
    message = add_subcommands(commands, "message", "show, find, trace or recall messages")
    show = add_client_command(message, "show", "message:show", "MessageShowOptions", "show one message")
    show.add_argument("message_id", metavar="ID", help="offset message id; with --topic also the message id")
    add_option(show, "--topic TOPIC", "topic to search for a message id")
    text = "show who sent a message and who consumed it, as their clients recorded it"
    trace = add_client_command(message, "trace", "message_trace:trace", "MessageTraceOptions", text)
    trace.add_argument("message_id", metavar="ID", help="message id, or a key of the message")
    add_option(trace, "--trace-topic TOPIC", f"topic with the records ({TRACE_TOPIC})", TRACE_TOPIC)
    text = "take a delayed message back before it is due"
    recall = add_client_command(message, "recall", "message:recall", "MessageRecallOptions", text)
    recall.add_argument("handle", metavar="HANDLE", help="as produce printed it, or the send's recall_handle")
    text = "find messages by key, by message id, or by time"
    add = partial(add_option, add_client_command(message, "find", "message:find", "MessageFindOptions", text))
    add("--topic TOPIC", "topic to search", required=True)
    add("--key KEY", "a key of the messages")
    add("--unique-key ID", "the message id assigned by the producer (UNIQ_KEY)")
    text = "stored at this time or later: earliest, a time, or -10m for ten minutes ago (earliest)"
    add("--from WHEN", text, "earliest", dest="begin")
    add("--to WHEN", "stored at this time or earlier: latest, a time, or -10m (latest)", "latest", dest="end")
    text = "maximum of messages (64); with a key the newest, at most 64 per broker, else the first"
    add("--count N", text, 64)


def add_dlq(commands: Commands) -> None:
    """Add ``triomq dlq`` with its commands."""
    dlq = add_subcommands(commands, "dlq", "list dead letters, or send them back to their topics")
    text = "count the dead letters of all groups, or list those of one"
    listing = add_client_command(dlq, "list", "dlq:list_letters", "DlqListOptions", text)
    listing.add_argument("group", metavar="GROUP", nargs="?", help="list the dead letters of this group")
    add_option(listing, "--limit N", "maximum of dead letters to list (100)", 100)
    text = "send the dead letters of a group back to the topics they came from"
    add = partial(add_option, add_client_command(dlq, "redrive", "dlq:redrive", "DlqRedriveOptions", text))
    add("GROUP")
    add("--limit N", "maximum of messages to send (all)")
    add("--again", "also send those that were sent back before")
    add("--dry-run", "only print what would be done")


def add_transaction(commands: Commands) -> None:
    """Add ``triomq transaction`` with its commands."""
    transaction = add_subcommands(commands, "transaction", "list undecided transactions, or decide one")
    text = "list the transactions that no producer has decided"
    add_client_command(transaction, "list", "transaction:list_undecided", "ClientOptions", text)
    for name, text in (
        ("commit", "deliver the message of an undecided transaction"),
        ("rollback", "drop the message of an undecided transaction"),
        ("check", "have a producer asked now about a transaction that is undecided, or was given up"),
    ):
        command = add_client_command(transaction, name, f"transaction:{name}", "TransactionOptions", text)
        add_option(command, "ID", "id of the transaction, as the list shows it, or offset id of its half message")
