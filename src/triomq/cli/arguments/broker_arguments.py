"""The options of ``triomq broker``."""

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, Parser, add_client_command, add_command


def add_broker(commands: Commands) -> None:
    """Add ``triomq broker`` and ``triomq broker status``."""
    parser = add_command(
        commands,
        "broker",
        "broker:run",
        "triomq.cli.arguments.options:BrokerOptions",
        "run a broker with its name server",
        log_level="info",
    )
    _add_addresses(parser)
    _add_store(parser)
    _add_retention(parser)
    _add_messages(parser)
    more = parser.add_subparsers(metavar="[COMMAND]", required=False)
    status = add_client_command(
        more, "status", "broker_status:run", "BrokerStatusOptions", "show settings and counters of running brokers"
    )
    status.add_argument("address", metavar="HOST:PORT", nargs="?", help="only this broker (all in the name server)")


def _add_store(parser: Parser) -> None:
    add = parser.add_argument
    add("--store", metavar="DIR", help="folder of the store (storePathRootDir; triomq/store in the user's data folder)")
    add(
        "--durability",
        choices=("async", "sync"),
        default="async",
        help="acknowledge a send when the operating system has the message (async) or when it is on the disk (sync) "
        "(flushDiskType; async)",
    )
    add("--cluster-name", metavar="NAME", default="DefaultCluster", help="brokerClusterName (DefaultCluster)")
    add("--broker-name", metavar="NAME", default="broker-a", help="brokerName (broker-a)")
    add(
        "--commit-log-file-size",
        metavar="SIZE",
        type=values.parse_size,
        default=1024**3,
        help="mappedFileSizeCommitLog (1GiB); cannot change later",
    )
    add(
        "--consume-queue-file-size",
        metavar="SIZE",
        type=values.parse_size,
        default=6_000_000,
        help="mappedFileSizeConsumeQueue, in bytes (6000000)",
    )
    add("--no-index", action="store_true", help="do not index messages by their keys (messageIndexEnable)")
    for option, default, text in (
        ("--index-slots", 5_000_000, "slots of an index file (maxHashSlotNum"),
        ("--index-units", 20_000_000, "units of an index file, one for each key of a message (maxIndexNum"),
    ):
        add(option, metavar="N", type=values.parse_positive, default=default, help=f"{text}; {default})")


def _add_messages(parser: Parser) -> None:
    add = parser.add_argument
    add("--no-auto-create-topic", action="store_true", help="reject sends to unknown topics (autoCreateTopicEnable)")
    add(
        "--delay-levels",
        metavar="LEVELS",
        help='delays of level 1, 2, ..., such as "10s 1m 1d" (messageDelayLevel; 18 levels up to 2h)',
    )
    add(
        "--timer-max-delay",
        metavar="S",
        type=values.parse_duration,
        default=259_200.0,
        help="longest delay that a message may ask for (timerMaxDelaySec; 3d)",
    )
    add(
        "--stall-after",
        metavar="S",
        type=values.parse_duration,
        default=30.0,
        help="report a queue as stalled when messages wait in it and its group makes no progress for so long (30s)",
    )


def _add_retention(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--retention-hours",
        metavar="N",
        type=values.parse_hours,
        default=72.0,
        help="delete commit log files so many hours after their last write (fileReservedTime; 72)",
    )
    add(
        "--retention-bytes",
        metavar="SIZE",
        type=values.parse_size,
        help="longest commit log; above it the oldest files are deleted at any hour (no limit)",
    )
    add(
        "--delete-when",
        metavar="HOURS",
        type=values.parse_hours_of_day,
        default=(4,),
        help="local hours in which old files are deleted, separated by ; (deleteWhen; 04)",
    )
    for option, default, text in (
        ("--disk-max-used-ratio", 75, "above it old files are deleted at any hour (diskMaxUsedSpaceRatio; 75)"),
        ("--disk-clean-ratio", 85, "above it the oldest files are deleted whatever their age (85)"),
        ("--disk-full-ratio", 90, "above it sends are rejected (90)"),
    ):
        add(option, metavar="PERCENT", type=values.parse_percent, default=default, help=f"used disk space: {text}")


def _add_addresses(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:10911",
        help="address of the broker (listenPort; 127.0.0.1:10911; port 0: any free port)",
    )
    add(
        "--namesrv-listen",
        metavar="HOST:PORT",
        default="127.0.0.1:9876",
        help="address of its name server (127.0.0.1:9876; port 0: any free port)",
    )
    add(
        "--advertise",
        metavar="HOST[:PORT]",
        help="broker address in routes (brokerIP1; default: the address that the client connected to)",
    )
    add(
        "--listener",
        metavar="NAME,namesrv=HOST:PORT,broker=HOST:PORT[,advertise=HOST[:PORT]]",
        action="append",
        default=[],
        help="further addresses, for clients in another network; may be repeated",
    )
    add("--insecure", action="store_true", help="allow listening beyond loopback without accounts and TLS")
