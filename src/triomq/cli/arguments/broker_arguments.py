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
    add(
        "--stall-after",
        metavar="S",
        type=values.parse_duration,
        default=30.0,
        help="a queue is reported as stalled when messages wait in it so long and the group does not get on (30s)",
    )
    add("--no-auto-create-topic", action="store_true", help="refuse sends to unknown topics (autoCreateTopicEnable)")
    add("--no-index", action="store_true", help="do not index messages by their keys (messageIndexEnable)")
    for option, default, text in (
        ("--index-slots", 5_000_000, "slots of an index file (maxHashSlotNum"),
        ("--index-units", 20_000_000, "units of an index file, one for each key of a message (maxIndexNum"),
    ):
        add(option, metavar="N", type=values.parse_positive, default=default, help=f"{text}; {default})")
    more = parser.add_subparsers(metavar="[COMMAND]", required=False)
    status = add_client_command(
        more, "status", "broker_status:run", "BrokerStatusOptions", "tell how running brokers are set up and doing"
    )
    status.add_argument(
        "address", metavar="HOST:PORT", nargs="?", help="of one broker (all that the name server knows)"
    )


def _add_delays(parser: Parser) -> None:
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


def _add_retention(parser: Parser) -> None:
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


def _add_addresses(parser: Parser) -> None:
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
