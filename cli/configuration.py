"""The settings of a server: from the command line, the environment and a file, in this order, to its configuration.

A file is TOML with the names of our options if its name ends in ``.toml``, else RocketMQ's own: a ``broker.conf`` or
``namesrv.conf``.
"""

import logging
import os
import re
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, cast

from triomq.broker.addresses import Address, parse_networks
from triomq.broker.config import DEFAULT_METRICS, TlsConfig
from triomq.cli.arguments.arguments import VARIABLES
from triomq.cli.arguments.options import ConfiguredOptions
from triomq.cli.arguments.values import KINDS
from triomq.cli.errors import UsageError
from triomq.cli.output import write_records
from triomq.common.broker_settings import FIXED, Setting, read_flag, variable_of
from triomq.protocol.errors import ConfigError
from triomq.protocol.java import read_properties
from triomq.protocol.missing import explain_missing

LOGGER: Final = logging.getLogger("triomq.cli.configuration")

#: Kubernetes sets such variables in every container for a service called triomq-broker.
_OF_KUBERNETES: Final = re.compile(r"TRIOMQ_[A-Z]+_(SERVICE|PORT)(_.*)?")
#: Values with which a broker of RocketMQ does nothing that triomq cannot do.
_HARMLESS: Final = frozenset(("", "0", "false"))
#: RocketMQ sets host and port of an address apart: our field, and the setting of the host.
_HOSTS: Final = {"listen": "bindAddress", "ha_listen": "bindAddress", "metrics": "metricsPromExporterHost"}
_TLS: Final = ("tls", "tls_cert", "tls_key", "tls_client_ca", "tls_client_auth")
#: An empty text must not silently mean another address, or no TLS.
_NEVER_EMPTY: Final = ("listen", "namesrv_listen", *_TLS)


class Given(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: Any
    source: str


def collect(options: ConfiguredOptions, environment: Mapping[str, str] = os.environ) -> dict[str, Given]:
    """Return all settings that have been given, by the fields of their rows.

    Raises:
        UsageError: the file cannot be read, or a name or value is wrong.
    """
    words = {field: Given(value, "command line") for field, value in options.settings.items()}
    found = _from_environment(options, environment) | words
    return _from_file(options, found) | found if options.config else found


def print_settings(options: ConfiguredOptions, found: Mapping[str, Given]) -> None:
    """Write each setting with its value and where it comes from."""
    records = []
    for row in filter(lambda row: row.option, options.settings_rows):
        given = found.get(row.field)
        value = row.default if given is None else _shown(row, given.value)
        source = "default" if given is None else given.source
        records.append({"setting": row.key, "rocketmq": row.rocketmq or None, "value": value, "source": source})
    write_records(("setting", "RocketMQ", "value", "source"), records, as_json=options.json)


def _shown(row: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return str(value != row.key.startswith("no-")).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _by_key(options: ConfiguredOptions) -> dict[str, Setting]:
    return {row.key.replace("-", "_"): row for row in options.settings_rows if row.option}


def _from_environment(options: ConfiguredOptions, environment: Mapping[str, str]) -> dict[str, Given]:
    found = {}
    others = {variable_of(options.command, name) for name in VARIABLES}
    rows = {variable_of(options.command, key): row for key, row in _by_key(options).items()}
    for name, text in environment.items():
        if not name.startswith(variable_of(options.command, "")) or not text:
            continue
        if name in others or _OF_KUBERNETES.fullmatch(name):
            continue
        row = rows.get(name) or _refuse("environment", name, rows)
        values = text.split() if row.option.endswith("...") else text
        found[row.field] = Given(_checked(name, _read, row, values), f"environment, {name}")
    return found


def _from_file(options: ConfiguredOptions, given: Mapping[str, Given]) -> dict[str, Given]:
    path = Path(str(options.config)).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else None
    except (OSError, ValueError) as exc:
        raise UsageError(f"--config {path}: {exc}") from exc
    if table is None:
        found = _from_properties(path, read_properties(text), options.settings_rows, given)
    else:
        found, rows = {}, _by_key(options)
        for name, value in table.items():
            row = rows.get(name.replace("-", "_")) or _refuse(str(path), name, (row.key for row in rows.values()))
            found[row.field] = _checked(f"{path}: {name}", _read, row, value)
    return {field: Given(value, str(path)) for field, value in found.items()}


def _from_properties(
    path: Path, texts: Mapping[str, str], rows: Iterable[Setting], given: Mapping[str, Given]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    unused = []
    by_name = {row.name: row for row in rows if row.name}
    known = Path(__file__).with_name("rocketmq_settings.txt").read_text(encoding="utf-8").split()
    for name, text in texts.items():
        row = by_name.get(name)
        reason = explain_missing(name)
        has_accounts = name == "aclEnable" and "acl" in given  # the file of accounts is an option
        if reason and text not in _HARMLESS and not has_accounts:
            raise UsageError(f"{path}: {name}={text}: {reason}")
        if row is not None and row.option:
            found[row.field] = _checked(f"{path}: {name}", _read_property, row, text)
        elif name not in known:
            _refuse(str(path), name, known)
        elif not reason and name not in _HOSTS.values() and FIXED.get(name) != text:
            unused.append(name)
    _join_hosts(found, texts, rows)
    if found.get("slave_read_ratio") is not None:
        found["slave_read_ratio"] = found.get("in_memory_max_ratio", found["slave_read_ratio"])
    if unused:
        LOGGER.warning("settings without effect file=%s names=%s", path, ",".join(unused))
    return found


def _join_hosts(found: dict[str, Any], texts: Mapping[str, str], rows: Iterable[Setting]) -> None:
    """Replace the hosts of addresses by those that RocketMQ's settings give."""
    for row in rows:
        host = texts.get(_HOSTS.get(row.field, ""))
        default = re.match(r"\S+:\d+", row.default)  # without one it does not listen by default
        address = found.get(row.field, default and default[0])
        if host is not None and address:
            found[row.field] = f"{host}:{address.rpartition(':')[2]}"


def _refuse(place: str, name: str, names: Iterable[str]) -> NoReturn:
    nearest = "".join(f"; did you mean {near}?" for near in get_close_matches(name, names, 1, cutoff=0.6))
    raise UsageError(f"{place}: unknown setting {name}{nearest}")


def _checked(place: str, read: Callable[[Setting, Any], Any], row: Setting, value: Any) -> Any:
    try:
        return read(row, value)
    except ArgumentTypeError as exc:
        raise UsageError(f"{place}: {exc}") from None
    except ValueError as exc:
        raise UsageError(f"{place}: the value is not {exc}") from None


def _read(row: Setting, value: Any) -> Any:
    """Read a value of the environment or of TOML, as the command line reads its text."""
    if isinstance(value, dict):
        raise ValueError("a single value")  # noqa: TRY004  # as for other wrong values
    if row.option.endswith("..."):
        return tuple(map(str, value))
    if not row.metavar:
        return read_flag(str(value).lower()) != row.key.startswith("no-")
    text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
    return _choice(row, KINDS.get(row.metavar, str)(text))


def _read_property(row: Setting, text: str) -> Any:
    return _choice(row, row.kind.read(text))


def _choice(row: Setting, value: Any) -> Any:
    if "|" in row.metavar and value not in row.metavar.split("|"):
        raise ValueError(row.metavar.replace("|", ", "))
    return value


# --- types of the configuration -------------------------------------------------------------------------------


def read_path(text: str) -> Path:
    """Return a path; ``~`` is the user's folder."""
    return Path(text).expanduser()


#: How the text of a setting becomes a value of the configuration, by its kind.
_TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "ADDRESS[,ADDRESS/PREFIX...]": parse_networks,
    "DIR": read_path,
    "FILE": read_path,
    "HOST:PORT": Address.parse,
    "PATH": read_path,
}


def typed_settings(given: Mapping[str, Any], rows: Iterable[Setting]) -> dict[str, Any]:
    """Return the settings that were given; addresses, networks, paths and TLS have the types of a configuration.

    Most of these with an empty text count as not given, as in the environment.

    Raises:
        UsageError: one is malformed, or those of TLS contradict each other.
    """
    found = {"metrics": DEFAULT_METRICS, **given}
    for row in rows:
        read, text = _TYPES.get(row.metavar), given.get(row.field)
        if read is not None and text is not None:
            del found[row.field]
            if (text or row.field in _NEVER_EMPTY) and (row.field, text) != ("metrics", "off"):
                try:
                    found[row.field] = read(text)
                except ConfigError as exc:
                    raise UsageError(f"--{row.key}: {exc}") from None
    tls = _tls_config({field: found.pop(field) for field in _TLS if field in found})
    return found | {"tls": tls}


def _tls_config(given: Mapping[str, Any]) -> TlsConfig | None:
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
        cert=cert,
        key=key,
        client_ca=ca,
        client_auth=cast("Literal['none', 'optional', 'require']", client_auth),  # its reader has checked it
        enforcing=mode == "enforcing",
    )
