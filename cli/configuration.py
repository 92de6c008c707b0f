"""The settings of ``triomq broker`` from the command line, the environment and a file, in this order.

A file is TOML with the names of our options if its name ends in ``.toml``, else RocketMQ's own ``broker.conf``.
"""

import logging
import os
import re
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from triomq.cli.arguments.arguments import VARIABLES
from triomq.cli.arguments.options import BrokerOptions
from triomq.cli.arguments.values import KINDS
from triomq.cli.errors import UsageError
from triomq.cli.output import write_records
from triomq.common.broker_settings import FIXED, SETTINGS, Setting, read_flag, variable_of
from triomq.protocol.java import read_properties
from triomq.protocol.missing import explain_missing

LOGGER: Final = logging.getLogger("triomq.cli.configuration")

_PREFIX: Final = "TRIOMQ_BROKER_"
#: Kubernetes sets such variables in every container for a service called triomq-broker.
_OF_KUBERNETES: Final = re.compile(rf"{_PREFIX}(SERVICE|PORT)(_.*)?")
_BY_NAME: Final = {row.name: row for row in SETTINGS if row.name}
_BY_KEY: Final = {row.key: row for row in SETTINGS if row.option}
_BY_VARIABLE: Final = {row.variable: row for row in SETTINGS if row.option}
#: Values with which a broker of RocketMQ does nothing that triomq cannot do.
_HARMLESS: Final = frozenset(("", "0", "false"))
#: RocketMQ sets host and port of an address apart: our field, the setting of the host, and the default port, if any.
_HOSTS: Final = (
    ("listen", "bindAddress", "10911"),
    ("ha_listen", "bindAddress", ""),
    ("metrics", "metricsPromExporterHost", "5557"),
)


class Given(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: Any
    source: str


def collect(options: BrokerOptions, environment: Mapping[str, str] = os.environ) -> dict[str, Given]:
    """Return all settings that have been given, by the fields of their rows.

    Raises:
        UsageError: the file cannot be read, or a name or value is wrong.
    """
    words = {field: Given(value, "command line") for field, value in options.settings.items()}
    found = _from_environment(environment) | words
    return _from_file(Path(options.config).expanduser(), found) | found if options.config else found


def print_settings(found: Mapping[str, Given], *, as_json: bool) -> None:
    """Write each setting with its value and where it comes from."""
    records = []
    for row in filter(lambda row: row.option, SETTINGS):
        given = found.get(row.field)
        value = row.default if given is None else _shown(row, given.value)
        source = "default" if given is None else given.source
        records.append({"setting": row.key, "rocketmq": row.rocketmq or None, "value": value, "source": source})
    write_records(("setting", "RocketMQ", "value", "source"), records, as_json=as_json)


def _shown(row: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return str(value != row.key.startswith("no-")).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ";".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    found = {}
    others = set(map(variable_of, VARIABLES))
    for name, text in environment.items():
        if not name.startswith(_PREFIX) or not text or name in others or _OF_KUBERNETES.fullmatch(name):
            continue
        row = _BY_VARIABLE.get(name) or _refuse("environment", name, _BY_VARIABLE)
        values = text.split() if row.option.endswith("...") else text
        found[row.field] = Given(_checked(name, _read, row, values), f"environment, {name}")
    return found


def _from_file(path: Path, given: Mapping[str, Given]) -> dict[str, Given]:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else None
    except (OSError, ValueError) as exc:
        raise UsageError(f"--config {path}: {exc}") from exc
    if table is None:
        found = _from_properties(path, read_properties(text), given)
    else:
        found = {}
        for name, value in table.items():
            row = _BY_KEY.get(name) or _BY_KEY.get(name.replace("_", "-")) or _refuse(str(path), name, _BY_KEY)
            found[row.field] = _checked(f"{path}: {name}", _read, row, value)
    return {field: Given(value, str(path)) for field, value in found.items()}


def _from_properties(path: Path, texts: Mapping[str, str], given: Mapping[str, Given]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    unused = []
    known = Path(__file__).with_name("rocketmq_settings.txt").read_text(encoding="utf-8").split()
    for name, text in texts.items():
        row = _BY_NAME.get(name)
        reason = explain_missing(name)
        has_accounts = name == "aclEnable" and "acl" in given  # the file of accounts is an option
        if reason and text not in _HARMLESS and not has_accounts:
            raise UsageError(f"{path}: {name}={text}: {reason}")
        if row is not None and row.option:
            found[row.field] = _checked(
                f"{path}: {name}", lambda row, text: _choice(row, row.kind.read(text)), row, text
            )
        elif name not in known:
            _refuse(str(path), name, known)
        elif not reason and name not in {host for _, host, _ in _HOSTS} and FIXED.get(name) != text:
            unused.append(name)
    for field, host, default_port in _HOSTS:
        port = found.get(field, default_port).rpartition(":")[2]
        if host in texts and port:
            found[field] = f"{texts[host]}:{port}"
    if found.get("slave_read_ratio") is not None:
        found["slave_read_ratio"] = found.get("in_memory_max_ratio", found["slave_read_ratio"])
    if unused:
        LOGGER.warning("settings without effect file=%s names=%s", path, ",".join(unused))
    return found


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
