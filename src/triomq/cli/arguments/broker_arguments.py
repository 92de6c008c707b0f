"""The options of the servers: ``triomq broker``, ``triomq namesrv``, ``triomq cluster``."""

from functools import partial

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, Parser, add_client_command, add_command, add_option


def add_broker(commands: Commands) -> None:
    """Add ``triomq broker`` and its commands."""
    options_type = "triomq.cli.arguments.options:BrokerOptions"
    text = "run a broker with its name server"
    parser = add_command(commands, "broker", "broker:run", options_type, text, log_level="info")
    _add_addresses(parser)
    _add_security(parser)
    _add_store(parser)
    _add_retention(parser)
    _add_messages(parser)
    more = parser.add_subparsers(metavar="[COMMAND]", required=False)
    status = add_client_command(
        more, "status", "broker_status:run", "BrokerStatusOptions", "show settings and counters of running brokers"
    )
    status.add_argument("address", metavar="HOST:PORT", nargs="?", help="only this broker (all in the name server)")
    text = "change settings of running brokers, until they are started again"
    change = add_client_command(more, "set", "broker_status:change", "BrokerSetOptions", text)
    change.add_argument("settings", metavar="NAME=VALUE", nargs="+", help="RocketMQ's name and the new value")
    add_option(change, "--broker HOST:PORT", "only this broker (all in the name server)")


def add_namesrv(commands: Commands) -> None:
    """Add ``triomq namesrv``."""
    options_type = "triomq.cli.arguments.options:NamesrvOptions"
    text = "run a name server without a broker, for brokers that register with it"
    parser = add_command(commands, "namesrv", "namesrv:run", options_type, text, log_level="info")
    address = "127.0.0.1:9876"
    add_option(parser, "--listen HOST:PORT", f"its address (listenPort; {address}; port 0: any free port)", address)
    text = "folder of its key-value table (kvConfigPath; triomq/namesrv in the user's data folder)"
    add_option(parser, "--store DIR", text)
    add_option(parser, "--order-messages", "put the queues of order topics into routes (orderMessageEnable)")
    _add_security(parser)


def add_cluster(commands: Commands) -> None:
    """Add ``triomq cluster``."""
    options_type = "triomq.cli.arguments.options:ClusterOptions"
    text = "run a name server and several brokers, each a process of its own"
    parser = add_command(commands, "cluster", "cluster:run", options_type, text, log_level="info")
    add = partial(add_option, parser)
    add("--brokers N", "how many brokers: broker-a, broker-b ... (2)", 2)
    address = "127.0.0.1:10911"
    text = f"address of the first broker ({address}), each next port is 10 higher; port 0: any free ports"
    add("--listen HOST:PORT", text, address)
    address = "127.0.0.1:9876"
    add("--namesrv-listen HOST:PORT", f"address of the name server ({address}; port 0: any free port)", address)
    add("--store DIR", "folder of all stores and of the brokers' logs (triomq/cluster in the user's data folder)")
    add("--insecure", "allow listening beyond loopback without accounts")
    parser.add_argument(
        "options", metavar="-- BROKER_OPTION", nargs="*", help="options of triomq broker for all brokers"
    )


def _add_addresses(parser: Parser) -> None:
    add = partial(add_option, parser)
    address = "127.0.0.1:10911"
    add("--listen HOST:PORT", f"address of the broker (listenPort; {address}; port 0: any free port)", address)
    address = "127.0.0.1:9876"
    text = f"address of its name server ({address}, with --register none; port 0: any free port)"
    add("--namesrv-listen HOST:PORT", text)
    text = "name servers to register with, separated by ; (namesrvAddr)"
    add("--register HOST:PORT[;HOST:PORT]", text, read=values.parse_namesrv)
    text = "broker address in routes (brokerIP1; default: the address that the client connected to)"
    add("--advertise HOST[:PORT]", text)
    text = "further addresses, for clients in another network; may be repeated"
    add("--listener NAME,namesrv=HOST:PORT,broker=HOST:PORT[,advertise=HOST[:PORT]]...", text)
    add(
        "--acl FILE",
        "accounts and their rights, RocketMQ's plain_acl.yml (aclEnable; none: everybody may do everything)",
    )
    add("--acl-like-apache", "check only what RocketMQ checks: any account reads and changes much that is not its own")
    add("--end-with-stdin", "stop also when stdin ends, as when the program that started it ends")


def _add_security(parser: Parser) -> None:
    add = partial(add_option, parser)
    add("--insecure", "allow listening beyond loopback without accounts")
    add("--tls-cert FILE", "certificate of the server, with those that signed it (tls.server.certPath)")
    add("--tls-key FILE", "its private key, not encrypted (tls.server.keyPath)")
    text = "connections without TLS are still served (permissive), or refused (enforcing) (tls.server.mode; permissive)"
    add("--tls disabled|permissive|enforcing", text)
    add("--tls-client-ca FILE", "who signs the certificates of clients (tls.server.trustCertPath)")
    text = (
        "whether clients with TLS must show one (tls.server.need.client.auth; require with --tls-client-ca, else none)"
    )
    add("--tls-client-auth none|optional|require", text)


def _add_store(parser: Parser) -> None:
    add = partial(add_option, parser)
    add("--store DIR", "folder of the store (storePathRootDir; triomq/store in the user's data folder)")
    text = "acknowledge a send when the operating system has the message (async) or when it is on the disk (sync) "
    add("--durability async|sync", f"{text}(flushDiskType; async)", "async")
    add("--cluster-name NAME", "brokerClusterName (DefaultCluster)", "DefaultCluster")
    add("--broker-name NAME", "brokerName (broker-a)", "broker-a")
    add("--commit-log-file-size SIZE", "mappedFileSizeCommitLog (1GiB); cannot change later", 1024**3)
    add("--consume-queue-file-size SIZE", "mappedFileSizeConsumeQueue, in bytes (6000000)", 6_000_000)
    add("--no-index", "do not index messages by their keys (messageIndexEnable)")
    add("--index-slots N", "slots of an index file (maxHashSlotNum; 5000000)", 5_000_000)
    text = "units of an index file, one for each key of a message (maxIndexNum; 20000000)"
    add("--index-units N", text, 20_000_000)


def _add_retention(parser: Parser) -> None:
    add = partial(add_option, parser)
    text = "delete commit log files so many hours after their last write (fileReservedTime; 72)"
    add("--retention-hours N", text, 72.0, read=values.parse_hours)
    add("--retention-bytes SIZE", "longest commit log; above it the oldest files are deleted at any hour (no limit)")
    text = "local hours in which old files are deleted, separated by ; (deleteWhen; 04)"
    add("--delete-when HOURS", text, (4,))
    for option, default, text in (
        ("--disk-max-used-ratio", 75, "above it old files are deleted at any hour (diskMaxUsedSpaceRatio; 75)"),
        ("--disk-clean-ratio", 85, "above it the oldest files are deleted whatever their age (85)"),
        ("--disk-full-ratio", 90, "above it sends are rejected (90)"),
    ):
        add(f"{option} PERCENT", f"used disk space: {text}", default)


def _add_messages(parser: Parser) -> None:
    add = partial(add_option, parser)
    add("--no-auto-create-topic", "reject sends to unknown topics (autoCreateTopicEnable)")
    text = 'delays of level 1, 2, ..., such as "10s 1m 1d" (messageDelayLevel; 18 levels up to 2h)'
    add("--delay-levels LEVELS", text)
    add("--timer-max-delay S", "longest delay that a message may ask for (timerMaxDelaySec; 3d)", 259_200.0)
    text = "time until a producer is asked about an undecided transaction (transactionTimeOut; 6s)"
    add("--transaction-timeout S", text, 6.0)
    add("--transaction-check-interval S", "time between two such checks (transactionCheckInterval; 1m)", 60.0)
    add("--transaction-check-max N", "checks after which a transaction is given up (transactionCheckMax; 15)", 15)
    text = "report a queue as stalled when messages wait in it and its group makes no progress for so long (30s)"
    add("--stall-after S", text, 30.0)
