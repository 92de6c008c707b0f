"""Settings that all clients share, how name server lists are written, and where accounts come from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from triomq.protocol.codes import SerializeType
from triomq.protocol.errors import ConfigError
from triomq.protocol.namespace import Namespace
from triomq.protocol.record.compression import DEFAULT_MAX_BODY_BYTES
from triomq.protocol.typed import check_fields
from triomq.protocol.wire.frame import MAX_FRAME_BYTES
from triomq.protocol.wire.signing import Credentials, parse_credentials

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

DEFAULT_NAMESRV_PORT: Final = 9876
NAMESRV_VARIABLE: Final = "TRIOMQ_NAMESRV"
_MAX_PORT: Final = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Settings of TLS to brokers and name servers.

    Raises:
        ConfigError: a value is impossible.
    """

    ca: str | Path | None = None  # tls.client.trustCertPath: certificates to trust; None: those of the system
    cert: str | Path | None = None  # tls.client.certPath: the own one, with those that signed it
    key: str | Path | None = None  # tls.client.keyPath
    verify: Literal["host", "ca", "none"] = "host"  # tls.client.authServer; "ca": whatever name it contains

    def __post_init__(self) -> None:
        check_fields(self)
        if self.verify not in ("host", "ca", "none"):
            raise ConfigError(f"tls: verify is {self.verify!r}, must be 'host', 'ca' or 'none'")
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls: cert and key belong together")
        if self.ca is not None and self.verify == "none":
            raise ConfigError("tls: ca has no use with verify='none', which accepts every certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTelemetry:
    """Where spans and metrics go; ``None``: to the provider that the program has set for all."""

    tracer_provider: "TracerProvider | None" = None
    meter_provider: "MeterProvider | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a client, each with RocketMQ's name beside it.

    Raises:
        ConfigError: a value is impossible.
        IllegalNameError: the namespace is.
    """

    client_ip: str | None = None  # clientIP; None: the address of the interface that leads outside
    instance_name: str | None = None  # instanceName; None: process id and 64 random bits, new for each instance
    unit_name: str | None = None  # unitName
    namespace: str | None = None  # namespace: prefix of topics and groups for brokers
    connect: bool = True  # entering checks that a name server answers and a broker accepts the account; False: later
    api_timeout_s: float = 3.0  # mqClientApiTimeout: requests other than sends and pulls
    connect_timeout_s: float = 3.0  # connectTimeoutMillis
    poll_namesrv_interval_s: float = 30.0  # pollNameServerInterval: routes of the topics in use
    heartbeat_interval_s: float = 30.0  # heartbeatBrokerInterval
    persist_offset_interval_s: float = 5.0  # persistConsumerOffsetInterval
    rebalance_interval_s: float = 20.0  # rocketmq.client.rebalance.waitInterval
    idle_timeout_s: float = 120.0  # clientChannelMaxIdleTimeSeconds: unused connections are closed
    max_frame_bytes: int = MAX_FRAME_BYTES  # com.rocketmq.remoting.frameMaxLength
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES  # of a pulled message, decompressed
    send_buffer_limit_bytes: int = 1024**2  # per connection; further senders wait, and further answers are dropped
    advertise: Literal["as-advertised", "as-dialled"] = "as-advertised"
    header_format: SerializeType = SerializeType.JSON  # rocketmq.serialize.type; MSGPACK: if the broker reads it
    tls: bool | TlsConfig = False  # useTLS; True: as TlsConfig()
    credentials: Credentials | None = None  # AclClientRPCHook: the account that signs requests to brokers
    open_telemetry: bool | OpenTelemetry = False  # spans and metrics; True: as OpenTelemetry(); needs triomq[otel]

    def __post_init__(self) -> None:
        check_fields(self)
        for name in (field.name for field in fields(self) if field.name.endswith(("_s", "_bytes"))):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} must be above 0")
        Namespace(self.namespace)  # raises
        if self.advertise not in ("as-advertised", "as-dialled"):
            raise ConfigError(f"advertise: {self.advertise!r} must be 'as-advertised' or 'as-dialled'")
        if self.open_telemetry:
            try:
                import_module("opentelemetry.trace")
            except ImportError:
                raise ConfigError("open_telemetry: opentelemetry-api is missing: pip install 'triomq[otel]'") from None


def parse_namesrv(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the addresses of ``"host:port;host:port"`` or of a sequence of such, without repetitions.

    The default port is 9876.  ``None`` means the environment variable ``TRIOMQ_NAMESRV``.

    Raises:
        ConfigError: no address is given, or one is malformed.
    """
    if namesrv is None:
        namesrv = os.environ.get(NAMESRV_VARIABLE, "")
        if not namesrv.strip():
            raise ConfigError(f'namesrv: no name server given; pass namesrv="host:9876" or set {NAMESRV_VARIABLE}')
    texts = namesrv.split(";") if isinstance(namesrv, str) else [part for one in namesrv for part in one.split(";")]
    addresses = dict.fromkeys(_normalise(text.strip()) for text in texts if text.strip())
    if not addresses:
        raise ConfigError('namesrv: no address given; write namesrv="host:9876"')
    return tuple(addresses)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[ipv6]:port``.

    Raises:
        ConfigError: it is not such an address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise ConfigError(f"address {address!r}: must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _normalise(text: str) -> str:
    if "," in text:
        raise ConfigError(f"namesrv: {text!r} has commas; separate name servers by semicolons, or give a list")
    if "://" in text:
        raise ConfigError(f"namesrv: {text!r} must be host:port without a scheme")
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{DEFAULT_NAMESRV_PORT}"
    elif text.count(":") > 1 and not text.startswith("["):
        raise ConfigError(f"namesrv: write the IPv6 address {text!r} as [address]:port")
    return join_address(*split_address(text))


_MOST_CHARACTERS: Final = 64 * 1024
SOURCES_TEXT: Final = "env:NAME or file:PATH"


def check_source(source: str) -> str:
    """Return ``source`` if :func:`load_credentials` accepts it; nothing is read.

    Raises:
        ConfigError: it names no source.  The error does not repeat the text, which may be a secret.
    """
    kind, _, name = source.partition(":")
    if kind not in {"env", "file"} or not name:
        raise ConfigError(f"credentials: must be {SOURCES_TEXT}")
    return source


def load_credentials(source: str) -> Credentials:
    """Read an account from ``env:NAME`` or ``file:PATH``; see ``parse_credentials`` for the format.

    In an environment variable the lines may be joined by ``;``.

    Raises:
        ConfigError: the variable or file does not exist, or contains no account; the error names the source, never its
            content.
    """
    kind, _, name = check_source(source).partition(":")
    if kind == "env":
        text = os.environ.get(name, "").replace(";", "\n")
        if not text:
            raise ConfigError(f"credentials: the environment has no variable {name}")
    else:
        try:
            with Path(name).expanduser().open(encoding="utf-8") as file:
                text = file.read(_MOST_CHARACTERS)
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
            raise ConfigError(f"credentials: cannot read {name}: {reason}") from None
    try:
        return parse_credentials(text)
    except ConfigError as exc:
        raise ConfigError(f"{exc} ({source})") from None
