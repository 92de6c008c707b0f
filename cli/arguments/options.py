"""The commands that run servers, send and consume, with their options."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Options, option
from triomq.cli.arguments.values import StartAt
from triomq.common.broker_settings import NAMESRV_SETTINGS, SETTINGS, Setting
from triomq.protocol.filters.filter_types import Sql

BROKER_ADDRESS: Final = "127.0.0.1:10911"
NAMESRV_ADDRESS: Final = "127.0.0.1:9876"
NAMESRV_VARIABLE: Final = "TRIOMQ_NAMESRV"
CREDENTIALS_VARIABLE: Final = "TRIOMQ_CREDENTIALS"
DEFAULT_PRODUCER_GROUP: Final = "triomq-produce"

ONE_BROKER: Final = option("--broker HOST:PORT", "only this broker (all in the name server)")
_END_WITH_STDIN: Final = option(
    "--end-with-stdin", "stop also when stdin ends, as when the program that started it ends"
)
_LOG_LEVEL: Final = option("--log-level debug|info|warning|error", "what to log (info)", "info")
_GROUP: Final = option("--group GROUP", f"producer group ({DEFAULT_PRODUCER_GROUP})", DEFAULT_PRODUCER_GROUP)


class ServerOptions(Options):
    """Options of all servers."""

    log_level: str = _LOG_LEVEL


class ClientOptions(Options):
    """The options of all client commands."""

    namesrv: str = option(
        "--namesrv HOST:PORT",
        f"name server, several with ; between (${NAMESRV_VARIABLE}, else {NAMESRV_ADDRESS})",
        NAMESRV_ADDRESS,
        variable=NAMESRV_VARIABLE,
        read=values.parse_namesrv,
    )
    as_dialled: bool = option(
        "--as-dialled", "reach brokers at the name server's host, not at the address they advertise"
    )
    credentials: str | None = option(
        "--credentials SOURCE",
        f"account for brokers with ACL: env:NAME or file:PATH (${CREDENTIALS_VARIABLE}, else none)",
        variable=CREDENTIALS_VARIABLE,
    )
    namespace: str | None = option(
        "--namespace NAME", "namespace of all topics and groups", read=values.parse_namespace
    )
    tls: bool = option("--tls", "connect with TLS (useTLS); each of the following options includes it")
    tls_ca: str | None = option(
        "--tls-ca FILE", "certificates to trust (tls.client.trustCertPath; those of the system)"
    )
    tls_cert: str | None = option("--tls-cert FILE", "own certificate, for servers that want one (tls.client.certPath)")
    tls_key: str | None = option("--tls-key FILE", "its private key (tls.client.keyPath)")
    tls_verify: str | None = option(
        "--tls-verify host|ca|none",
        "the check of the server's certificate: signature and host name, or the signature alone (host)",
    )


class TopicOptions(ClientOptions):
    """The options of commands for one topic."""

    topic: str = option("TOPIC")


class ConfiguredOptions(ServerOptions):
    """Options of servers that also take settings from a file and from environment variables."""

    settings: Mapping[str, Any]  # those on the command line, by the fields of their rows
    config: str | None = option(
        "--config FILE",
        "read settings from this file: RocketMQ's own with its names, or FILE.toml with those of the options",
    )
    print_config: bool = option("--print-config", "write each setting with its value and where it comes from, and exit")


class BrokerOptions(ConfiguredOptions, run="broker:run"):
    """Run a broker with its name server."""

    settings_rows: ClassVar[Iterable[Setting]] = SETTINGS

    dashboard: bool = option("--dashboard", "also start triomq dashboard, which ends with the broker")
    end_with_stdin: bool = _END_WITH_STDIN


class BrokerStatusOptions(ClientOptions, run="health:status"):
    """Show settings and counters of running brokers."""

    address: str | None = option("[HOST:PORT]", "only this broker (all in the name server)")


class BrokerSetOptions(ClientOptions, run="health:change"):
    """Change settings of running brokers, until they are started again."""

    settings: tuple[str, ...] = option("NAME=VALUE...", "RocketMQ's name and the new value")
    broker: str | None = ONE_BROKER


class NamesrvOptions(ConfiguredOptions, run="broker:run_namesrv"):
    """Run a name server without a broker, for brokers that register with it."""

    settings_rows: ClassVar[Iterable[Setting]] = NAMESRV_SETTINGS


class DashboardOptions(ClientOptions, run="dashboard:run"):
    """Show a cluster to a browser, as pages."""

    log_level: str = _LOG_LEVEL
    listen: str | None = option(
        "--listen HOST:PORT", "address of the pages (127.0.0.1:8233, or any free port if that one is taken)"
    )
    password_file: str | None = option(
        "--password-file FILE",
        "sign in with the password in the first line of this file, at least 8 characters (a token that works once)",
    )
    read_only: bool = option("--read-only", "refuse all changes")
    https_cert: str | None = option("--https-cert FILE", "serve HTTPS with this certificate")
    https_key: str | None = option("--https-key FILE", "its private key")
    insecure: bool = option("--insecure", "allow listening beyond loopback without HTTPS")
    end_with_stdin: bool = _END_WITH_STDIN


class ClusterOptions(ServerOptions, run="cluster:run"):
    """Run a name server and several brokers, each in a separate process."""

    brokers: int = option("--brokers N", "how many brokers: broker-a, broker-b ... (2)", 2)
    listen: str = option(
        "--listen HOST:PORT",
        f"address of the first broker ({BROKER_ADDRESS}), each next port is 10 higher; port 0: any free ports",
        BROKER_ADDRESS,
    )
    namesrv_listen: str = option(
        "--namesrv-listen HOST:PORT",
        f"address of the name server ({NAMESRV_ADDRESS}; port 0: any free port)",
        NAMESRV_ADDRESS,
    )
    store: str | None = option(
        "--store DIR", "folder of all stores and of the brokers' logs (triomq/cluster in the user's data folder)"
    )
    insecure: bool = option("--insecure", "allow listening beyond loopback without accounts")
    options: tuple[str, ...] = option("[-- BROKER_OPTION...]", "options of triomq broker for all brokers")


class InitOptions(Options, run="init:run"):
    """Write accounts and certificates for a broker on a network into a new folder."""

    dir: str = option("DIR", "the folder; it must not exist, or be empty")
    acl: bool = option("--acl", "write an administrator and an application, with new secrets")
    tls: bool = option("--tls", "write a CA and a certificate signed by it, for three years; needs openssl")
    host: tuple[str, ...] = option(
        "--host HOST...",
        "name or IP address by which clients reach the broker, beside localhost, 127.0.0.1 and ::1; may be repeated",
    )


class ProduceOptions(TopicOptions, run="produce:run"):
    """Send the lines of stdin, or generated messages."""

    group: str = _GROUP
    tag: str | None = option("--tag TAG", "tag of every message")
    key: tuple[str, ...] = option("--key KEY...", "key of every message; may be repeated")
    properties: tuple[tuple[str, str], ...] = option(
        "--property NAME=VALUE...", "property of every message; may be repeated"
    )
    delay: float = option(
        "--delay S",
        "deliver every message this long after it was sent: seconds, 10m, 2h (RocketMQ 4.9 delivers at once)",
        0.0,
        group="due",
    )
    deliver_at: datetime | None = option("--deliver-at TIME", "or at this time: 2026-01-31T12:00", group="due")
    json_lines: bool = option(
        "--json-lines",
        "each line is an object with body or body_base64, and optionally tags, keys, properties, as consume --json"
        " writes them",
    )
    count: int | None = option("--count N", "send N generated messages instead of stdin")
    size: int = option("--size BYTES", "length of a generated body (128)", 128)
    rate: float | None = option("--rate N/s", "maximum of messages per second")
    batch: int | None = option(
        "--batch N", "maximum of messages per request (lines: 1000, generated or delayed messages: 1)"
    )
    in_flight: int | None = option(
        "--in-flight N",
        "maximum of concurrent requests (lines: 16, one per queue to keep their order; generated messages: as many as"
        " the round trip needs)",
    )
    keep_going: bool = option("--keep-going", "continue after a message could not be sent")
    trace: bool = option("--trace", "record each message for triomq message trace")


class RequestOptions(TopicOptions, run="produce:request"):
    """Send one message and write the reply of the consumer that handles it."""

    body: str = option("BODY", "text of the request")
    group: str = _GROUP
    tag: str | None = option("--tag TAG", "tag of the message")
    key: tuple[str, ...] = option("--key KEY...", "key of the message; may be repeated")
    timeout: float = option("--timeout S", "time until the reply must have arrived (3)", 3.0)


class ConsumeOptions(TopicOptions, run="consume:run"):
    """Write messages as they arrive, until Ctrl-C."""

    group: str | None = option(
        "--group GROUP", "consume as a member of this group and commit offsets (default: read without a group)"
    )
    orderly: bool = option("--orderly", "as a member: consume each queue in order, under its lock")
    broadcast: bool = option("--broadcast", "as a member: get every message, and keep the offsets on this machine")
    instance_name: str | None = option(
        "--instance-name NAME",
        "as a member: name among the clients of this machine (instanceName; random, with --broadcast DEFAULT)",
    )
    tag: str = option("--tag EXPR", 'tags wanted, such as "TagA || TagB" (*)', "*", group="wanted")
    sql: Sql | None = option(
        "--sql SQL", "or a condition on properties: \"amount > 100 AND region IN ('eu', 'us')\"", group="wanted"
    )
    start: StartAt = option(
        "--from WHERE",
        "earliest, latest, a time, or -10m for ten minutes ago (earliest); a group with offsets resumes there",
        "earliest",
    )
    count: int | None = option("--count N", "end after N messages")
    timeout: float | None = option(
        "--timeout S", "end when no message arrives for S seconds; fails if --count was not reached"
    )
    trace: bool = option("--trace", "as a member: record each message for triomq message trace")
    long: bool = option("--long", "print time, place, tag and keys before each body")
