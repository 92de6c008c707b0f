"""The options of the servers: ``triomq broker``, ``triomq namesrv``, ``triomq cluster``."""

import argparse
from functools import partial
from typing import Any

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
    _add_security(parser)
    text = "put the queues of order topics into routes (orderMessageEnable)"
    _add_setting(parser, "--order-messages", "order_messages", text, const=True)


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


def add_init(commands: Commands) -> None:
    """Add ``triomq init``."""
    options_type = "triomq.cli.arguments.options:InitOptions"
    text = "write accounts and certificates for a broker on a network into a new folder"
    parser = add_command(commands, "init", "init:run", options_type, text)
    add_option(parser, "DIR", "the folder; it must not exist, or be empty")
    add_option(parser, "--acl", "write an administrator and an application, with new secrets")
    add_option(parser, "--tls", "write a CA and a certificate signed by it, for three years; needs openssl")
    text = "name or IP address by which clients reach the broker, beside localhost, 127.0.0.1 and ::1; may be repeated"
    add_option(parser, "--host HOST...", text)


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
        "--acl PATH",
        "accounts and their rights: RocketMQ's plain_acl.yml, or a folder with it and further files below acl "
        "(aclEnable; none: everybody may do everything)",
    )
    add("--quotas FILE", "how much each account, address and topic may use, in YAML (none: no quotas)")
    add("--end-with-stdin", "stop also when stdin ends, as when the program that started it ends")


def _add_security(parser: Parser) -> None:
    parser.set_defaults(settings={})
    add = partial(add_option, parser)
    add("--insecure", "allow listening beyond loopback without accounts")
    add("--admin-listen HOST:PORT", "an own address for administration, which is then refused elsewhere (none)")
    text = "brokers may register with the name server from there (only from this machine)"
    add("--brokers-from ADDRESS[,ADDRESS/PREFIX...]", text)
    text = "where to serve metrics for Prometheus, /healthz and /readyz; off: nowhere (127.0.0.1:5557, or a free port"
    add("--metrics HOST:PORT", f"{text} if that is in use)")
    add("--audit FILE", "write administration, denied requests and logins to this file, one JSON object a line")
    add("--tls-cert FILE", "certificate of the server, with those that signed it (tls.server.certPath)")
    add("--tls-key FILE", "its private key, not encrypted (tls.server.keyPath)")
    text = "connections without TLS are still served (permissive), or refused (enforcing) (tls.server.mode; permissive)"
    add("--tls disabled|permissive|enforcing", text)
    add("--tls-client-ca FILE", "who signs the certificates of clients (tls.server.trustCertPath)")
    text = (
        "whether clients with TLS must show one (tls.server.need.client.auth; require with --tls-client-ca, else none)"
    )
    add("--tls-client-auth none|optional|require", text)
    text = "memory for what peers do not read or finish, and for requests that wait (128MiB)"
    _add_setting(parser, "--memory-budget SIZE", "memory_budget_bytes", text)
    text = "connections of one address beyond this machine (half of all)"
    _add_setting(parser, "--max-connections-per-address N", "max_connections_per_address", text)


def _add_store(parser: Parser) -> None:
    add = partial(add_option, parser)
    add("--store DIR", "folder of the store (storePathRootDir; triomq/store in the user's data folder)")
    text = "acknowledge a send when the operating system has the message (async) or when it is on the disk (sync) "
    add("--durability async|sync", f"{text}(flushDiskType; async)", "async")
    add("--broker-name NAME", "brokerName (broker-a)", "broker-a")
    add = partial(_add_setting, parser)
    add("--cluster-name NAME", "cluster_name", "brokerClusterName (DefaultCluster)")
    text = "mappedFileSizeCommitLog (1GiB); cannot change later"
    add("--commit-log-file-size SIZE", "commit_log_file_size_bytes", text)
    text = "mappedFileSizeConsumeQueue, in bytes (6000000)"
    add("--consume-queue-file-size SIZE", "consume_queue_file_size_bytes", text)
    add("--no-index", "index", "do not index messages by their keys (messageIndexEnable)", const=False)
    add("--index-slots N", "index_slots", "slots of an index file (maxHashSlotNum; 5000000)")
    text = "units of an index file, one for each key of a message (maxIndexNum; 20000000)"
    add("--index-units N", "index_units", text)


def _add_retention(parser: Parser) -> None:
    add = partial(_add_setting, parser)
    text = "delete commit log files so many hours after their last write (fileReservedTime; 72)"
    add("--retention-hours N", "retention_hours", text, read=values.parse_hours)
    text = "longest commit log; above it the oldest files are deleted at any hour (no limit)"
    add("--retention-bytes SIZE", "retention_bytes", text)
    text = "local hours in which old files are deleted, separated by ; (deleteWhen; 04)"
    add("--delete-when HOURS", "delete_when", text)
    text = "used disk space: above it old files are deleted at any hour (diskMaxUsedSpaceRatio; 75)"
    add("--disk-max-used-ratio PERCENT", "disk_max_used_ratio", text)
    text = "used disk space: above it the oldest files are deleted whatever their age (85)"
    add("--disk-clean-ratio PERCENT", "disk_clean_ratio", text)
    add("--disk-full-ratio PERCENT", "disk_full_ratio", "used disk space: above it sends are rejected (90)")


def _add_messages(parser: Parser) -> None:
    text = 'delays of level 1, 2, ..., such as "10s 1m 1d" (messageDelayLevel; 18 levels up to 2h)'
    add_option(parser, "--delay-levels LEVELS", text)
    add = partial(_add_setting, parser)
    text = "reject sends to unknown topics (autoCreateTopicEnable)"
    add("--no-auto-create-topic", "auto_create_topic", text, const=False)
    add("--max-topics N", "max_topics", "most topics, retry topics of groups included (50000)")
    add("--max-groups N", "max_groups", "most subscription groups (50000)")
    text = "longest delay that a message may ask for (timerMaxDelaySec; 3d)"
    add("--timer-max-delay S", "timer_max_delay_s", text)
    text = "time until a producer is asked about an undecided transaction (transactionTimeOut; 6s)"
    add("--transaction-timeout S", "transaction_timeout_s", text)
    text = "time between two such checks (transactionCheckInterval; 1m)"
    add("--transaction-check-interval S", "transaction_check_interval_s", text)
    text = "checks after which a transaction is given up (transactionCheckMax; 15)"
    add("--transaction-check-max N", "transaction_check_max", text)
    text = "report a queue as stalled when messages wait in it and its group makes no progress for so long (30s)"
    add("--stall-after S", "stall_after_s", text)


def _add_setting(parser: Parser, spec: str, field: str, text: str, **settings: Any) -> None:
    """Declare an option for a field of the server's configuration or ``StoreConfig``; with ``const`` it is a flag."""
    if "const" in settings:
        settings["nargs"] = 0
    add_option(parser, spec, text, argparse.SUPPRESS, dest=field, action=_Setting, **settings)


class _Setting(argparse.Action):
    """Adds a setting to ``settings``, under the name of its field."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, value: object, _option: object = None) -> None:
        namespace.settings = {**namespace.settings, self.dest: value if self.const is None else self.const}
