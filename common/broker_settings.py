"""The settings of a broker, and those of a name server, a row each.

The options of ``triomq broker`` and ``triomq namesrv``, their configuration files and environment variables, the
requests 25 and 26, and the table in docs/configuration.md follow from these rows.  They are here, and not in the
broker, because the command line must not load the broker; conversion to types of the broker and its store is in
``cli/commands/broker.py``.

Source: wire.md 7.4, 7.5; BrokerConfig.java, MessageStoreConfig.java, NamesrvConfig.java, NettyServerConfig.java,
TlsSystemConfig.java.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from triomq.protocol.names import TRACE_TOPIC

_FLUSH_TYPES: Final = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
_ROLES: Final = {"async-master": "ASYNC_MASTER", "sync-master": "SYNC_MASTER", "slave": "SLAVE"}
_SLAVE_READ_RATIO: Final = 40  # percent: RocketMQ's accessMessageInMemoryMaxRatio
FLAGS: Final = {"true": True, "false": False}


def _read_number(text: str) -> float:
    if not re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text, re.ASCII):
        raise ValueError("a number")
    return float(text)


def _read_count(text: str) -> int:
    value = _read_number(text)
    if value != int(value):
        raise ValueError("a whole number")
    return int(value)


def read_flag(text: str) -> bool:
    """Return the value of ``true`` or ``false``; raises ValueError."""
    if text not in FLAGS:
        raise ValueError("true or false")
    return FLAGS[text]


def _read_hours(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,2}(;\d{1,2})*", text, re.ASCII):
        raise ValueError("hours of a day, separated by ;")
    return tuple(map(int, text.split(";")))


def _read_flush_type(text: str) -> str:
    if text not in _FLUSH_TYPES.values():
        raise ValueError(" or ".join(_FLUSH_TYPES.values()))
    return text.removesuffix("_FLUSH").lower()


def _read_kv_path(text: str) -> str:
    folder = text.removesuffix("/config/kvConfig.json")
    if folder in ("", text):
        raise ValueError("FOLDER/config/kvConfig.json")
    return folder


def _read_role(text: str) -> str:
    if text not in _ROLES.values():
        raise ValueError(", ".join(_ROLES.values()))
    return text.lower().replace("_", "-")


class Kind(NamedTuple):
    """RocketMQ's notation of a value.

    Attributes:
        read: returns the value that the command line has for the same option; its ``ValueError`` names the form.
        write: returns the text for tools.
        is_reported: whether request 26 returns the setting.
    """

    read: Callable[[str], Any]
    write: Callable[[Any], str] = str
    is_reported: bool = True


_TEXT: Final = Kind(str)
_COUNT: Final = Kind(_read_count, str)
_NUMBER: Final = Kind(_read_number, lambda value: str(value).removesuffix(".0"))
_FLAG: Final = Kind(read_flag, lambda value: "true" if value else "false")
_MS: Final = Kind(lambda text: _read_count(text) / 1000, lambda seconds: str(round(seconds * 1000)))
_HOURS: Final = Kind(_read_hours, lambda hours: ";".join(f"{hour:02d}" for hour in hours))
_FLUSH_TYPE: Final = Kind(_read_flush_type, lambda durability: _FLUSH_TYPES[durability.value])
_ROLE: Final = Kind(_read_role, _ROLES.__getitem__)
_SLAVE_READ: Final = Kind(
    lambda text: _SLAVE_READ_RATIO if read_flag(text) else None,
    lambda ratio: "false" if ratio is None else "true",
)
_IN_FILES: Final = Kind(str, is_reported=False)
_PORT: Final = Kind(lambda text: f"127.0.0.1:{_read_count(text)}", is_reported=False)


def variable_of(command: str, key: str) -> str:
    """Return the environment variable for an option of ``triomq broker`` or ``triomq namesrv``."""
    return f"TRIOMQ_{command}_{key}".upper().replace("-", "_")


class Setting(NamedTuple):
    """One setting.

    Attributes:
        option: as in ``--help``: ``--store DIR``, or ``--no-index`` for a flag; without dashes: not an option of the
            command, only for files and the environment; "": only for tools.
        field: of ``BrokerConfig`` or ``StoreConfig``, or the name under which ``make_config`` takes it.
        name: RocketMQ's, "" if it has none.
        default: as the help and the documentation show it.
        text: the help.
        is_live: whether a running broker can change it.
    """

    option: str
    field: str
    name: str
    kind: Kind
    default: str
    text: str = ""
    is_live: bool = False

    @property
    def key(self) -> str:
        """The name in files: that of the option without dashes at its begin."""
        return self.option.removesuffix("...").partition(" ")[0].removeprefix("--")

    @property
    def metavar(self) -> str:
        """The kind of its value, "" for a flag."""
        return self.option.removesuffix("...").partition(" ")[2]

    @property
    def rocketmq(self) -> str:
        """RocketMQ's notation of the same setting, "" without one."""
        return f"{self.name}=false" if self.name and self.key.startswith("no-") else self.name

    @property
    def help(self) -> str:
        """The text with RocketMQ's name and the default."""
        return f"{self.text} ({'; '.join(filter(None, (self.rocketmq, self.default)))})"


_LIVE: Final = True
_ADDRESSES: Final = (
    Setting("--listen HOST:PORT", "listen", "listenPort", _PORT, "127.0.0.1:10911",
            "address of the broker; port 0: any free port"),
    Setting("--namesrv-listen HOST:PORT", "namesrv_listen", "", _TEXT, "127.0.0.1:9876; with --register none",
            "address of its name server; port 0: any free port"),
    Setting("--register HOST:PORT[;HOST:PORT]", "register", "namesrvAddr", _IN_FILES, "none",
            "name servers to register with, separated by ;"),
    Setting("--advertise HOST[:PORT]", "advertise", "brokerIP1", _IN_FILES, "the address that the client connected to",
            "broker address in routes"),
    Setting("--listener NAME,namesrv=HOST:PORT,broker=HOST:PORT[,advertise=HOST[:PORT]]...", "listener", "", _TEXT,
            "none", "further addresses, for clients in another network; may be repeated"),
    Setting("--acl PATH", "acl", "", _TEXT, "none: everybody may do everything",
            "accounts and their rights: RocketMQ's plain_acl.yml, or a folder with it and further files below acl"),
    Setting("--quotas FILE", "quotas", "", _TEXT, "none",
            "how much each account and address may use, in YAML"),
)  # fmt: skip
#: Those that a name server has, too.
SECURITY: Final = (
    Setting("--insecure", "insecure", "", _TEXT, "off", "allow listening beyond loopback without accounts"),
    Setting("--admin-listen HOST:PORT", "admin_listen", "", _TEXT, "none",
            "an own address for administration, which is then refused elsewhere"),
    Setting("--brokers-from ADDRESS[,ADDRESS/PREFIX...]", "brokers_from", "", _TEXT, "only this machine",
            "from where brokers may register with the name server, and slaves may copy the log"),
    Setting("--no-local-peers", "local_peers", "", _TEXT, "peers at this machine's addresses are local",
            "no peer counts as local, as forwarded ports of a container need"),
    Setting("--metrics HOST:PORT", "metrics", "metricsPromExporterPort", _PORT,
            "127.0.0.1:5557, or a free port if that is in use",
            "where to serve metrics for Prometheus, /healthz and /readyz; off: nowhere"),
    Setting("--audit FILE", "audit", "", _TEXT, "none",
            "write administration, denied requests and logins to this file, one JSON object a line"),
    Setting("--tls-cert FILE", "tls_cert", "tls.server.certPath", _IN_FILES, "none",
            "certificate of the server, with those that signed it"),
    Setting("--tls-key FILE", "tls_key", "tls.server.keyPath", _IN_FILES, "none", "its private key, not encrypted"),
    Setting("--tls disabled|permissive|enforcing", "tls", "tls.server.mode", _IN_FILES, "permissive",
            "connections without TLS are still served (permissive), or refused (enforcing)"),
    Setting("--tls-client-ca FILE", "tls_client_ca", "tls.server.trustCertPath", _IN_FILES, "none",
            "who signs the certificates of clients"),
    Setting("--tls-client-auth none|optional|require", "tls_client_auth", "tls.server.need.client.auth", _IN_FILES,
            "require with --tls-client-ca, else none", "whether clients with TLS must show a certificate"),
    Setting("--memory-budget SIZE", "memory_budget_bytes", "", _TEXT, "128MiB",
            "memory for what peers do not read or finish, and for requests that wait"),
    Setting("--max-connections-per-address N", "max_connections_per_address", "", _TEXT, "half of all",
            "connections of one address beyond this machine"),
)  # fmt: skip
_STORE: Final = (
    Setting("--store DIR", "root", "storePathRootDir", _TEXT, "triomq/store in the user's data folder",
            "folder of the store"),
    Setting("--durability async|sync", "durability", "flushDiskType", _FLUSH_TYPE, "async",
            "acknowledge a send when the operating system has the message (async) or when it is on the disk (sync)"),
    Setting("--cluster-name NAME", "cluster_name", "brokerClusterName", _TEXT, "DefaultCluster", "name of the cluster"),
    Setting("--broker-name NAME", "broker_name", "brokerName", _TEXT, "broker-a", "name of the broker"),
    Setting("--commit-log-file-size SIZE", "commit_log_file_size_bytes", "mappedFileSizeCommitLog", _COUNT, "1GiB",
            "size of a commit log file; cannot change later"),
    Setting("--consume-queue-file-size SIZE", "consume_queue_file_size_bytes", "mappedFileSizeConsumeQueue", _COUNT,
            "6000000", "size of a consume queue file, in bytes"),
    Setting("--no-index", "index", "messageIndexEnable", _FLAG, "messages are indexed",
            "do not index messages by their keys"),
    Setting("--index-slots N", "index_slots", "maxHashSlotNum", _COUNT, "5000000", "slots of an index file"),
    Setting("--index-units N", "index_units", "maxIndexNum", _COUNT, "20000000",
            "units of an index file, one for each key of a message"),
)  # fmt: skip
_REPLICATION: Final = (
    Setting("--role async-master|sync-master|slave", "role", "brokerRole", _ROLE, "async-master",
            "a sync-master acknowledges a send when a slave has the message, too; a slave copies its master"),
    Setting("--broker-id NUMBER", "broker_id", "brokerId", _COUNT, "0",
            "0 for a master; a slave has its own number above 0"),
    Setting("--ha-listen HOST:PORT", "ha_listen", "haListenPort", _PORT, "none",
            "where slaves fetch the log; without accounts"),
    Setting("--ha-master HOST:PORT", "ha_master", "haMasterAddress", _IN_FILES, "as name servers know it",
            "where a slave fetches the log"),
    Setting("--ha-tls", "ha_tls", "", _TEXT, "off",
            "TLS between master and slave, with the certificate of --tls-cert; at both of them, not with Apache's"),
    Setting("--fast-listen HOST:PORT", "fast_listen", "", _TEXT, "the port of --listen minus 2, if it is free",
            "a second port for all requests but pulls; Java slaves fetch the topics there"),
    Setting("--slave-read-ratio PERCENT", "slave_read_ratio", "slaveReadEnable", _SLAVE_READ, "never",
            "point a group to a slave when it reads further behind the end of the log than this part of the memory",
            _LIVE),
)  # fmt: skip
_RETENTION: Final = (
    Setting("--retention-hours HOURS", "retention_hours", "fileReservedTime", _NUMBER, "72",
            "delete commit log files so many hours after their last write", _LIVE),
    Setting("--retention-bytes SIZE", "retention_bytes", "", _TEXT, "no limit",
            "longest commit log; above it the oldest files are deleted at any hour"),
    Setting("--delete-when HOUR[;HOUR...]", "delete_when", "deleteWhen", _HOURS, "04",
            "local hours in which old files are deleted, separated by ;", _LIVE),
    Setting("--disk-max-used-ratio PERCENT", "disk_max_used_ratio", "diskMaxUsedSpaceRatio", _COUNT, "75",
            "used disk space: above it old files are deleted at any hour", _LIVE),
    Setting("--disk-clean-ratio PERCENT", "disk_clean_ratio", "diskSpaceCleanForciblyRatio", _COUNT, "85",
            "used disk space: above it the oldest files are deleted whatever their age"),
    Setting("--disk-full-ratio PERCENT", "disk_full_ratio", "diskSpaceWarningLevelRatio", _COUNT, "90",
            "used disk space: above it sends are rejected"),
)  # fmt: skip
_MESSAGES: Final = (
    Setting("--delay-levels LEVELS", "delay_levels", "messageDelayLevel", _TEXT, "18 levels up to 2h",
            'delays of level 1, 2, ..., such as "10s 1m 1d"'),
    Setting("--no-auto-create-topic", "auto_create_topic", "autoCreateTopicEnable", _FLAG, "topics are created",
            "reject sends to unknown topics", _LIVE),
    Setting("--max-topics N", "max_topics", "", _TEXT, "50000", "most topics, retry topics of groups included"),
    Setting("--max-groups N", "max_groups", "", _TEXT, "50000", "most subscription groups"),
    Setting("--timer-max-delay S", "timer_max_delay_s", "timerMaxDelaySec", _NUMBER, "3d",
            "longest delay that a message may ask for", _LIVE),
    Setting("--transaction-timeout S", "transaction_timeout_s", "transactionTimeOut", _MS, "6s",
            "time until a producer is asked about an undecided transaction", _LIVE),
    Setting("--transaction-check-interval S", "transaction_check_interval_s", "transactionCheckInterval", _MS, "1m",
            "time between two such checks", _LIVE),
    Setting("--transaction-check-max N", "transaction_check_max", "transactionCheckMax", _COUNT, "15",
            "checks after which a transaction is given up", _LIVE),
    Setting("--stall-after S", "stall_after_s", "", _TEXT, "30s",
            "report a queue as stalled when messages wait in it and its group makes no progress for so long"),
)  # fmt: skip


def _other(key: str, name: str, kind: Kind, default: str, is_live: bool = False) -> Setting:
    """Return a setting without an option, for files and the environment."""
    return Setting(key, key.partition(" ")[0], name, kind, default, is_live=is_live)


_OTHERS: Final = (
    Setting("", "has_accounts", "aclEnable", _FLAG, "false"),
    _other("region NAME", "regionId", _TEXT, "DefaultRegion"),
    _other("auto_create_group", "autoCreateSubscriptionGroup", _FLAG, "true", _LIVE),
    _other("default_topic_queues N", "defaultTopicQueueNums", _COUNT, "8", _LIVE),
    _other("idle_timeout_s S", "serverChannelMaxIdleTimeSeconds", _NUMBER, "2m", _LIVE),
    _other("persist_offsets_interval_s S", "flushConsumerOffsetInterval", _MS, "5s"),
    _other("persist_delay_offsets_interval_s S", "flushDelayOffsetInterval", _MS, "10s"),
    _other("max_send_wait_s S", "waitTimeMillsInSendQueue", _MS, "0.05s", _LIVE),
    _other("max_frame_bytes SIZE", "com.rocketmq.remoting.frameMaxLength", _COUNT, "16MiB"),
    _other("sync_flush_timeout_s S", "syncFlushTimeout", _MS, "5s"),
    _other("slave_timeout_s S", "slaveTimeout", _MS, "3s", _LIVE),
    _other("max_message_size_bytes SIZE", "maxMessageSize", _COUNT, "4MiB"),
    _other("flush_interval_s S", "flushIntervalCommitLog", _MS, "0.5s"),
    _other("flush_least_pages COUNT", "flushCommitLogLeastPages", _COUNT, "4"),
    _other("flush_thorough_interval_s S", "flushCommitLogThoroughInterval", _MS, "10s"),
    _other("flush_consume_queue_interval_s S", "flushIntervalConsumeQueue", _MS, "1s"),
    _other("flush_consume_queue_least_pages COUNT", "flushConsumeQueueLeastPages", _COUNT, "2"),
    _other("flush_consume_queue_thorough_interval_s S", "flushConsumeQueueThoroughInterval", _MS, "1m"),
    _other("max_transfer_bytes_in_memory SIZE", "maxTransferBytesOnMessageInMemory", _COUNT, "256KiB", _LIVE),
    _other("max_transfer_count_in_memory N", "maxTransferCountOnMessageInMemory", _COUNT, "32", _LIVE),
    _other("max_transfer_bytes_in_disk SIZE", "maxTransferBytesOnMessageInDisk", _COUNT, "64KiB", _LIVE),
    _other("max_transfer_count_in_disk N", "maxTransferCountOnMessageInDisk", _COUNT, "8", _LIVE),
    _other("in_memory_max_ratio COUNT", "accessMessageInMemoryMaxRatio", _COUNT, "40", _LIVE),
    _other("clean_file_forcibly", "cleanFileForciblyEnable", _FLAG, "true", _LIVE),
    _other("clean_interval_s S", "cleanResourceInterval", _MS, "10s", _LIVE),
    _other("delete_files_interval_s S", "deleteCommitLogFilesInterval", _MS, "0.1s", _LIVE),
    _other("check_crc_on_recover", "checkCRCOnRecover", _FLAG, "true"),
)
OPTIONS: Final = (*_ADDRESSES, *SECURITY, *_STORE, *_REPLICATION, *_RETENTION, *_MESSAGES)
SETTINGS: Final = (*OPTIONS, *_OTHERS)
NAMESRV_SETTINGS: Final = (
    Setting("--listen HOST:PORT", "listen", "listenPort", _PORT, "127.0.0.1:9876",
            "address of the name server; port 0: any free port"),
    Setting("--store DIR", "root", "kvConfigPath", Kind(_read_kv_path), "triomq/namesrv in the user's data folder",
            "folder of its key-value table, config/kvConfig.json"),
    Setting("--order-messages", "order_messages", "orderMessageEnable", _FLAG, "off",
            "put the queues of order topics into routes"),
    *SECURITY,
)  # fmt: skip
FIXED: Final = {
    "filterServerNums": "0",
    "useTLS": "false",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceOn": "true",
    "traceTopicEnable": "true",
}
"""Settings that tools expect and that have no choice here."""
