"""The options of all commands, for argparse.

This module imports nothing of a broker or client: which module runs a command, and which class holds its options, are
names, imported when they are needed.  So ``triomq broker`` is ready without loading the client, and ``--help`` without
loading either.
"""

import argparse
import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from triomq import __version__
from triomq.cli import values
from triomq.cli.exit_codes import EXIT_CODES_TEXT, ExitCode
from triomq.cli.options import Options

NAMESRV_VARIABLE: Final = "TRIOMQ_NAMESRV"
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
DEFAULT_PRODUCER_GROUP: Final = "triomq-produce"


class Invocation(NamedTuple):
    """What is to be run: ``module:function`` with these options."""

    runner: str
    name: str
    options: Options


class _Parser(argparse.ArgumentParser):
    """Tells errors on one line; options are never guessed from a beginning, so a new one breaks no script."""

    def __init__(self, **settings: Any) -> None:  # argparse's own signature is of this kind
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}; {self.prog} --help tells what there is\n")


def parse(argv: Sequence[str]) -> Invocation:
    """Read a command line, without the program's name.

    Raises:
        SystemExit: it asked for help or the version, or is wrong: the text was written.
    """
    found = vars(build_parser().parse_args(_join_relative_times(argv)))
    module, _, name = found["options_type"].partition(":")
    options_type: type[Options] = getattr(importlib.import_module(module), name)
    fields = {field.name: _frozen(found[field.name]) for field in dataclasses.fields(options_type)}
    return Invocation(found["runner"], found["name"], options_type(**fields))


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = _Parser(
        prog="triomq",
        description="Message broker and client that speak Apache RocketMQ's protocol and keep its store files.",
        epilog=EXIT_CODES_TEXT,
    )
    parser.add_argument("--version", action="version", version=f"triomq {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_broker(commands)
    _add_produce(commands)
    _add_consume(commands)
    _add_topic(commands)
    _add_group(commands)
    _add_message(commands)
    _add_dlq(commands)
    _add_store(commands)
    _add_client_command(commands, "ping", "ping:run", "ClientOptions", "ask whether name server and brokers answer")
    return parser


def _frozen(value: Any) -> Any:  # a Namespace has no types
    return tuple(value) if isinstance(value, list) else value


def _join_relative_times(argv: Sequence[str]) -> list[str]:
    """Make ``--from -10m`` and ``--to -10m`` one word: argparse would take ``-10m`` for an option."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in ("--from", "--to") and values.is_relative_time(word):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


_Commands = Any
"""What ``add_subparsers`` returns: a private class of argparse."""


def _add_command(
    commands: _Commands, name: str, runner: str, options_type: str, text: str, *, log_level: str
) -> _Parser:
    parser: _Parser = commands.add_parser(
        name, help=text, description=text[:1].upper() + text[1:] + ".", epilog=EXIT_CODES_TEXT
    )
    parser.set_defaults(
        runner=f"triomq.cli.{runner}", options_type=options_type, name=parser.prog.removeprefix("triomq ")
    )
    parser.add_argument("--json", action="store_true", help="write JSON: one object, or one object per line")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default=log_level, help=f"what to log ({log_level})")
    parser.add_argument("--log-file", metavar="FILE", help="log to this file instead of stderr")
    return parser


def _add_client_command(commands: _Commands, name: str, runner: str, options_type: str, text: str) -> _Parser:
    options_type = f"triomq.cli.client_options:{options_type}"
    parser = _add_command(commands, name, runner, options_type, text, log_level="warning")
    parser.add_argument(
        "--namesrv",
        metavar="HOST:PORT",
        default=os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV,
        help=f"name server, several with ; between (${NAMESRV_VARIABLE}, else {DEFAULT_NAMESRV})",
    )
    parser.add_argument(
        "--as-dialled",
        action="store_true",
        help="reach brokers at the name server's host, not at the address they advertise",
    )
    return parser


def _add_broker(commands: _Commands) -> None:
    parser = _add_command(
        commands,
        "broker",
        "broker:run",
        "triomq.cli.options:BrokerOptions",
        "run a broker with its name server",
        log_level="info",
    )
    _add_addresses(parser)
    add = parser.add_argument
    add("--store", metavar="DIR", help="folder of the store (storePathRootDir; triomq/store in the user's data folder)")
    add(
        "--durability",
        choices=("async", "sync"),
        default="async",
        help="when a send is answered: once the operating system has the message, or once the disk has it "
        "(flushDiskType; async)",
    )
    add("--cluster-name", metavar="NAME", default="DefaultCluster", help="brokerClusterName (DefaultCluster)")
    add("--broker-name", metavar="NAME", default="broker-a", help="brokerName (broker-a)")
    add(
        "--commit-log-file-size",
        metavar="SIZE",
        type=values.parse_size,
        default=1024**3,
        help="mappedFileSizeCommitLog (1GiB); a store keeps the sizes it was made with",
    )
    add(
        "--consume-queue-file-size",
        metavar="SIZE",
        type=values.parse_size,
        default=6_000_000,
        help="mappedFileSizeConsumeQueue, in bytes (6000000)",
    )
    _add_retention(parser)
    _add_delays(parser)
    add("--no-auto-create-topic", action="store_true", help="refuse sends to unknown topics (autoCreateTopicEnable)")
    add("--no-index", action="store_true", help="do not index messages by their keys (messageIndexEnable)")
    for option, default, text in (
        ("--index-slots", 5_000_000, "slots of an index file (maxHashSlotNum"),
        ("--index-units", 20_000_000, "units of an index file, one for each key of a message (maxIndexNum"),
    ):
        add(option, metavar="N", type=values.parse_positive, default=default, help=f"{text}; {default})")
    more = parser.add_subparsers(metavar="[COMMAND]", required=False)
    status = _add_client_command(
        more, "status", "broker_status:run", "BrokerStatusOptions", "tell how running brokers are set up and doing"
    )
    status.add_argument(
        "address", metavar="HOST:PORT", nargs="?", help="of one broker (all that the name server knows)"
    )


def _add_delays(parser: _Parser) -> None:
    add = parser.add_argument
    add(
        "--delay-levels",
        metavar="LEVELS",
        help='how long messages of delay level 1, 2, ... wait, such as "10s 1m 1d" (messageDelayLevel; 18 up to 2h)',
    )
    add(
        "--timer-max-delay",
        metavar="S",
        type=values.parse_duration,
        default=259_200.0,
        help="how far away a time may be that a message asks for (timerMaxDelaySec; 3d)",
    )


def _add_retention(parser: _Parser) -> None:
    add = parser.add_argument
    add(
        "--retention-hours",
        metavar="N",
        type=values.parse_hours,
        default=72.0,
        help="commit log files may be deleted so long after they were written last (fileReservedTime; 72)",
    )
    add(
        "--retention-bytes",
        metavar="SIZE",
        type=values.parse_size,
        help="above this length the commit log loses its oldest files at any hour (no limit)",
    )
    add(
        "--delete-when",
        metavar="HOURS",
        type=values.parse_hours_of_day,
        default=(4,),
        help="hours of the local day in which old files are deleted, with ; between (deleteWhen; 04)",
    )
    for option, default, text in (
        ("--disk-max-used-ratio", 75, "above it old files are deleted at any hour (diskMaxUsedSpaceRatio; 75)"),
        ("--disk-clean-ratio", 85, "above it the oldest files are deleted whatever their age (85)"),
        ("--disk-full-ratio", 90, "above it sends are refused (90)"),
    ):
        add(option, metavar="PERCENT", type=values.parse_percent, default=default, help=f"used disk space: {text}")


def _add_addresses(parser: _Parser) -> None:
    add = parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:10911",
        help="where the broker listens (listenPort; 127.0.0.1:10911; port 0: any free one)",
    )
    add(
        "--namesrv-listen",
        metavar="HOST:PORT",
        default="127.0.0.1:9876",
        help="where its name server listens (127.0.0.1:9876; port 0: any free one)",
    )
    add(
        "--advertise",
        metavar="HOST[:PORT]",
        help="where clients are told to reach the broker (brokerIP1; without it: the address at which they reached us)",
    )
    add(
        "--listener",
        metavar="NAME,namesrv=HOST:PORT,broker=HOST:PORT[,advertise=HOST[:PORT]]",
        action="append",
        default=[],
        help="one more pair of ports, for clients of another network; may be repeated",
    )
    add("--insecure", action="store_true", help="listen beyond loopback although there are no accounts yet")


def _add_produce(commands: _Commands) -> None:
    parser = _add_client_command(
        commands, "produce", "produce:run", "ProduceOptions", "send the lines of stdin, or generated messages"
    )
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("--group", default=DEFAULT_PRODUCER_GROUP, help=f"producer group ({DEFAULT_PRODUCER_GROUP})")
    add("--tag", help="tag of every message")
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
    add("--batch", type=values.parse_positive, metavar="N", default=1, help="messages in one request (1)")
    add(
        "--concurrency",
        type=values.parse_positive,
        metavar="N",
        help="requests at once (1 for stdin, which keeps the order of the lines; 32 for generated messages)",
    )
    add("--keep-going", action="store_true", help="go on after a message could not be sent")


def _add_consume(commands: _Commands) -> None:
    parser = _add_client_command(
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
    add("--tag", metavar="EXPR", default="*", help='tags wanted, such as "TagA || TagB" (*)')
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


def _add_topic(commands: _Commands) -> None:
    topic = _subcommands(commands, "topic", "list, create, delete or show topics")
    listing = _add_client_command(topic, "list", "topic:list_topics", "TopicListOptions", "list the topics")
    listing.add_argument("--all", action="store_true", help="also those that brokers and groups have for themselves")
    create = _add_client_command(topic, "create", "topic:create", "TopicCreateOptions", "create or change a topic")
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument("--queues", type=values.parse_positive, metavar="N", default=4, help="queues per broker (4)")
    create.add_argument(
        "--permission", choices=("rw", "r", "w"), default="rw", help="what is allowed: read, write or both (perm; rw)"
    )
    delete = _add_client_command(topic, "delete", "topic:delete", "TopicDeleteOptions", "delete a topic everywhere")
    delete.add_argument("topic", metavar="TOPIC")
    for parser in (create, delete):
        parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    show = _add_client_command(topic, "show", "topic:show", "TopicShowOptions", "show a topic's queues and offsets")
    show.add_argument("topic", metavar="TOPIC")


def _add_group(commands: _Commands) -> None:
    group = _subcommands(commands, "group", "list, show or reset consumer groups")
    listing = _add_client_command(group, "list", "group:list_groups", "GroupListOptions", "list the consumer groups")
    listing.add_argument("--all", action="store_true", help="also those that every broker has")
    show = _add_client_command(
        group, "show", "group:show", "GroupShowOptions", "show members, offsets and lag of a group"
    )
    show.add_argument("group", metavar="GROUP")
    show.add_argument("--topic", help="only this topic")
    reset = _add_client_command(
        group,
        "reset-offset",
        "group:reset_offset",
        "GroupResetOffsetOptions",
        "let a group consume a topic from elsewhere on, whether its members are online or not",
    )
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument("--topic", required=True, help="which of its topics")
    reset.add_argument(
        "--to",
        metavar="WHERE",
        type=values.parse_start,
        required=True,
        help="earliest, latest, a time, or -10m for ten minutes ago",
    )
    reset.add_argument("--dry-run", action="store_true", help="only tell what would be done")


def _add_dlq(commands: _Commands) -> None:
    dlq = _subcommands(commands, "dlq", "list dead letters, or send them back to their topics")
    listing = _add_client_command(
        dlq, "list", "dlq:list_letters", "DlqListOptions", "count the dead letters of all groups, or list those of one"
    )
    listing.add_argument("group", metavar="GROUP", nargs="?", help="list the dead letters of this group")
    listing.add_argument(
        "--limit", type=values.parse_positive, metavar="N", default=100, help="list N dead letters at most (100)"
    )
    redrive = _add_client_command(
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


def _add_store(commands: _Commands) -> None:
    store = _subcommands(commands, "store", "look into a store that no broker runs on, ours or Apache's; repair it")
    _add_store_command(store, "info", "StoreOptions", "show sizes, files and queues")
    _add_store_command(store, "check", "StoreOptions", "verify every record, queue and stored offset")
    dump = _add_store_command(store, "dump", "StoreDumpOptions", "write the messages of the commit log")
    add = dump.add_argument
    add("--topic", help="only this topic")
    add("--queue", dest="queue_id", metavar="N", type=values.parse_count, help="only queues with this id")
    add("--key", help="only messages with this key or message id")
    add(
        "--from", dest="begin", metavar="TIME", type=values.parse_time, help="only messages stored since then, see --to"
    )
    add("--to", dest="end", metavar="TIME", type=values.parse_time, help="... before: 2026-01-31T12:00, or -10m")
    add("--count", metavar="N", type=values.parse_positive, help="end after N messages")
    repair = _add_store_command(store, "repair", "StoreRepairOptions", "tell what a repair would do, or do it")
    repair.add_argument("--apply", action="store_true", help="do it; without it nothing is changed")
    export = _add_store_command(store, "export", "StoreExportOptions", "write the messages of a topic to a file")
    export.add_argument("topic", metavar="TOPIC")
    export.add_argument("file", metavar="FILE")
    load = _add_store_command(store, "import", "StoreImportOptions", "put messages from a file into a store")
    load.add_argument("file", metavar="FILE")
    for parser in (export, load):
        parser.add_argument(
            "--format", choices=("jsonl", "msgpack"), help="of the file (jsonl, or msgpack if its name ends so)"
        )


def _add_store_command(commands: _Commands, name: str, options_type: str, text: str) -> _Parser:
    runner = {"import": "import_"}.get(name, name)
    options_type = f"triomq.cli.store_options:{options_type}"
    parser = _add_command(commands, name, f"store:{runner}", options_type, text, log_level="warning")
    parser.add_argument("--store", metavar="DIR", help="folder of the store (that of triomq broker)")
    return parser


def _add_message(commands: _Commands) -> None:
    message = _subcommands(commands, "message", "show or find messages that are stored")
    show = _add_client_command(message, "show", "message:show", "MessageShowOptions", "show one message")
    show.add_argument("message_id", metavar="ID", help="its offset message id; with --topic also its message id")
    show.add_argument("--topic", help="where to look for a message id")
    find = _add_client_command(
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


def _subcommands(commands: _Commands, name: str, text: str) -> _Commands:
    parser: _Parser = commands.add_parser(
        name, help=text, description=text[:1].upper() + text[1:] + ".", epilog=EXIT_CODES_TEXT
    )
    return parser.add_subparsers(metavar="COMMAND", required=True)


Runner = Callable[[Options], int]
"""What ``Invocation.runner`` names."""
