"""Settings of a broker, each with its unit and RocketMQ's name."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from triomq.broker.addresses import Address, Network
from triomq.protocol.bodies.group_health import STALL_AFTER_S
from triomq.protocol.errors import ConfigError
from triomq.protocol.wire.frame import MAX_FRAME_BYTES
from triomq.storage.config import StoreConfig

DEFAULT_BROKER: Final = Address("127.0.0.1", 10911)
DEFAULT_NAMESRV: Final = Address("127.0.0.1", 9876)
DEFAULT_METRICS: Final = Address("127.0.0.1", 5557)  # metricsPromExporterPort
#: Docker's, Podman's and CRI-O's, and that of Kubernetes; Podman makes no file on a read-only system, but a variable.
_CONTAINER_MARKS: Final = tuple(map(Path, ("/.dockerenv", "/run/.containerenv", "/run/secrets/kubernetes.io")))
_MAX_ADVERTISED_LENGTH: Final = 255
_MAX_DELAY_S: Final = 366 * 86_400
_MAX_PERCENT: Final = 100
_POSITIVE: Final = (
    "idle_timeout_s", "client_timeout_s", "unread_timeout_s", "persist_offsets_interval_s", "slave_timeout_s",
    "persist_delay_offsets_interval_s", "timer_max_delay_s", "transaction_timeout_s", "transaction_check_interval_s",
    "transaction_check_max", "stall_after_s", "max_topics", "max_groups", "max_group_topics", "max_heartbeat_bytes",
    "max_sql_characters", "max_client_groups", "max_client_subscriptions",
)  # fmt: skip
#: More queues in one topic are a mistake or an attack: each costs a file.
MAX_QUEUES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A pair of ports, and the broker's address in the routes that the name-server port of the pair returns.

    With several pairs, clients of several networks can reach one broker, each at the address that works there.
    """

    name: str = "default"
    broker: Address = DEFAULT_BROKER  # brokerIP1, listenPort
    namesrv: Address | None = DEFAULT_NAMESRV  # None: only the broker's port serves requests to name servers
    advertise: str | None = None  # HOST or HOST:PORT; None: the address that the client connected to

    def advertised(self, port: int) -> Address | None:
        """Return the address for clients; ``port`` is that of ``broker``, once it is known."""
        return None if self.advertise is None else Address.parse(self.advertise, port)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Settings of TLS at all ports of a server.

    Raises:
        ConfigError: the settings contradict each other.
    """

    cert: Path  # tls.server.certPath: the certificate, with those that signed it
    key: Path  # tls.server.keyPath
    client_ca: Path | None = None  # tls.server.trustCertPath: who signs the certificates of clients
    client_auth: Literal["none", "optional", "require"] = "none"  # tls.server.need.client.auth
    enforcing: bool = False  # tls.server.mode: refuse connections without TLS

    def __post_init__(self) -> None:
        if (self.client_auth == "none") != (self.client_ca is None):
            raise ConfigError("TLS: the certificates of clients need both a client CA and client_auth, or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Settings of a server's connections."""

    max_frame_bytes: int = MAX_FRAME_BYTES  # com.rocketmq.remoting.frameMaxLength
    max_connections: int = 20_000
    max_connections_per_address: int = 0  # of one address beyond this machine; 0: half of all
    idle_timeout_s: float = 120.0  # serverChannelMaxIdleTimeSeconds
    unread_high_bytes: int = 4 * 1024**2  # a peer with more unread answers is not served until it reads
    memory_budget_bytes: int = 128 * 1024**2  # that peers may make the broker hold, beyond its own needs
    max_body_bytes: int = 256 * 1024  # of a request that locks queues, some 4,000, or checks a filter
    unread_timeout_s: float = 60.0  # ... and is disconnected if it reads nothing for this time
    shutdown_grace_s: float = 1.0
    tls: TlsConfig | None = None
    insecure: bool = False  # listen beyond loopback although clients do not log in
    admin_listen: Address | None = None  # the only address that serves administration
    brokers_from: tuple[Network, ...] = ()  # brokers may register from there, beside this machine
    local_peers: bool = True  # peers at this machine's addresses are local; False: none is
    metrics: Address | None = None  # address of the metrics; DEFAULT_METRICS: another port if that is in use
    audit: Path | None = None  # the audit, a JSON object in each line
    audit_file_bytes: int = 16 * 1024**2  # size above which the next file begins
    audit_files: int = 10  # full files that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ConnectionConfig):
    """All settings of a broker.

    Raises:
        ConfigError: a value is impossible, or would open the broker to a network without ``insecure``.
    """

    store: StoreConfig
    listeners: tuple[Listener, ...] = (Listener(),)
    register: tuple[Address, ...] = ()  # namesrvAddr: name servers that this broker registers with
    acl: Path | None = None  # aclEnable: plain_acl.yml or the folder conf; None: no accounts, all may do everything
    quotas: Path | None = None  # how much each account, address and topic may use
    cluster_name: str = "DefaultCluster"  # brokerClusterName
    broker_name: str = "broker-a"  # brokerName
    role: Literal["async-master", "sync-master", "slave"] = "async-master"  # brokerRole
    broker_id: int = 0  # brokerId: 0: the master; its slaves have others
    ha_listen: Address | None = None  # haListenPort: where slaves fetch the log
    ha_master: Address | None = None  # haMasterAddress; None: a slave asks its name servers
    ha_tls: bool = False  # TLS for the log between master and slave, with the certificate of ``tls``
    fast_listen: Address | None = None  # serves all but pulls; None: listen port - 2, if that is free
    slave_read_ratio: int | None = None  # slaveReadEnable with accessMessageInMemoryMaxRatio, percent; None: never
    slave_timeout_s: float = 3.0  # slaveTimeout: how long a send waits for a slave of a sync-master
    region: str = "DefaultRegion"  # regionId
    auto_create_topic: bool = True  # autoCreateTopicEnable
    auto_create_group: bool = True  # autoCreateSubscriptionGroup
    default_topic_queues: int = 8  # defaultTopicQueueNums: of the template TBW102
    max_topics: int = 50_000
    max_groups: int = 50_000  # subscription groups
    max_group_topics: int = 200_000  # pairs of a group and a topic in which it has stored offsets
    max_heartbeat_bytes: int = 1024**2
    max_sql_characters: int = 6 * 1024  # of a filter
    max_client_groups: int = 500  # of producers and consumers on one connection
    max_client_subscriptions: int = 2_000  # of all groups on one connection
    client_timeout_s: float = 120.0  # a member without a heartbeat for this time is removed
    max_hold_s: float = 60.0  # longest time a pull may ask to be held
    filtered_hold_s: float = 5.0  # a held pull is answered this long after messages that its filter rejected
    retention_delay_s: float = 60.0  # of the first run after the start; fixed in RocketMQ
    persist_offsets_interval_s: float = 5.0  # flushConsumerOffsetInterval
    persist_delay_offsets_interval_s: float = 10.0  # flushDelayOffsetInterval
    timer_max_delay_s: float = 259_200.0  # timerMaxDelaySec: a message with a longer delay is refused
    transaction_timeout_s: float = 6.0  # transactionTimeOut: how long a half message waits for its first check
    transaction_check_interval_s: float = 60.0  # transactionCheckInterval: time between two checks
    transaction_check_max: int = 15  # transactionCheckMax: after so many checks a transaction is given up
    max_send_wait_s: float = 0.05  # waitTimeMillsInSendQueue, there 200 ms: of sends; 0: none is refused for it
    stall_after_s: float = STALL_AFTER_S  # a queue whose messages wait this long without progress is reported
    sync_flush_timeout_s: float = 5.0  # syncFlushTimeout

    @property
    def has_accounts(self) -> bool:
        """Whether requests need an account."""
        return self.acl is not None

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies a master."""
        return self.role == "slave"

    @property
    def transaction_timeout_ms(self) -> int:
        """How long a half message waits for its first check."""
        return round(self.transaction_timeout_s * 1000)

    @property
    def transaction_check_interval_ms(self) -> int:
        """Time between two checks."""
        return round(self.transaction_check_interval_s * 1000)

    @property
    def transaction_max_age_ms(self) -> int:
        """Age at which a transaction is given up: files of the log may be deleted then."""
        return round(self.store.retention_hours * 3_600_000)

    @property
    def timer_max_delay_ms(self) -> int:
        """Longest delay of a message with a delivery time."""
        return round(self.timer_max_delay_s * 1000)

    @property
    def exposure(self) -> str:
        """The operations open to every client, with addresses, for the log; "" for none, as on loopback."""
        copies = "copies of the log", None if self._knows_slaves else self.ha_listen
        if self.has_accounts:
            return _exposure((), copies)
        allowed = "messages" if self.admin_listen else "messages and administration"
        pairs = [pair for each in self.listeners for pair in ((allowed, each.broker), ("routes", each.namesrv))]
        return _exposure(
            self.brokers_from, *pairs, (allowed, self.fast_listen), ("administration", self.admin_listen), copies
        )

    @property
    def _knows_slaves(self) -> bool:
        """Whether it knows slaves by their networks or their certificates."""
        has_certificates = self.ha_tls and self.tls is not None and self.tls.client_auth == "require"
        return has_certificates or bool(self.brokers_from)

    @property
    def may_misjudge_peers(self) -> bool:
        """Whether a forwarded port may make every client look local."""
        addresses = (address for each in self.listeners for address in (each.broker, each.namesrv))
        return self.local_peers and _takes_forwarded(*addresses)

    @property
    def replayable_at(self) -> str:
        """Addresses beyond this machine where signed requests may come without TLS, between commas; "" if none."""
        if not self.has_accounts or (self.tls is not None and self.tls.enforcing):
            return ""
        addresses = (*(each.broker for each in self.listeners), self.admin_listen)
        return ", ".join(str(address) for address in addresses if address and not address.is_loopback)

    def __post_init__(self) -> None:
        if not self.listeners:
            raise ConfigError("a broker needs at least one listener")
        for listener in self.listeners:
            for address in filter(None, (listener.broker, listener.namesrv, self.admin_listen, self.fast_listen)):
                check_exposure(address, insecure=self.insecure or self.has_accounts)
            if listener.advertise is not None and not 0 < len(listener.advertise) <= _MAX_ADVERTISED_LENGTH:
                raise ConfigError(f"listener {listener.name}: the advertised address is empty or too long")
            listener.advertised(listener.broker.port)
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0 < self.default_topic_queues <= MAX_QUEUES:
            raise ConfigError(f"default_topic_queues is {self.default_topic_queues}, must be 1 to {MAX_QUEUES}")
        if self.max_send_wait_s < 0:
            raise ConfigError(f"max_send_wait_s is {self.max_send_wait_s}, must be 0 (no limit) or above")
        if self.timer_max_delay_s > _MAX_DELAY_S:
            raise ConfigError(f"timer_max_delay_s: {self.timer_max_delay_s} is above a year, {_MAX_DELAY_S}")
        self._check_replication()

    def _check_replication(self) -> None:
        wrong = ""
        if self.is_slave and self.broker_id <= 0:
            wrong = "a slave needs a broker id above 0, which no other slave of its master has: --broker-id (brokerId)"
        elif not self.is_slave and self.broker_id != 0:
            wrong = f"broker id {self.broker_id} is a slave's, a master has 0: add --role slave, or leave it out"
        elif not self.is_slave and self.ha_master is not None:
            wrong = f"{self.role} with --ha-master (haMasterAddress): only a slave has a master; add --role slave"
        elif self.is_slave and self.ha_master is None and not self.register:
            wrong = "a slave needs its master: --register the master's name servers, or --ha-master HOST:PORT"
        elif self.role == "sync-master" and self.ha_listen is None:
            wrong = "a sync-master needs --ha-listen HOST:PORT (haListenPort), where its slaves fetch the log"
        elif self.slave_read_ratio is not None and not 0 <= self.slave_read_ratio <= _MAX_PERCENT:
            wrong = f"slave_read_ratio is {self.slave_read_ratio}, must be 0 to {_MAX_PERCENT}"
        elif self.ha_listen or self.ha_tls:
            wrong = self._ha_problem()
        if wrong:
            raise ConfigError(wrong)

    def _ha_problem(self) -> str:
        """Return why the log cannot be served so, or fetched so; "" if it can."""
        if self.ha_tls and self.tls is None:
            return "--ha-tls needs a certificate: --tls-cert and --tls-key"
        if self.ha_master is not None and self.ha_master == self.ha_listen:
            return f"--ha-master {self.ha_master} is the slave's own --ha-listen: name its master"
        if self.ha_listen and not (self.ha_listen.is_loopback or self._knows_slaves or self.insecure):
            return (
                f"listening for slaves on {self.ha_listen} would let everybody who reaches it copy all messages: the "
                "replication protocol has no accounts; name the slaves' networks with --brokers-from, ask for their "
                "certificates with --ha-tls and --tls-client-ca, or give --insecure if the network is trusted"
            )
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(ConnectionConfig):
    """All settings of a name server without a broker.

    Raises:
        ConfigError: a value would open it to a network without ``insecure``.
    """

    root: Path  # of its key-value table
    listen: Address = DEFAULT_NAMESRV  # bindAddress, listenPort
    order_messages: bool = False  # orderMessageEnable

    def __post_init__(self) -> None:
        for address in filter(None, (self.listen, self.admin_listen)):
            check_exposure(address, insecure=self.insecure)

    @property
    def exposure(self) -> str:
        """The operations open to every client, with addresses, for the log; "" on loopback."""
        return _exposure(self.brokers_from, ("routes", self.listen), ("administration", self.admin_listen))

    @property
    def may_misjudge_peers(self) -> bool:
        """Whether a forwarded port may make every client look local."""
        return self.local_peers and _takes_forwarded(self.listen)


def _takes_forwarded(*addresses: Address | None) -> bool:
    """Whether an engine may forward ports to these addresses, inside a container."""
    is_open = any(address is not None and not address.is_loopback for address in addresses)
    variable = os.environ.get("container")  # noqa: SIM112  # spelt so by Podman
    return is_open and bool(variable or any(mark.exists() for mark in _CONTAINER_MARKS))


def _exposure(brokers_from: tuple[Network, ...], *allowed: tuple[str, Address | None]) -> str:
    found = [f"{operation} at {address}" for operation, address in allowed if address and not address.is_loopback]
    if found and brokers_from:
        found.append(f"registration for brokers from {', '.join(map(str, brokers_from))}")
    return "; ".join(found)


def check_exposure(address: Address, *, insecure: bool) -> None:
    """Check that only this machine reaches a listener, unless the settings allow others.

    Raises:
        ConfigError: other machines would reach it.
    """
    if not address.is_loopback and not insecure:
        raise ConfigError(
            f"listening on {address} would allow every client that reaches it to send, read and delete messages or to "
            "change routes, because it needs no account: listen on 127.0.0.1, give a broker accounts with --acl, "
            "or give --insecure if the network is trusted"
        )


def default_store_root() -> Path:
    """Return the store below the user's data folder (XDG_DATA_HOME)."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "triomq" / "store"
