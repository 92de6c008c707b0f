"""The settings that protect a server, a broker or a name server: from the command line to its configuration."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from triomq.broker.addresses import Address, parse_networks
from triomq.broker.config import DEFAULT_METRICS, TlsConfig
from triomq.cli.errors import UsageError
from triomq.protocol.errors import ConfigError

_TLS: Final = ("tls", "tls_cert", "tls_key", "tls_client_ca", "tls_client_auth")

T = TypeVar("T")


def network_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those that protect a server, a broker or a name server, as its configuration has them.

    Raises:
        UsageError: one is malformed, or those of TLS contradict each other.
    """
    metrics: str | None = given.get("metrics")
    others = {field: value for field, value in given.items() if field not in _TLS}
    return others | {
        "insecure": given.get("insecure", False),
        "admin_listen": _read("--admin-listen", Address.parse, given.get("admin_listen")),
        "brokers_from": _read("--brokers-from", parse_networks, given.get("brokers_from")) or (),
        "metrics": DEFAULT_METRICS
        if metrics is None
        else _read("--metrics", Address.parse, metrics.removeprefix("off")),
        "audit": Path(given["audit"]).expanduser() if given.get("audit") else None,
        "tls": tls_config(given),
    }


def _read(option: str, read: Callable[[str], T], text: str | None) -> T | None:
    """Return the value of an option, ``None`` if it has none; an error begins with its name."""
    try:
        return read(text) if text else None
    except ConfigError as exc:
        raise UsageError(f"{option}: {exc}") from None


def tls_config(given: Mapping[str, Any]) -> TlsConfig | None:
    """Convert the settings of TLS.

    Raises:
        UsageError: they contradict each other.
    """
    mode, cert, key, ca, client_auth = map(given.get, _TLS)
    if mode == "disabled":
        return None
    if cert is None or key is None:
        if any(field in given for field in _TLS):
            missing = " and ".join(name for name, file in (("--tls-cert", cert), ("--tls-key", key)) if file is None)
            raise UsageError(f"TLS needs both a certificate and its private key: add {missing}")
        return None
    client_auth = client_auth or ("none" if ca is None else "require")
    if (ca is None) != (client_auth == "none"):
        remedy = "needs --tls-client-ca FILE" if ca is None else "asks for no certificates: leave out --tls-client-ca"
        raise UsageError(f"--tls-client-auth {client_auth}: {remedy}")
    return TlsConfig(
        cert=Path(cert).expanduser(),
        key=Path(key).expanduser(),
        client_ca=None if ca is None else Path(ca).expanduser(),
        client_auth=cast("Literal['none', 'optional', 'require']", client_auth),  # its reader has checked it
        enforcing=mode == "enforcing",
    )
